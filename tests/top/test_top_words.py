"""What the screens of `holdfast top` say, without a terminal: nothing that is not so."""

from __future__ import annotations

from holdfast import MemoryRunStore
from holdfast.stores.entries import ServerEntry, ServerLine, ToolDetail, ToolEntry, ToolInProcess, ToolLine
from holdfast.top import servers, tool
from holdfast.top.reading import Look, Picture
from holdfast.top.runs import took


def test_a_run_that_has_not_begun_took_no_time() -> None:
    with MemoryRunStore() as store:
        run = store.create_run("default", "", run_id="queued")
        later = run.created_at_ms / 1000 + 9
        assert took(run, later) == ""

        store.record_event("queued", "run_started", {})
        assert took(store.snapshot("queued"), later) != ""


def test_a_server_that_nobody_has_asked_for_is_not_counted_as_not_ready() -> None:
    found = [ServerEntry(name=state, state=state) for state in ("ready", "idle", "failed")]
    lines = [ServerLine(process="p", host="h", proxy_pid=1, proxy="gateway", at_ms=0, server=each) for each in found]

    assert servers.summary(picture("servers")._replace(servers=lines)).plain == "3 servers · 1 not ready"


def test_a_tool_whose_calls_busier_ones_have_pushed_out_is_not_said_to_have_had_none() -> None:
    rare = ToolEntry(name="rare", calls=13)
    where = ToolInProcess(
        process="p", host="h", pid=1, kind="library", process_name="agent", at_ms=0, pending=False, tool=rare
    )
    line = ToolLine(name="rare", state="closed", calls=13, processes=[where])

    said = [text.plain for text in tool._recent(line, [(where, ToolDetail())], picture("tool"))]

    assert said[-1] == "  of the last calls of its processes, none was of this tool"


def picture(screen: str) -> Picture:
    return Picture(look=Look(screen), at=0.0, tools=[], speeds={})
