"""`holdfast doctor`: checks this machine and its store, and says how to fix what is wrong. It changes nothing."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from holdfast.cli import DONE, FAILED
from holdfast.cli.finding import check_temporary
from holdfast.cli.options import duration, json_option, store_option
from holdfast.cli.showing import console, put_json, say
from holdfast.errors import ConfigError, StoreError
from holdfast.wording import in_full, one_line, plural, size, span

if TYPE_CHECKING:
    import sqlite3

    from rich.console import Console

    from holdfast.app import Holdfast
    from holdfast.stores import PostgresRunStore, RunStore
    from holdfast.stores.postgres.checkup import Checkup

EXTRAS: Final = {
    "http": ("aiohttp", "certifi"),
    "server": ("starlette", "uvicorn"),
    "tui": ("textual",),
    "redis": ("hiredis",),
    "postgres": ("psycopg",),
    "otel": ("opentelemetry",),
}  # the top-level modules that each extra installs

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
STYLES: Final = {PASS: "green", WARN: "bold yellow", FAIL: "bold red"}

OLDEST_SQLITE: Final = (3, 25, 0)  # has window functions (sum() OVER) and fixes for WAL
SCARCE, SHORT = 100_000_000, 1_000_000_000  # bytes free on the disk, below which the check fails or warns
EARLIEST: Final = 1_735_689_600  # seconds since the epoch, 2025-01-01: a correct clock is never behind that
AHEAD: Final = 60.0  # seconds that a run may lie in the future, since the clocks of two machines differ
LAST_LINES: Final = 5  # lines of a server's stderr that are shown
RESTORE: Final = "keep a copy of it, then restore a backup or an export, or try `sqlite3 FILE .recover`"
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Finding(NamedTuple):
    """The result of one check; *fix* says how to fix what is wrong, if anything is."""

    check: str
    status: str
    message: str
    fix: str | None = None


@click.command()
@store_option
@json_option
@click.option(
    "--torture",
    "seconds",
    callback=duration,
    metavar="SECONDS",
    help="Instead: kill, freeze, race and cancel agents for so long, and see that durable runs keep their promises.",
)
def doctor(store: str | None, as_json: bool, seconds: float | None) -> int:
    """Check this machine and the store; say how to mend what is wrong.

    Changes nothing: the torture has a temporary store of the same kind, on a server a schema of its own that it drops
    at the end. Ends with 1 if anything has to be mended, or a promise was not kept.
    """
    if seconds is not None:
        return _torture(store, seconds, as_json)
    out = console()
    found: list[Finding] = []
    for finding in _examine(store):
        found.append(finding)
        if not as_json:
            _put(out, finding)
    failed = sum(finding.status == FAIL for finding in found)
    warned = sum(finding.status == WARN for finding in found)
    if as_json:
        put_json({"ok": not failed, "checks": [finding._asdict() for finding in found]})
    else:
        say(f"{failed} failed, {warned} to look at" if failed or warned else "all is well")
    return FAILED if failed else DONE


def _torture(store: str | None, seconds: float, as_json: bool) -> int:
    from rich.console import Console

    from holdfast.app import open
    from holdfast.torture.process import stopped_once
    from holdfast.torture.view import closing, watch

    check_temporary()
    with open(store) as hf:
        like = hf.runs
    with stopped_once(KeyboardInterrupt()):
        verdict = watch(seconds, like, Console(stderr=True))
    if as_json:
        put_json(verdict.to_dict())
    else:
        console().print(closing(verdict), soft_wrap=True)
    return DONE if verdict.is_clean else FAILED


def _put(out: Console, finding: Finding) -> None:
    from rich.text import Text

    line = Text(finding.status, style=STYLES[finding.status])
    line.append(f"  {finding.check:<12}{in_full(finding.message)}", style="none")
    out.print(line, soft_wrap=True)
    if finding.fix is not None:
        out.print(Text(f"      {'to mend it:':<12}{in_full(finding.fix)}"), soft_wrap=True)


def _examine(store: str | None) -> Iterator[Finding]:
    """Run every check, the cheap ones first; those of the store only as far as it can be read."""
    yield _python()
    yield _sqlite()
    yield _clock()
    yield _extras()
    from holdfast.app import open
    from holdfast.stores import PostgresRunStore

    try:
        hf = open(store)
    except ConfigError as error:
        yield Finding(
            "settings", FAIL, one_line(str(error)), "mend what it names: the policy file, $HOLDFAST_STORE, --store"
        )
        return
    with hf:
        yield from _fleet(hf)
        if hf.runs.file.path is None:
            yield Finding("store", PASS, "in memory: gone with the process that uses it")
        elif isinstance(hf.runs, PostgresRunStore):
            yield from _examine_server(hf.runs)
        else:
            yield from _examine_file(hf.runs, hf.runs.file.path)


def _examine_file(store: RunStore, path: str) -> Iterator[Finding]:
    yield _disk(path)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        yield Finding("store", PASS, f"{path} does not exist yet; the first run makes it")
        yield from _creatable(path)
        return
    except OSError as error:
        fix = "look at its folder and the permissions there, or use a store of your own"
        yield Finding("store", FAIL, f"{path} cannot be looked at: {error.strerror}", fix)
        return
    yield Finding("store", PASS, f"{path}, {size(there.st_size)}")
    is_usable = yield from _permissions(path)
    is_current = is_usable and (yield from _contents(path))
    if is_current:
        try:
            yield _interrupted(store)
            yield _owners(path)
            yield _times(store)
            yield from _servers(store)
        except (StoreError, OSError) as error:
            yield Finding("runs", FAIL, one_line(str(error)), "mend what it names, or restore a backup or an export")


def _examine_server(store: PostgresRunStore) -> Iterator[Finding]:
    from holdfast.stores.postgres.checkup import checkup
    from holdfast.stores.postgres.schema import SCHEMA

    try:
        seen = checkup(store.file)
        yield Finding("store", PASS, f"{store.file.name}, PostgreSQL {seen.version}, {size(seen.bytes)}")
        if seen.schema == 0:
            yield Finding("schema", PASS, "no tables yet; the first run makes them")
        else:
            yield _version(seen.schema, SCHEMA)
        yield from _server_settings(seen)
        if seen.schema in (0, SCHEMA):
            yield _interrupted(store)
            yield _times(store)
            yield from _servers(store)
    except (StoreError, ConfigError) as error:
        yield Finding("store", FAIL, one_line(str(error)), "mend what it names, then ask again")


def _server_settings(seen: Checkup) -> Iterator[Finding]:
    if seen.is_durable:
        yield Finding("durability", PASS, "what is acknowledged is on the server's disk")
    else:
        fix = "set fsync and synchronous_commit to on"
        yield Finding("durability", WARN, "the server may lose the last moments when it goes down", fix)
    room = f"{seen.connections} of {seen.most_connections} connections in use"
    if seen.connections > 0.9 * seen.most_connections:
        yield Finding("connections", WARN, room, "raise max_connections, or put a pool before the server")
    else:
        yield Finding("connections", PASS, room)
    if seen.is_pooled:
        message = "behind a pool: others are noticed by looking four times a second, and dead owners by their lease"
        yield Finding("session", PASS, f"{message}; ?session=URL with a direct address makes it immediate")
    else:
        yield Finding("session", PASS, "direct: others are noticed at once")


# -- the machine -------------------------------------------------------------------------------------------------------


def _python() -> Finding:
    return Finding("Python", PASS, f"{platform.python_version()} at {sys.executable}")


def _extras() -> Finding:
    """Which optional extras are installed."""
    from importlib.util import find_spec

    there = {extra: all(find_spec(module) for module in modules) for extra, modules in EXTRAS.items()}
    missing = [extra for extra, is_there in there.items() if not is_there]
    found = ", ".join(extra for extra, is_there in there.items() if is_there) or "none"
    if not missing:
        return Finding("extras", PASS, found)
    return Finding("extras", PASS, f"{found}; for more: pip install 'holdfast[{','.join(missing)}]'")


def _fleet(hf: Holdfast) -> Iterator[Finding]:
    """The Redis on which guards are shared, if there is one."""
    fleet = hf.fleet
    if fleet is None:
        return
    from holdfast.fleet.link import PATIENCE

    where = fleet.address.shown
    if fleet.service.settled.wait(PATIENCE) and fleet.is_available:  # open() may return before the first try is over
        yield Finding("redis", PASS, f"{where} answers")
        return
    fix = (
        "see that it runs, can be reached from here and grants the rights that docs/scale.md names; until then each "
        "process guards by itself"
    )
    yield Finding("redis", FAIL, f"{where}: {one_line(fleet.trouble)}", fix)


def _sqlite() -> Finding:
    import sqlite3

    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        least = ".".join(map(str, OLDEST_SQLITE))
        return Finding(
            "SQLite", FAIL, f"{sqlite3.sqlite_version} is too old", f"use a Python with SQLite {least} or newer"
        )
    return Finding("SQLite", PASS, sqlite3.sqlite_version)


def _clock() -> Finding:
    from holdfast.clock import SystemClock
    from holdfast.wording import moment

    now = SystemClock().time()
    if now < EARLIEST:
        return Finding("clock", FAIL, f"says {moment(int(now * 1000))}, which is past", "set the clock of this machine")
    return Finding("clock", PASS, moment(int(now * 1000)))


def _disk(path: str) -> Finding:
    folder = _folder(path)
    free = shutil.disk_usage(folder).free
    message, fix = f"{size(free)} free at {folder}", "make room; `holdfast runs prune --max-age 30d` deletes old runs"
    if free < SCARCE:
        return Finding("disk", FAIL, message, fix)
    return Finding("disk", WARN, message, fix) if free < SHORT else Finding("disk", PASS, message)


def _folder(path: str) -> str:
    """The nearest folder above *path* that exists."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


