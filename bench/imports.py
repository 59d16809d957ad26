"""CPU time of an import in a fresh interpreter that has asyncio already; interpreters of all libraries in turn.

Holdfast loads a name when it is asked for, so all its names are asked for.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from bench.harness import Settings
from bench.peers import PEERS
from bench.report import Table, at_most

AIM = 60
OURS = "holdfast"
_SCRIPT = """
import asyncio, time
start = time.process_time()
{statement}
print(time.process_time() - start)
"""


def run(settings: Settings) -> list[Table]:
    """Milliseconds beyond `import asyncio`."""
    modules = list(PEERS.values())[: 6 if settings.quick else None]
    if not settings.peers_only:
        modules.append(OURS)
    spent: dict[str, list[float]] = {module: [] for module in modules if _spent(module) is not None}
    for _ in range(4 if settings.quick else 10):
        for module, times in spent.items():
            times.append(_spent(module) or 0.0)
    table = Table("import, beyond asyncio", ("mean ms", "median ms"))
    for module, times in spent.items():
        table.rows.append((module, 1e3 * statistics.fmean(times), 1e3 * statistics.median(times)))
    missing = [module for module in modules if module not in spent]
    if missing:
        table.notes.append(f"not installed: {', '.join(missing)}")
    means = {name: mean for name, mean, _ in table.rows}
    table.verdicts.append(at_most(OURS, means.get(OURS), AIM, " ms"))
    return [table]


def _spent(module: str) -> float | None:
    """CPU seconds of one import; None where the module is not there. The first of each also writes its bytecode."""
    script = _SCRIPT.format(statement=f"from {OURS} import *" if module == OURS else f"import {module}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        if module != OURS and f"No module named '{module.partition('.')[0]}'" in done.stderr:
            return None
        raise RuntimeError(done.stderr)
    return float(done.stdout)
