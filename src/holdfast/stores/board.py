"""The board: what the processes on a store show of their tools, and what they are told to do with them.

Each process writes its own rows; readers leave out dead processes, whose rows stay for a while for readers that add up
counters. An order (open, close, auto, reset) replaces all earlier ones for its tool: it is written first and the
processes are woken after, so one that missed the wake finds it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast import checks
from holdfast.stores.entries import (
    SEVERITY,
    Order,
    Process,
    ServerLine,
    ToolDetail,
    ToolEntry,
    ToolInProcess,
    ToolLine,
    line,
    ordered,
    pack,
    unpack_detail,
    unpack_servers,
    unpack_tool,
)
from holdfast.stores.ledger import Ledger
from holdfast.stores.store import RunStore
from holdfast.stores.trouble import errors_of, reads_rows

ORDERS = ("open", "close", "auto", "reset")
KEPT = 300_000  # milliseconds that the counters of a dead process stay: scrapes are not further apart
FORGOTTEN = 86_400_000  # milliseconds after which an order that holds no tool open or closed is deleted
_STATES = {"open": "open", "close": "closed", "auto": None, "reset": None}


class Board:
    """The board of *store*; costs nothing to make, and reading it creates no file."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._file = store.file

    # -- for readers ---------------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """The processes that are alive, oldest first."""
        return [process for process, living in self._processes() if living]

    def ended(self) -> list[tuple[Process, list[ToolEntry]]]:
        """The processes that ended lately, and what they last showed of their tools."""
        found: dict[str, tuple[Process, list[ToolEntry]]] = {
            process.id: (process, []) for process in self._dead() if process.at_ms > self._kept_since()
        }
        with errors_of(self._file):
            for id, data in self._file.fetch("tools") if found else ():
                if id in found:
                    found[id][1].append(unpack_tool(data))
        return list(found.values())

    def tools(self) -> list[ToolLine]:
        """One line per name of a tool, the worst first; also for names that are held by hand and no process has."""
        processes = self.processes()  # first: the orders they have seen must not be newer than their tools
        return self._lines(processes, self._file.fetch("tools"), {order.tool: order for order in self.orders()})

    def tool(self, name: str) -> ToolLine | None:
        """The line of one tool; None if nothing is known of it."""
        processes, rows = self.processes(), self._file.fetch("tools_of_name", name)
        lines = self._lines(processes, rows, {order.tool: order for order in self.orders() if order.tool == name})
        return lines[0] if lines else None

    def details(self, line: ToolLine) -> list[tuple[ToolInProcess, ToolDetail]]:
        """The details that the processes of *line* show of their tool; those that show none are left out."""
        with errors_of(self._file):
            found = {id: unpack_detail(data) for id, data in self._file.fetch("details_of_name", line.name)}
        return [(each, found[each.process]) for each in line.processes if each.process in found]

    def names(self) -> list[str]:
        """The names of all tools that a living process has, or that are held by hand."""
        living = {process.id for process in self.processes()}
        names = {name for process, name in self._file.fetch("tool_names") if process in living}
        return sorted(names | {order.tool for order in self.orders() if order.state is not None})

    def servers(self) -> list[ServerLine]:
        """The servers of all processes, by name."""
        lines = [
            ServerLine(
                process=process.id, host=process.host, proxy_pid=process.pid, proxy=process.name, at_ms=process.at_ms,
                server=server,
            )
            for process in self.processes()
            for server in process.servers
        ]  # fmt: skip
        return sorted(lines, key=lambda each: each.server.name)

    # -- orders --------------------------------------------------------------------------------------------------------

    def order(self, order: str, tools: Iterable[str]) -> None:
        """Tell all processes to open, close, auto or reset *tools*; on disk when it returns, taken up soon after."""
        checks.choice("order", order, ORDERS)
        names = list(dict.fromkeys(tools))
        for name in names:
            checks.tool_name(name)
        now = int(self._store.clock.time() * 1000)

        def write(ledger: Ledger) -> None:
            connection, sql = self._file.writing(), self._file.sql
            (last,) = connection.execute(sql("last_order")).fetchone()
            for number, name in enumerate(names, last + 1):
                row = (name, _STATES[order], number, number if order == "reset" else 0, now)
                connection.execute(sql("put_order"), row)
            connection.execute(sql("drop_old_orders"), (now - FORGOTTEN,))
            for (process,) in connection.execute(sql("process_ids")).fetchall():
                ledger.wake(process)

        self._store.writer.commit(write)

    def orders(self, after: int = -1) -> list[Order]:
        """The last order for each tool, if its number is above *after*, sorted by number."""
        with errors_of(self._file):
            return [_order(*row) for row in self._file.fetch("orders", after)]

    # -- for processes that show their tools ---------------------------------------------------------------------------

    def publish(
        self,
        process: Process,
        tools: Sequence[tuple[str, bytes]],
        gone: Sequence[str] = (),
        details: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Write *process* and its changed *tools* and *details*, packed; delete those *gone* and keep all others."""
        facts = (process.id, process.host, process.pid, process.kind, process.name)
        row = (*facts, process.started_at_ms, process.at_ms, process.until_ms, process.seen, pack(process.servers))

        def write(ledger: Ledger) -> None:
            connection, sql = self._file.writing(), self._file.sql
            connection.execute(sql("put_process"), row)
            connection.executemany(sql("put_tool"), [(process.id, name, entry) for name, entry in tools])
            connection.executemany(sql("put_detail"), [(process.id, name, detail) for name, detail in details])
            for statement in ("drop_tool", "drop_detail"):
                connection.executemany(sql(statement), [(process.id, name) for name in gone])

        self._store.writer.commit(write)

    def sweep(self) -> int:
        """Delete the rows of processes that died a while ago; return how many there were."""
        dead = [process.id for process in self._dead() if process.at_ms <= self._kept_since()]
        if dead:
            self._store.writer.commit(lambda ledger: self._drop(dead))
        return len(dead)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _drop(self, processes: Sequence[str]) -> None:
        connection, sql = self._file.writing(), self._file.sql
        for name in ("drop_process", "drop_tools_of_process", "drop_details_of_process"):
            connection.executemany(sql(name), [(process,) for process in processes])

    def _dead(self) -> list[Process]:
        return [process for process, living in self._processes() if not living]

    def _kept_since(self) -> float:
        return self._store.clock.time() * 1000 - KEPT

    def _processes(self) -> list[tuple[Process, bool]]:
        """All processes on the board, and whether each is alive."""
        with errors_of(self._file):
            found = [_process(row) for row in self._file.fetch("processes")]
        is_process_alive = self._store.ownership.is_process_alive
        return [(each, each.until_ms > 0 and is_process_alive(each.id, each.host, each.until_ms)) for each in found]

    def _lines(self, living: list[Process], rows: list[tuple[Any, ...]], orders: dict[str, Order]) -> list[ToolLine]:
        now = self._store.clock.time() * 1000
        processes = {process.id: process for process in living}
        servers = {server.name for process in processes.values() for server in process.servers}
        found: dict[str, list[ToolInProcess]] = {order.tool: [] for order in orders.values() if order.state is not None}
        with errors_of(self._file):
            for id, data in rows:
                if (process := processes.get(id)) is not None:
                    each = _in_process(process, data, orders)
                    found.setdefault(each.tool.name, []).append(each)
        held = {name: order.state for name, order in orders.items()}
        lines = [line(name, held.get(name), where, now, is_server=name in servers) for name, where in found.items()]
        return sorted(lines, key=lambda each: (not each.refuses, SEVERITY.get(each.state, 1), each.name))


def _in_process(process: Process, data: bytes, orders: dict[str, Order]) -> ToolInProcess:
    """One tool of one process, as it will be once the process has taken up the last order."""
    tool = unpack_tool(data)
    order = orders.get(tool.name)
    pending = order is not None and order.number > process.seen
    if order is not None and pending:
        tool = ordered(tool, order, process.seen)
    return ToolInProcess(
        process=process.id, host=process.host, pid=process.pid, kind=process.kind, process_name=process.name,
        at_ms=process.at_ms, pending=pending, tool=tool,
    )  # fmt: skip


@reads_rows
def _process(row: tuple[Any, ...]) -> Process:
    id, host, pid, kind, name, started, at, until, seen, servers = row
    return Process(
        id=str(id), host=str(host), pid=int(pid), kind=str(kind), name=str(name), started_at_ms=int(started),
        at_ms=int(at), until_ms=int(until), seen=int(seen), servers=unpack_servers(servers),
    )  # fmt: skip


@reads_rows
def _order(tool: str, state: str | None, number: int, reset: int) -> Order:
    return Order(str(tool), state, int(number), int(reset))