# -- the file ----------------------------------------------------------------------------------------------------------


def _creatable(path: str) -> Iterator[Finding]:
    """Check that a file which does not exist yet can be created."""
    folder = _folder(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        home = os.path.dirname(path)  # if it exists it may be another user's or the system's: do not suggest a chown
        made = f"sudo install -d -m 700 -o $(id -u) {shlex.quote(home)}" if folder != home else f"ask who owns {folder}"
        fix = f"use a store of your own (--store or $HOLDFAST_STORE), or {made}"
        yield Finding("permissions", FAIL, f"this user may make nothing in {folder}", _remount(folder) or fix)


def _remount(folder: str) -> str:
    """What to do if *folder* is on a read-only file system; empty if it is not."""
    if not os.statvfs(folder).f_flag & os.ST_RDONLY:
        return ""
    return "mount it to be written, as nobody may now, or put the store elsewhere: --store or $HOLDFAST_STORE"


def _permissions(path: str) -> Generator[Finding, None, bool]:
    """Check that this user can use the file and no other user can; return True if it can be used at all."""
    folder = os.path.dirname(path)
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        fix = _remount(folder) or f"chown $(id -u) {shlex.join((path, folder))}, or use a store of your own"
        yield Finding("permissions", FAIL, "this user may not write the file, or not make others beside it", fix)
        return False
    files = [f"{path}{suffix}" for suffix in ("", "-wal", "-shm") if os.path.exists(f"{path}{suffix}")]
    open_ = [file for file in files if stat.S_IMODE(os.stat(file).st_mode) & OTHERS]
    if open_:
        fix = f"chmod 600 {shlex.join(open_)}"
        yield Finding("permissions", WARN, f"others may use {', '.join(map(os.path.basename, open_))}", fix)
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if mode & OTHERS_WRITE and not mode & stat.S_ISVTX:
        fix = f"chmod 700 {shlex.quote(folder)}"
        yield Finding("permissions", WARN, f"others may put files of theirs in the place of those in {folder}", fix)
    elif not open_:
        yield Finding("permissions", PASS, f"file {stat.S_IMODE(os.stat(path).st_mode):04o}, folder {mode:04o}")
    return True


def _contents(path: str) -> Generator[Finding, None, bool]:
    """Check schema and integrity over a read-only connection; return True if the file is intact and up to date."""
    import sqlite3

    from holdfast.stores.schema import SCHEMA

    try:
        with closing(_read_only(path)) as connection:
            yield (schema := _schema(connection))
            yield (integrity := _integrity(connection))
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            return version == SCHEMA and FAIL not in (schema.status, integrity.status)
    except sqlite3.Error as error:
        yield Finding("integrity", FAIL, f"cannot be read: {one_line(str(error))}", RESTORE)
        return False


def _read_only(path: str) -> sqlite3.Connection:
    import sqlite3
    from urllib.parse import quote

    return sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True, timeout=10, isolation_level=None)


