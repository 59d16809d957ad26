"""Workers: programs submit runs, and worker processes take them from the queue, call them and see them through."""

from __future__ import annotations

from holdfast.workers.submitting import submit
from holdfast.workers.worker import Ended, Worker, WorkerConfig

__all__ = ["Ended", "Worker", "WorkerConfig", "submit"]
