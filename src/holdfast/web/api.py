"""The API: shows tools, servers and runs, takes orders, and streams. One method a route; threads do what blocks."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import IO
from urllib.parse import quote

from msgspec import structs
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from holdfast.errors import HoldfastError, RunNotFound, in_words
from holdfast.history import CancelResult, EventPage, RunStatus
from holdfast.stores.entries import ToolLine
from holdfast.stores.searching import ALIVE, INTERRUPTED, Wanted, search
from holdfast.telemetry.prometheus import CONTENT_TYPE, StoreMetrics
from holdfast.web import answers, asking
from holdfast.web.answers import Problem, answer, detail_line, encode, view
from holdfast.web.asking import Question
from holdfast.web.desk import Desk
from holdfast.web.feed import Feed
from holdfast.web.sse import BEAT, SIGN, EventStream, message, note
from holdfast.wording.shown import resume_of

PIECE = 64  # events that are read at once for a stream
IN_MEMORY = 2**20  # bytes up to which an export is kept in memory instead of a file
CHUNK = 2**16


class Api:
    """Answers requests from *desk*'s store."""

    def __init__(self, desk: Desk, feed: Feed) -> None:
        self._desk = desk
        self._feed = feed
        self._metrics = StoreMetrics(desk.store)

    async def health(self, question: Question) -> Response:
        """Say that the server is alive, without asking the store."""
        return answer(answers.Health())

    async def metrics(self, question: Question) -> Response:
        """The metrics of all processes, for Prometheus."""
        text = await self._desk.run(self._metrics.render)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    # -- tools and servers ---------------------------------------------------------------------------------------------

    async def tools(self, question: Question) -> Response:
        """All tools, the worst first."""
        found = await self._desk.run(self._desk.tools.all)
        return answer(answers.Tools(at_ms=self._desk.now_ms(), tools=found))

    async def tool(self, question: Question) -> Response:
        """One tool with all that is known of it."""
        name = question.named("name")
        return answer(await self._desk.run(self._one_tool, name))

    async def order(self, question: Question) -> Response:
        """Open, close, auto or reset a tool in all processes."""
        name, verb = question.named("name"), question.request.url.path.rpartition("/")[2]
        await question.reason()  # is not kept, but a mistake in it is reported
        return answer(answers.Ordered(tool=await self._desk.run(self._order, verb, name)))

    async def servers(self, question: Question) -> Response:
        """All servers behind proxies."""
        found = await self._desk.run(self._desk.board.servers)
        return answer(answers.Servers(at_ms=self._desk.now_ms(), servers=found))

    def _one_tool(self, name: str) -> answers.OneTool:
        line = self._line(name)
        details = [detail_line(*each) for each in self._desk.tools.details(line)]
        return answers.OneTool(at_ms=self._desk.now_ms(), tool=line, details=details)

    def _order(self, verb: str, name: str) -> ToolLine:
        if verb in ("auto", "reset") or not name.isprintable():  # open and close hold for later processes, too
            self._line(name)
        self._desk.board.order(verb, [name])
        return self._desk.tools.one(name) or ToolLine(name=name, state="closed")

    def _line(self, name: str) -> ToolLine:
        line = self._desk.tools.one(name)
        if line is None:
            raise Problem(404, "tool_not_found", "no process shows a tool of this name", "see /api/tools")
        return line

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def runs(self, question: Question) -> Response:
        """The newest runs that match the filters."""
        limit = question.number("limit", asking.USUAL_RUNS, least=1, most=asking.MOST_RUNS)
        wanted, before = question.wanted(), question.given.get("before")
        page = await self._desk.run(search, self._desk.store, wanted, limit=limit, before=before)
        runs = [view(run) for run in page.runs]
        return answer(answers.Runs(at_ms=self._desk.now_ms(), runs=runs, next=page.next))

    async def run(self, question: Question) -> Response:
        """One run, with its texts in full."""
        return answer(await self._desk.run(self._one_run, question.named("id")))

    async def events(self, question: Question) -> Response:
        """Some events of a run."""
        after = question.number("after", -1, least=-1, most=asking.LAST)
        limit = question.number("limit", asking.USUAL_EVENTS, least=1, most=asking.MOST_EVENTS)
        page = await self._desk.run(self._desk.store.event_page, question.named("id"), after, limit)
        return answer(page)

    async def cancel(self, question: Question) -> Response:
        """Cancel one run."""
        run_id, reason = question.named("id"), await question.reason()
        result = await self._desk.run(self._desk.store.cancel, run_id, reason)
        if result is CancelResult.NOT_FOUND:
            raise RunNotFound(run_id)
        return answer(answers.Cancelled(result=result))

    async def cancel_many(self, question: Question) -> Response:
        """Cancel all runs that match the filters and have not ended."""
        if question.given.get("all", "true") != "true":
            raise asking.bad("all: must be true")
        if not question.given.keys() & {*asking.FILTERS, "all"}:
            raise asking.bad("no filter was given", "give status, session, tool or text; or all=true for every run")
        limit = question.number("limit", asking.USUAL_CANCELLED, least=1, most=asking.MOST_RUNS)
        wanted, before, reason = question.wanted(), question.given.get("before"), await question.reason()
        return answer(await self._desk.run(self._cancel_many, wanted, limit, before, reason))

    async def export(self, question: Question) -> Response:
        """A run as JSON lines, to be kept as a file."""
        run_id = question.named("id")
        file = await self._desk.run(self._export, run_id)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)[:100]
        headers = {"Content-Disposition": f'attachment; filename="run-{name}.jsonl"'}
        return StreamingResponse(self._pieces(file), media_type="application/jsonl", headers=headers)

    def _one_run(self, run_id: str) -> answers.OneRun:
        run = self._desk.store.snapshot(run_id)
        return answers.OneRun(
            at_ms=self._desk.now_ms(),
            run=view(run, whole=True),
            resume=resume_of(self._desk.store, run, self._desk.named_store),
            export=f"/api/runs/{quote(run_id, safe='')}/export",
        )

    def _cancel_many(self, wanted: Wanted, limit: int, before: str | None, reason: str | None) -> answers.ManyCancelled:
        if wanted.status is None:
            wanted = structs.replace(wanted, status=ALIVE)
        elif wanted.status not in (ALIVE, INTERRUPTED) and RunStatus(wanted.status).is_terminal:
            return answers.ManyCancelled(requested=0, already_finished=0, ids=[], next=None)
        page = search(self._desk.store, wanted, limit=limit, before=before)
        results = [(run.id, self._desk.store.cancel(run.id, reason)) for run in page.runs]
        requested = [run_id for run_id, result in results if result is CancelResult.REQUESTED]
        return answers.ManyCancelled(
            requested=len(requested), already_finished=len(results) - len(requested), ids=requested, next=page.next
        )

    def _export(self, run_id: str) -> IO[str]:
        self._desk.store.snapshot(run_id)  # raises RunNotFound if it does not exist
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY, "w+", encoding="utf-8", newline="\n"))
            self._desk.store.export(file, [run_id])
            file.seek(0)
            stack.pop_all()  # `_pieces` closes the file
        return file

    async def _pieces(self, file: IO[str]) -> AsyncIterator[str]:
        try:
            while piece := await self._desk.run_unlimited(file.read, CHUNK):
                yield piece
        finally:
            file.close()

    # -- streams -------------------------------------------------------------------------------------------------------

    async def feed(self, question: Question) -> ASGIApp:
        """One stream for a whole page."""
        return EventStream(self._desk, self._feed.listen(question.request.headers.get("last-event-id")))

    async def stream(self, question: Question) -> ASGIApp:
        """The events of a run, the past and then the live."""
        last = question.request.headers.get("last-event-id")
        name, told = ("Last-Event-ID", last) if last else ("after", question.given.get("after"))
        after = asking.number(name, told, -1, least=-1, most=asking.LAST)
        run_id = question.named("id")
        await self._desk.run(self._desk.store.event_page, run_id, after, 1)  # an error is raised now, not in the stream
        return EventStream(self._desk, self._follow(run_id, after))

    async def _follow(self, run_id: str, after: int) -> AsyncIterator[bytes]:
        try:
            async for piece in self._events(run_id, after):
                yield piece
        except HoldfastError as error:  # the run was there when the stream began
            yield note("store", in_words(error))

    async def _events(self, run_id: str, after: int) -> AsyncIterator[bytes]:
        with self._desk.store.listen() as listener:
            while not listener.closed:
                status, page = await self._desk.run_unlimited(self._look, run_id, after)
                if page.gap:
                    yield message(encode(answers.Gap(first_available=page.first_available)), event="gap")
                for event in page.events:
                    yield message(encode(event), id=event.sequence)
                after = page.next_after
                if not page.has_more:
                    if status.is_terminal:
                        yield message(encode(answers.End(status=status)), event="end")
                        return
                    if not await listener.await_(BEAT):
                        yield SIGN

    def _look(self, run_id: str, after: int) -> tuple[RunStatus, EventPage]:
        """Read the status before the events: if the run has ended by then, no event can be missing."""
        status = self._desk.store.snapshot(run_id).status
        return status, self._desk.store.event_page(run_id, after, PIECE)
