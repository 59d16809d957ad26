"""The program `holdfast top`: its bar, its five screens and the way between them.

Everything it shows is read in one thread, about once a second and sooner when the store tells of a change; nothing in
the event loop waits for the store.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import ClassVar, Final, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import ContentSwitcher, Input, Static

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreError, in_words, printable
from holdfast.history import RunSnapshot
from holdfast.policy import PolicyBook
from holdfast.stores import RunStore
from holdfast.stores.bell import Listener
from holdfast.stores.board import Board
from holdfast.top import run as one_run
from holdfast.top import runs, servers, tool, tools
from holdfast.top.asking import Ask, Question, Reading, keys
from holdfast.top.calls import Story
from holdfast.top.reading import Look, Picture, Reader
from holdfast.top.sheet import Sheet
from holdfast.wording import one_line

R = TypeVar("R")

PERIOD: Final = 1.0  # seconds between two looks where nothing tells of a change
GAP: Final = 0.2  # seconds between two looks, at least
SHARE: Final = 4  # times as long as a look took, nothing is read
PAGE: Final = 100  # runs that are read, and as many more whenever the end comes near
MOST_RUNS: Final = 5000
WIDE: Final = 140  # columns from which on calls and events are side by side
REASON: Final = "cancelled from holdfast top"
SCREENS: Final = ("tools", "tool", "runs", "run", "servers")
UP: Final = {"tool": "tools", "run": "runs"}
ORDERS: Final = {
    "open": (
        "Hold open the circuit of",
        "Every call is refused, in every process and in those to come, until A or R.",
        "is held open",
    ),
    "close": (
        "Hold closed the circuit of",
        "Every call passes and no failure counts, until A or R.",
        "is held closed",
    ),
    "auto": ("Let go of the circuit of", "It opens and closes by itself again.", "decides by itself"),
    "reset": (
        "Reset the circuit of",
        "It closes, its failures are forgotten, and nobody holds it any more.",
        "is reset",
    ),
}
HINTS: Final = {
    "tools": "enter open  / filter  f failed  O C A R circuit",
    "tool": "esc back  f failed  O open  C close  A auto  R reset",
    "runs": "enter open  / filter  f failed  X cancel",
    "run": "enter in full  tab events  / filter  f failed  X cancel",
    "servers": "enter in full  / filter  f not ready",
}


class Top(App[None]):
    """Shows *store*, and what *book* says of tools that nobody has called yet."""

    CSS_PATH = "style.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "holdfast top"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as its class has it
        (0, "-narrow"),
        (WIDE, "-wide"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"go('{name}')", show=False) for number, name in enumerate(SCREENS, 1)),
        Binding("slash", "filter", show=False),
        Binding("f", "failed", show=False),
        Binding("space", "pause", show=False),
        Binding("escape", "leave", show=False),
        Binding("question_mark", "keys", show=False),
        Binding("y", "copy", show=False),
        *(Binding(order[0].upper(), f"order('{order}')", show=False) for order in ORDERS),
        Binding("X", "cancel", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, store: RunStore, clock: Clock, book: PolicyBook | None = None) -> None:
        super().__init__(ansi_color=True)
        self.paused = False
        self.picture: Picture | None = None
        self._store = store
        self._clock = clock
        self._reader = Reader(store, book)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="holdfast-top")
        self._place = "tools"
        self._names = {"tool": "", "run": ""}
        self._texts = dict.fromkeys(SCREENS, "")
        self._failed = dict.fromkeys(SCREENS, False)
        self._most = PAGE
        self._story = Story()
        self._looking = self._again = False
        self._complaint = ""
        self._said = Text("")
        self._framed: dict[str, str] = {}  # what is around the screens, to draw it again only if it is different

    # -- the screen ----------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """A bar, a line about what is shown, the screens, and a line of keys."""
        yield Static(id="bar")
        yield Static(id="summary")
        with ContentSwitcher(id="screens", initial="tools"):
            yield Sheet(id="tools")
            yield Sheet(id="tool", choosable=False)
            yield Sheet(id="runs")
            with Container(id="run"):
                yield Static(id="facts")
                with Container(id="run_panes"):
                    yield Sheet(id="calls", stays="end")
                    yield Sheet(id="events", stays="top")
            yield Sheet(id="servers")
        yield Input(id="filter", compact=True, placeholder="filter")
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Begin to look; a signal ends it as q does, so that the terminal is left as it was."""
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._sheet("tools").focus()
        self._frame()
        self.run_worker(self._watch(), name="watch")

    async def on_unmount(self) -> None:
        """Wait for the last look to end."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _sheet(self, name: str) -> Sheet:
        return self.query_one(f"#{name}", Sheet)

    def _main(self) -> Sheet:
        """The sheet that the keys of the place are for."""
        return self._sheet("calls" if self._place == "run" else self._place)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look again and again."""
        with ExitStack() as stack:
            listener: Listener | None = None
            while True:
                began = self._clock.monotonic()
                if not self.paused:
                    await self.look()
                await self._clock.asleep(max(GAP, SHARE * (self._clock.monotonic() - began)))
                listener = listener or self._listener(stack)
                if listener is None or listener.closed:
                    listener = None
                    await self._clock.asleep(PERIOD)
                else:
                    await listener.await_(PERIOD)

    def _listener(self, stack: ExitStack) -> Listener | None:
        """Hears of changes, where there is something to hear yet."""
        try:
            return stack.enter_context(self._store.listen())
        except StoreError:  # no folder yet; until there is one we look every second
            return None

    async def look(self) -> None:
        """Read what is to be seen and show it; asked while it reads, it reads once more."""
        self._again = True
        if self._looking:
            return
        self._looking = True
        try:
            while self._again:
                self._again = False
                await self._look_once()
        finally:
            self._looking = False

    async def _look_once(self) -> None:
        look = self._wanted()
        try:
            picture = await self._in_thread(lambda: self._reader.look(look))
        except HoldfastError as error:
            self._complaint = f"the store cannot be read: {one_line(in_words(error), 500)}"
            self._frame()
            return
        self._complaint = ""
        if look == self._wanted():
            self._show(picture)
        else:
            self._again = True

    async def _in_thread(self, fn: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn)

    def _wanted(self) -> Look:
        place = self._place
        return Look(
            place,
            self._names.get(place, ""),
            self._texts[place],
            self._failed[place],
            self._most if place == "runs" else PAGE,
            self._story.last if place == "run" else -1,
        )

    def look_soon(self) -> None:
        """Read at once, though it may be paused: somebody wants to see something else."""
        self.run_worker(self.look(), name="look")

    # -- showing -------------------------------------------------------------------------------------------------------

    def _show(self, picture: Picture) -> None:
        self.picture = picture
        match picture.look.screen:
            case "tools":
                self._sheet("tools").show(tools.contents(picture))
            case "tool":
                sheet = self._sheet("tool")
                sheet.show(tool.contents(picture, sheet.size.width))
            case "runs":
                self._sheet("runs").show(runs.contents(picture))
            case "run":
                self._show_run(picture)
            case "servers":
                self._sheet("servers").show(servers.contents(picture))
        self._frame()

    def _show_run(self, picture: Picture) -> None:
        if picture.events is not None:
            self._story.add(picture.events.events)
            self._again = self._again or picture.events.has_more
        self.query_one("#facts", Static).update(one_run.facts(picture))
        calls, log = self._sheet("calls"), self._sheet("events")
        for _ in range(2):  # how long the bars may be shows when the names have found their place
            calls.show(one_run.call_contents(self._story, picture.look, picture.at, calls.room))
        log.show(one_run.event_contents(self._story, log.size.width))

    def _frame(self) -> None:
        """What is around the screens."""
        bar = Text("Holdfast  ", style="bold")
        for number, name in enumerate(SCREENS, 1):
            style = "bold reverse" if name == self._place else "not bold"
            bar.append(f" {number} {name.capitalize()} ", style=style)
        bar.append("   ‖ paused" if self.paused else "   ● live", style="bold yellow" if self.paused else "green")
        self._put("bar", bar)
        self._put("summary", self._summary())
        foot = self._said if self._said.plain else Text(f"? keys  q quit  {HINTS[self._place]}", style="dim")
        self._put("foot", Text(self._complaint, style="bold red") if self._complaint else foot)

    def _put(self, id: str, text: Text) -> None:
        text.no_wrap, text.overflow = True, "ellipsis"
        if (shown := text.markup) != self._framed.get(id):
            self._framed[id] = shown
            self.query_one(f"#{id}", Static).update(text)

    def _summary(self) -> Text:
        picture = self.picture
        if picture is None:
            return Text("reading the store …", style="dim")
        text = tools.summary(picture.tools)
        if picture.look.screen == "runs":
            text = runs.summary(picture).append(" · ").append_text(text)
        elif picture.look.screen == "servers":
            text = servers.summary(picture).append(" · ").append_text(text)
        if self._failed[self._place]:
            text.append("   failed only", style="bold yellow")
        if self._texts[self._place]:
            text.append(f"   like: {one_line(self._texts[self._place], 60)}", style="bold yellow")
        return text

    def say(self, message: str, style: str = "bold") -> None:
        """Say something in the last line, until the next key."""
        self._said = Text(message, style=style)
        self._frame()

    # -- going about ---------------------------------------------------------------------------------------------------

    def go(self, place: str, name: str | None = None) -> None:
        """Show another screen; of *name*, if it is about one thing."""
        self._said = Text("")
        if name is not None and self._names.get(place) != name:
            self._names[place] = name
            self._forget(place)
        self._place = place
        self.query_one("#screens", ContentSwitcher).current = place
        self._hide_filter()
        self._main().focus()
        self._frame()
        self.look_soon()

    def _forget(self, place: str) -> None:
        self._texts[place], self._failed[place] = "", False
        if place == "run":
            self._story = Story()
            self._sheet("events").forget()
        (self._sheet("calls") if place == "run" else self._sheet(place)).forget()

    async def action_go(self, place: str) -> None:
        """To a screen; for one tool or run, to the last that was looked at, else the worst or the newest."""
        name = None
        if place in self._names and not self._names[place]:
            name = await self._first(place)
            if name is None:
                self.say(f"there is no {place} yet")
                return
        self.go(place, name)

    async def _first(self, place: str) -> str | None:
        if place == "tool":
            return self.picture.tools[0].name if self.picture is not None and self.picture.tools else None
        found = await self._in_thread(lambda: self._store.list_runs(limit=1))
        return found[0].id if found else None

    def on_sheet_opened(self, message: Sheet.Opened) -> None:
        """See more of a line."""
        key = message.key
        match message.sheet.id:
            case "tools":
                self.go("tool", str(key))
            case "runs":
                self.go("run", str(key))
            case "servers":
                for line in (self.picture and self.picture.servers) or []:
                    if servers.key(line) == key:
                        self.push_screen(Reading(printable(line.server.name, 200), list(servers.detail(line))))
            case "calls":
                for call in self._story.calls:
                    if call.sequence == key:
                        self.push_screen(Reading(one_line(call.name, 200), list(one_run.detail(call.events))))
            case "events":
                assert isinstance(key, int)
                self.push_screen(Reading("Event", list(one_run.detail([self._story.events[key]]))))

    def on_sheet_moved(self) -> None:
        """Read more runs when the end comes near."""
        sheet = self._sheet("runs")
        if self._place == "runs" and sheet.at >= self._most - PAGE // 2 and self._most < MOST_RUNS:
            self._most += PAGE
            self.look_soon()

    def on_resize(self) -> None:
        """Lay out anew what depends on the width."""
        if self.picture is not None and self._place in ("tool", "run"):
            self.call_after_refresh(self._show, self.picture)

    def action_leave(self) -> None:
        """Close, clear, or go up."""
        if self._texts[self._place] or self._failed[self._place] or self.query_one("#filter").has_class("shown"):
            self._texts[self._place], self._failed[self._place] = "", False
            self._hide_filter()
            self._main().focus()
            self.look_soon()
        elif self._place in UP:
            self.go(UP[self._place])

    def action_filter(self) -> None:
        """Let only some lines through."""
        field = self.query_one("#filter", Input)
        if self._place == "tool":
            return
        field.value = self._texts[self._place]
        field.add_class("shown")
        field.focus()

    def _hide_filter(self) -> None:
        self.query_one("#filter").remove_class("shown")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while somebody types."""
        if self.query_one("#filter").has_class("shown"):
            self._texts[self._place] = event.value.strip()
            self.look_soon()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the lines."""
        self._hide_filter()
        self._main().focus()
        self._frame()

    def action_failed(self) -> None:
        """Show what failed, or everything."""
        self._failed[self._place] = not self._failed[self._place]
        self.look_soon()

    def action_pause(self) -> None:
        """Stand still, or go on."""
        self.paused = not self.paused
        self._frame()
        if not self.paused:
            self.look_soon()

    def action_keys(self) -> None:
        """Show what the keys do."""
        self.push_screen(keys())

    # -- changing something --------------------------------------------------------------------------------------------

    def action_order(self, order: str) -> None:
        """Ask, and have a circuit opened, closed, let go of or reset, in all processes."""
        name = self._names["tool"] if self._place == "tool" else self._sheet("tools").chosen
        if self._place not in ("tools", "tool") or not isinstance(name, str) or not name:
            return
        question, note, done = ORDERS[order]
        shown = printable(name, 200)

        def act() -> str:
            Board(self._store).order(order, [name])
            return f"{shown} {done}"

        self._ask(Question(f"{question}", shown, note), act)

    def action_cancel(self) -> None:
        """Ask, and cancel a run, whichever process runs it."""
        run = self._chosen_run()
        if run is None:
            return
        if run.status.is_terminal:
            self.say("the run is over")
            return
        prompt = f" ({one_line(run.prompt, 60)})" if run.prompt else ""
        note = "Its process is told; what it has finished stays."
        note = note if run.owner else "Nobody works on it now; it ends at once."

        def act() -> str:
            answer = self._store.handle(run.id).cancel(REASON)
            return f"run {printable(run.id, 200)}: {answer.replace('_', ' ')}"

        self._ask(Question("Cancel the run", f"{printable(run.id, 200)}{prompt}", note), act)

    def _chosen_run(self) -> RunSnapshot | None:
        if self.picture is None:
            return None
        if self._place == "run":
            return self.picture.run
        found: Sequence[RunSnapshot] = self.picture.runs.runs if self.picture.runs is not None else ()
        return (
            next((run for run in found if run.id == self._sheet("runs").chosen), None)
            if self._place == "runs"
            else None
        )

    def _ask(self, question: Question, act: Callable[[], str]) -> None:
        def answered(answer: bool | None) -> None:
            if answer:
                self.run_worker(self._act(act), name="act")

        self.push_screen(Ask(question), answered)

    async def _act(self, act: Callable[[], str]) -> None:
        try:
            self.say(await self._in_thread(act))
        except HoldfastError as error:
            self.say(one_line(in_words(error), 500), "bold red")
        await self.look()

    def action_copy(self) -> None:
        """Copy the command that goes on with a run."""
        run = self._chosen_run()
        if run is not None:
            self.copy_to_clipboard(one_run.resume(run))
            self.say(f"copied: {printable(one_run.resume(run), 300)}")
