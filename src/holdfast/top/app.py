"""The program `holdfast top`: its bar, its five screens and the way between them.

Knows which screen is shown, what filters it, and which line is chosen; what a screen says is made in the module of its
name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Key
from textual.widgets import ContentSwitcher, Input, Static

from holdfast.errors import HoldfastError, printable
from holdfast.history import RunSnapshot
from holdfast.policy import PolicyBook
from holdfast.shipped import read_shipped
from holdfast.stores import RunStore
from holdfast.top import run as one_run
from holdfast.top import runs, servers, steering, tool, tools
from holdfast.top.asking import Ask, Reading, keys
from holdfast.top.calls import Story
from holdfast.top.ending import end_with_terminal
from holdfast.top.page import Page
from holdfast.top.reading import PAGE, Look, Picture
from holdfast.top.sheet import Sheet
from holdfast.top.steering import ORDERS, Deed
from holdfast.top.watching import Watcher
from holdfast.wording import one_line
from holdfast.wording.shown import resume_of

MOST_RUNS: Final = 5000
WIDE: Final = 140  # columns from which on calls and events are side by side
SAID: Final = 6.0  # seconds that a message stays
NOTHING_SAID: Final = (Text(""), 0.0)  # a message, and until when it is shown
SCREENS: Final = ("tools", "tool", "runs", "run", "servers")
UP: Final = {"tool": "tools", "run": "runs"}
LISTS: Final = {"tools": tools.contents, "runs": runs.contents, "servers": servers.contents}
SUMMARIES: Final = {"runs": runs.summary, "servers": servers.summary}
HINTS: Final = {
    "tools": "enter open  / filter  f failed  O C A R circuit",
    "tool": "esc back  f failed  O open  C close  A auto  R reset",
    "runs": "enter open  / filter  f failed  X cancel",
    "run": "enter in full  tab events  / filter  f failed  X cancel",
    "servers": "enter in full  / filter  f not ready",
}


class Top(App[None]):
    """Shows *store*, and tools that *book* names even before their first call.

    *named* is the store that the commands shown to the user must name, if they would not use it by default.
    """

    CSS = read_shipped(os.path.join(os.path.dirname(__file__), "style.tcss")).decode()
    ENABLE_COMMAND_PALETTE = False
    TITLE = "holdfast top"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as its class has it
        (0, "-narrow"),
        (WIDE, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-high")]  # noqa: RUF012
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

    def __init__(self, store: RunStore, book: PolicyBook | None = None, *, named: str | None = None) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.paused = False
        self.picture: Picture | None = None
        self._store = store
        self._clock = store.clock
        self._named = named
        self._watcher = Watcher(self, store, book)
        self._place = "tools"
        self._looks = {place: Look(place) for place in SCREENS}  # what each screen is about, and what filters it
        self._story = Story()
        self._complaint = ""
        self._said = NOTHING_SAID
        self._framed: dict[str, str] = {}  # what bar, summary and foot show, to redraw each only if it changes

    # -- the screen ----------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """A bar, a line about what is shown, the screens, and a line of keys."""
        yield Static(id="bar")
        yield Static(id="summary")
        with ContentSwitcher(id="screens", initial="tools"):
            yield Sheet(id="tools")
            yield Page(id="tool")
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
        """Start watching the store."""
        if not self.is_headless:
            end_with_terminal(self.exit)
        self._sheet("tools").focus()
        self._frame()
        self.run_worker(self._watcher.watch(), name="watch")

    async def on_unmount(self) -> None:
        """Wait for the last read of the store to end."""
        await self._watcher.close()

    def _sheet(self, name: str) -> Sheet:
        return self.query_one(f"#{name}", Sheet)

    def _main(self) -> Sheet | Page:
        """The widget that gets the keys on the current screen."""
        if self._place == "tool":
            return self.query_one("#tool", Page)
        return self._sheet("calls" if self._place == "run" else self._place)

    # -- looking -------------------------------------------------------------------------------------------------------

    def wanted(self) -> Look:
        """What to read for the current screen."""
        look = self._looks[self._place]
        return look._replace(after=self._story.last) if look.screen == "run" else look

    def _change(self, **what: Any) -> None:
        """Change what the current screen shows, and read it."""
        self._looks[self._place] = self._looks[self._place]._replace(**what)
        self.look_soon()

    def complain(self, message: str) -> None:
        """Show what is wrong with the store in the last line, until *message* is empty."""
        if message != self._complaint:
            self._complaint = message
            self._frame()

    def look_soon(self) -> None:
        """Read at once, even while paused: the user wants to see something else."""
        self.run_worker(self._watcher.look(), name="look")

    # -- showing -------------------------------------------------------------------------------------------------------

    def show(self, picture: Picture) -> bool:
        """Show what was read; true if there is more to be read at once."""
        if not self.is_running:  # the picture came while the program was ending
            return False
        self.picture = picture
        match picture.look.screen:
            case "run":
                self._show_run(picture)
            case "tool":
                page = self.query_one("#tool", Page)
                page.show(tool.lines(picture, page.size.width))
            case place:
                self._sheet(place).show(LISTS[place](picture))
        self._frame()
        return picture.events is not None and picture.events.has_more

    def _show_run(self, picture: Picture) -> None:
        run, page = picture.run, picture.events
        if run is not None and page is not None:
            self._story.add(page.events)
            if run.interrupted or run.status.is_terminal:
                self._story.abandon()
        self.query_one("#facts", Static).update(one_run.facts(picture, self._story.first, self._named))
        calls, log = self._sheet("calls"), self._sheet("events")
        room = -1
        while room != calls.room:  # the room for the bars is known once the columns before them have a width
            room = calls.room
            calls.show(one_run.call_contents(self._story, picture.look, picture.at, room))
        log.show(one_run.event_contents(self._story, log.size.width))

    def _frame(self) -> None:
        """Draw what is around the screens: bar, summary and foot."""
        if not self.is_running:
            return
        wordings = (("Holdfast  ", True), ("", True), ("", False))  # the first one that fits is used
        bars = [self._bar(title, named=named) for title, named in wordings]
        self._put("bar", next((bar for bar in bars if bar.cell_len <= self.size.width - 2), bars[-1]))
        self._put("summary", self._summary())
        said, until = self._said
        foot = said if self._clock.monotonic() < until else Text(f"? keys  q quit  {HINTS[self._place]}", style="dim")
        self._put("foot", Text(self._complaint, style="bold red") if self._complaint else foot)

    def _bar(self, title: str, *, named: bool) -> Text:
        """The screens, by name or (except for the current one) by number, and whether the view is live."""
        bar = Text(title, style="bold")
        for number, name in enumerate(SCREENS, 1):
            here = name == self._place
            label = f" {number} {name.capitalize()} " if named or here else f" {number} "
            bar.append(label, style="bold reverse" if here else "not bold")
        return bar.append(
            "   ‖ paused" if self.paused else "   ● live", style="bold yellow" if self.paused else "green"
        )

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
        if (own := SUMMARIES.get(picture.look.screen)) is not None:
            text = own(picture).append(" · ").append_text(text)
        look = self._looks[self._place]
        if look.failed:
            text.append("   failed only", style="bold yellow")
        if look.text:
            text.append(f"   like: {one_line(look.text, 60)}", style="bold yellow")
        return text

    def say(self, message: str, style: str = "bold") -> None:
        """Say something in the last line, for a while."""
        self._said = (Text(message, style=style), self._clock.monotonic() + SAID)
        self._frame()

    # -- moving and filtering ------------------------------------------------------------------------------------------

    def go(self, place: str, name: str | None = None) -> None:
        """Show another screen; *name* is the tool or run that it is about, if any."""
        self._place, self._said = place, NOTHING_SAID
        if name is not None and self._looks[place].name != name:
            self._looks[place] = Look(place, name)
            self._main().go_to_top()
            if place == "run":
                self._story = Story()
                self._sheet("events").go_to_top()
        self.query_one("#screens", ContentSwitcher).current = place
        self._close_filter()
        self.look_soon()

    async def action_go(self, place: str) -> None:
        """Go to a screen; Tool and Run show the last one looked at, else the worst tool or the newest run."""
        name = None
        with self._told():
            if place in UP and not self._looks[place].name:
                name = await self._first(place)
                if name is None:
                    self.say(f"there is no {place} yet")
                    return
            self.go(place, name)

    async def _first(self, place: str) -> str | None:
        if place == "tool":
            return self.picture.tools[0].name if self.picture is not None and self.picture.tools else None
        found = await self._watcher.do(lambda: self._store.list_runs(limit=1))
        return found[0].id if found else None

    def on_sheet_opened(self, message: Sheet.Opened) -> None:
        """Show the tool, run, server, call or event of a line."""
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
                if (event := self._story.event(key)) is not None:
                    self.push_screen(Reading("Event", list(one_run.detail([event]))))

    def on_sheet_moved(self) -> None:
        """Read more runs when the end comes near."""
        most = self._looks["runs"].most
        if self._place == "runs" and self._sheet("runs").at >= most - PAGE // 2 and most < MOST_RUNS:
            self._change(most=most + PAGE)

    def on_resize(self) -> None:
        """Lay out anew what depends on the width."""
        self._frame()
        if self.picture is not None and self._place in ("tool", "run"):
            self.call_after_refresh(self.show, self.picture)

    def action_leave(self) -> None:
        """Close and clear the filter; without one, go up to the list."""
        look = self._looks[self._place]
        if look.text or look.failed or self._is_filtering:
            self._close_filter()
            self._change(text="", failed=False)
        elif self._place in UP:
            self.go(UP[self._place])

    def action_filter(self) -> None:
        """Open the field of the filter."""
        if self._place == "tool":
            return
        field = self.query_one("#filter", Input)
        field.value = self._looks[self._place].text
        field.add_class("shown")
        self.set_focus(field)

    def on_key(self, event: Key) -> None:
        """Give the filter a key that was typed so soon after / that it still went to the previous widget."""
        field = self.focused
        if event.is_printable and isinstance(field, Input):  # keys that the field itself gets never come here
            event.stop().prevent_default()
            field.post_message(Key(event.key, event.character))

    @property
    def _is_filtering(self) -> bool:
        return self.query_one("#filter").has_class("shown")

    def _close_filter(self) -> None:
        """Hide the field of the filter, keep its text, and focus the screen."""
        self.query_one("#filter").remove_class("shown")
        self._main().focus()
        self._frame()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        if self._is_filtering:
            self._change(text=event.value.strip())

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._close_filter()

    def action_failed(self) -> None:
        """Switch between what failed and everything."""
        self._change(failed=not self._looks[self._place].failed)

    def action_pause(self) -> None:
        """Pause, or go on."""
        self.paused = not self.paused
        self._frame()
        if not self.paused:
            self.look_soon()

    def action_keys(self) -> None:
        """Show what the keys do."""
        self.push_screen(keys())

    # -- changing something --------------------------------------------------------------------------------------------

    def action_order(self, order: str) -> None:
        """After a question, hold a circuit open or closed, release or reset it, in all processes."""
        if self._place in ("tools", "tool"):
            name = self._looks["tool"].name if self._place == "tool" else self._sheet("tools").chosen
            if isinstance(name, str) and name:
                self._ask(steering.order(self._store, order, name))

    async def action_cancel(self) -> None:
        """After a question, cancel a run, whichever process runs it."""
        run = await self._chosen_run()
        if run is not None and run.status.is_terminal:
            self.say("the run is over")
        elif run is not None:
            self._ask(steering.cancel(self._store, run))

    async def _chosen_run(self) -> RunSnapshot | None:
        if not self._is_read():  # its screen was only just opened, and has not been read
            await self._watcher.look()
        picture = self.picture
        if picture is None or not self._is_read():
            return None
        if picture.runs is None:
            return picture.run
        chosen = self._sheet("runs").chosen
        return next((run for run in picture.runs.runs if run.id == chosen), None)

    def _is_read(self) -> bool:
        """True if the last picture is of the current screen, whatever its filter."""
        seen, wanted = self.picture, self.wanted()
        return seen is not None and (seen.look.screen, seen.look.name) == (wanted.screen, wanted.name)

    def _ask(self, deed: Deed) -> None:
        def answered(answer: bool | None) -> None:
            if answer:
                self.run_worker(self._act(deed), name="act")

        self.push_screen(Ask(deed), answered)

    async def _act(self, deed: Deed) -> None:
        with self._told():
            self.say(await self._watcher.do(deed.act))
        await self._watcher.look()

    async def action_copy(self) -> None:
        """Copy the command that resumes a run, if there is one."""
        run = await self._chosen_run()
        if run is None:
            return
        with self._told():
            command = await self._watcher.do(lambda: resume_of(self._store, run, self._named))
            if command is not None:
                self.copy_to_clipboard(command)
            self.say("no command goes on with this run" if command is None else f"copied: {printable(command, 300)}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Show the error in the last line if the code inside fails."""
        try:
            yield
        except HoldfastError as error:
            self.say(one_line(str(error), 500), "bold red")