def _schema(connection: sqlite3.Connection) -> Finding:
    from holdfast.stores.schema import APPLICATION, SCHEMA

    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        return Finding("schema", FAIL, "the file is a database of something else", "choose another file with --store")
    if version > SCHEMA:
        message = f"version {version}, of a newer Holdfast; this one knows {SCHEMA}"
        return Finding("schema", FAIL, message, "upgrade Holdfast")
    return _version(version, SCHEMA)


def _version(version: int, current: int) -> Finding:
    if version < current:
        message = f"version {version}; brought to {current} with the next use, so its runs were not looked at"
        return Finding("schema", PASS, message)
    return Finding("schema", PASS, f"version {version}")


def _integrity(connection: sqlite3.Connection) -> Finding:
    problems = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
    if problems == ["ok"]:
        return Finding("integrity", PASS, "quick_check found nothing")
    return Finding("integrity", FAIL, one_line("; ".join(map(str, problems)), 300), RESTORE)


# -- what is in it -----------------------------------------------------------------------------------------------------


def _interrupted(store: RunStore) -> Finding:
    from holdfast.stores.searching import INTERRUPTED, Wanted, every

    count = sum(1 for _ in every(store, Wanted(INTERRUPTED)))
    if count:
        fix = "see `holdfast runs ls --interrupted`; `holdfast runs show ID` tells how to go on; or cancel them"
        return Finding("runs", WARN, f"{count} interrupted: nobody runs them any more", fix)
    return Finding("runs", PASS, "none interrupted")


