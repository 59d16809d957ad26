"""`holdfast worker`: takes runs from the queue. The main thread waits for signals, another thread works."""

from __future__ import annotations

import os
import queue
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click

from holdfast.cli import DONE, FAILED, INTERRUPTED
from holdfast.cli.calling import find
from holdfast.cli.finding import config_errors_as_usage, opened
from holdfast.cli.options import duration, json_option, policy_option, store_option, text
from holdfast.cli.showing import json_alone, put_json, say
from holdfast.clock import SystemClock
from holdfast.errors import printable
from holdfast.signals import handled
from holdfast.wording import one_line

if TYPE_CHECKING:
    from holdfast.workers import Ended, Worker

STOPS = (signal.SIGTERM, signal.SIGINT)
LAST = 2.0  # seconds after which a stopped worker's process exits, even if threads still run
LOOK = 1.0  # seconds until a signal is noticed that came just before the wait for it began
CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGPIPE: FAILED}  # exit codes by signal; 0 for the others

Inbox = queue.SimpleQueue[int | BaseException | None]  # a SimpleQueue, since a signal handler puts into it


@click.command()
@click.argument("targets", metavar="MODULE:FUNCTION...", nargs=-1, required=True, callback=text)
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Runs at once.")
@click.option(
    "--per-session", type=click.IntRange(1, 10_000), metavar="N", help="At most N runs of one session, in all workers."
)
@click.option("--drain", is_flag=True, help="End when nothing is left to do.")
@click.option(
    "--grace",
    metavar="TIME",
    default="30s",
    show_default=True,
    callback=duration,
    help="How long running ones have to end when the worker is told to.",
)
@click.option(
    "--in-doubt",
    type=click.Choice(["raise", "repeat"]),
    default="raise",
    show_default=True,
    help="A call that may or may not have been made before: fail the run, or make it again.",
)
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Fail a run that has changed hands so often and has not ended.",
)
@policy_option
@click.option("--redis", metavar="URL", callback=text, help="Where the fleet shares its guards; else $HOLDFAST_REDIS.")
@store_option
@json_option
def worker(
    targets: tuple[str, ...],
    policy: str | None,
    redis: str | None,
    store: str | None,
    as_json: bool,
    **how: Any,
) -> int:
    """Take submitted runs from the queue, call them and see them through.

    Runs of these functions that `holdfast runs submit` or hf.submit left in the store are called in this process, the
    highest priority first, then the oldest; so are those whose worker has died. As many workers as you like, on any
    machine that reaches the store, take no run twice.

    SIGTERM or Ctrl-C ends it: it takes nothing new, and what has not ended after the grace is left to other workers.
    The same again does not wait. It ends, too, when whoever reads its JSON is gone.
    """
    for name, value in (("HOLDFAST_POLICY", policy), ("HOLDFAST_REDIS", redis)):
        if value is not None:
            os.environ[name] = value  # so that the loaded modules open the same ones
    inbox: Inbox = queue.SimpleQueue()
    with opened(store) as hf, json_alone(as_json) as out:
        for target in targets:
            find(target, store=store)
        with config_errors_as_usage():
            working = hf.worker(*targets, on_end=_tell if out is None else partial(_put, out, inbox), **how)
        code = _serve(working, targets, inbox)
    if working.is_stopping:
        _leave(code)
    return code


def _serve(worker: Worker, targets: tuple[str, ...], inbox: Inbox) -> int:
    def work() -> None:
        try:
            worker.run()
            inbox.put(None)
        except BaseException as error:
            inbox.put(error)

    thread = threading.Thread(target=work, name="holdfast-decider", daemon=True)
    code = DONE
    with handled(dict.fromkeys(STOPS, lambda number, _: inbox.put(number))):
        thread.start()
        say(f"waiting for runs of {', '.join(map(printable, targets))}; Ctrl-C ends it")
        while isinstance(heard := _next(inbox), int):
            again = worker.is_stopping and heard in STOPS
            code = code or CODES.get(heard, DONE)
            worker.stop(0.0 if again else None)
            say("stopping; what runs is left to others" if again else "stopping: nothing new is taken")
        thread.join()
    if heard is not None:
        raise heard
    return code


def _next(inbox: Inbox) -> int | BaseException | None:
    """Wait for the next message, in short waits: a signal that comes just before a wait does not end that wait."""
    while True:
        try:
            return inbox.get(timeout=LOOK)
        except queue.Empty:
            continue


def _leave(code: int) -> None:
    """End the process soon: Python would wait for threads that a function has left running."""

    def end() -> None:
        SystemClock.sleep(LAST)
        os._exit(code)

    threading.Thread(target=end, name="holdfast-end", daemon=True).start()


def _tell(ended: Ended) -> None:
    why = f": {one_line(ended.error)}" if ended.error else ""
    say(f"run {printable(ended.run_id, 200)} {ended.status}{why}")


def _put(out: TextIO, inbox: Inbox, ended: Ended) -> None:
    facts = ended._asdict()
    try:
        put_json({"id": facts.pop("run_id"), **facts}, out)
    except BrokenPipeError:  # the reader is gone: drop what is still buffered, or it would be written again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        inbox.put(signal.SIGPIPE)