def _owners(path: str) -> Finding:
    """Count the owners' files: a process that is killed leaves its file behind, and a later process removes it."""
    from holdfast.stores.owners import LockFiles

    folder = f"{path}-owners"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    known = [stem for name in names if (stem := name.removesuffix(".owner")) != name and stem.isalnum()]
    gone = sum(map(LockFiles(folder).is_gone, known))
    rest = f", {gone} left behind by processes that died; the next to begin a run removes them" if gone else ""
    return Finding("owners", PASS, f"{len(known) - gone} alive{rest}")


def _times(store: RunStore) -> Finding:
    now = store.clock.time()
    ahead = max((run.updated_at_ms / 1000 - now for run in store.list_runs(limit=100)), default=0.0)
    if ahead > AHEAD:
        message = f"the newest run is {span(ahead)} ahead of this clock"
        return Finding("times", WARN, message, "set the clocks of all machines that use the store")
    return Finding("times", PASS, "no run lies in the future")


def _servers(store: RunStore) -> Iterator[Finding]:
    """One finding for each server behind a running proxy; for one that is not ready, also its last stderr lines."""
    from holdfast.stores.board import Board

    for line in Board(store).servers():
        server = line.server
        restarts = f", {plural(server.restarts, 'restart')}" if server.restarts else ""
        message = one_line(f"{server.name} is {server.state} behind process {line.proxy_pid}{restarts}")
        if server.state == "ready" or (server.state == "idle" and not server.last_error):  # no client uses it
            yield Finding("server", PASS, message)
            continue
        if server.last_error:
            message += f": {one_line(server.last_error, 300)}"
        message += "".join(f"\n{'':<18}| {one_line(said, 300)}" for said in server.stderr[-LAST_LINES:])
        what = "answers" if server.kind == "http" else "starts by itself"
        fix = f"see that it {what}: {one_line(server.target, 300)}"
        yield Finding("server", FAIL if server.state == "failed" else WARN, message, fix)
