"""The common parts of the main screens: bars, panes, zoom, filter, sorting."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.containers import Container
from textual.screen import Screen

from hangtop.keys import query
from hangtop.screens.moving import Moving
from hangtop.screens.turns import Turns
from hangtop.terminal.columns import Order
from hangtop.terminal.spans import EMPTY, Line, cells, line, spread
from hangtop.views.footer import footer
from hangtop.views.timeline import slider
from hangtop.views.verdict.headline import headline, tabs
from hangtop.widgets.bar import Bar
from hangtop.widgets.filter_bar import FilterBar
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.line_pane import LinePane
from hangtop.widgets.line_table import LineTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from textual.app import ComposeResult
    from textual.widget import Widget
    from textual.widgets import Input

    from hangtop.application import HangtopApp
    from hangtop.source.state import State

NARROW = (100, 30)
"""Columns and lines below which only one pane is shown."""
PIN_FROM = 20
"""Lines of a screen from which the pinned pane stays beside the one that is shown alone."""


class Page(Moving, Screen[None], inherit_bindings=False):
    """A screen of panes over the shared state."""

    AUTO_FOCUS = None
    NAME: ClassVar[str]
    PANES: ClassVar[tuple[str, ...]]
    """Ids of the panes in Tab order; the first one has the initial focus."""
    PINNED: ClassVar[str | None] = None
    FILTERED: ClassVar[tuple[str, ...]] = ()
    """Ids of the panes that `/` filters; from any other pane it filters the first of them."""
    FIELDS: ClassVar[frozenset[str]] = frozenset()
    """Fields of their rows, for the filter."""

    def __init__(self) -> None:
        super().__init__()
        self.zoomed = False
        self.active = self.PANES[0]
        """The pane that keys work on, and the one shown when only one fits."""
        self.filter_text = ""
        self.filter_pane = next(iter(self.FILTERED), "")
        """The pane that the filter applies to, wherever the cursor is."""
        self.turns = Turns(self)

    # Shortcuts

    @property
    def hangtop(self) -> HangtopApp:
        """The app."""
        return cast("HangtopApp", self.app)

    @property
    def state(self) -> State:
        """The shared state."""
        return self.hangtop.state

    @property
    def active_pane(self) -> LinePane | None:
        """The pane that keys work on."""
        return self.pane(self.active) if self.is_mounted else None

    @property
    def active_table(self) -> LineTable[Any] | None:
        """The active pane, when it is a table."""
        pane = self.active_pane
        return pane if isinstance(pane, LineTable) else None

    def pane(self, name: str) -> LinePane:
        """Return a pane by id."""
        return self.query_one(f"#{name}", LinePane)

    # Layout

    def compose(self) -> ComposeResult:
        """Yield two bars above the panes, and two below."""
        yield Bar(pane_id="headline")
        yield Bar(pane_id="tabs")
        if self.state.taken is not None:
            yield Bar(pane_id="slider")
        with Container(id="body"):
            yield from self.compose_body()
        yield FilterBar()
        yield Bar(pane_id="crumbs")
        yield Bar(pane_id="foot")

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Focus the first pane."""
        self.focus_pane(self.PANES[0])

    def on_resize(self) -> None:
        """Arrange the panes for the new size."""
        self.lay_out()
        self.show()

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was shown."""
        wanted, self.hangtop.lead_pane = self.hangtop.lead_pane, None
        self.focus_pane(wanted if wanted in self.PANES else self.active)

    def on_descendant_focus(self) -> None:
        """Follow a change of focus by a click, or by Textual itself."""
        pane = self.focused
        if isinstance(pane, LinePane) and pane.id in self.PANES and pane.id != self.active:
            self.active = pane.id
            self.lay_out()
            self.show()

    @property
    def narrow(self) -> bool:
        """Whether only one pane fits."""
        size = self.app.size
        return size.width < NARROW[0] or size.height < NARROW[1]

    def lay_out(self) -> None:
        """Show all panes, or one of them and perhaps the pinned one."""
        alone = self.narrow or self.zoomed
        if not self.wanted(self.active):
            self.active = self.PANES[0]
        pinned = None if self.zoomed or self.app.size.height < PIN_FROM else self.PINNED
        if alone and self.active == pinned:
            pinned = None
        self.set_class(alone, "-alone")
        for name in self.PANES:
            pane = self.pane(name)
            shown = (not alone or name in (self.active, pinned)) and self.wanted(name)
            pane.display = shown
            pane.set_class(alone and name == pinned, "-pinned")
        for row in self.query("#body Container, #body Horizontal, #body Vertical"):
            row.display = any(child.display for child in row.children)

    def wanted(self, name: str) -> bool:
        """Return whether a pane has anything to show at all."""
        return True

    def do_next_pane(self) -> None:
        """Focus the next pane."""
        self._step_pane(1)

    def do_previous_pane(self) -> None:
        """Focus the previous pane."""
        self._step_pane(-1)

    def _step_pane(self, step: int) -> None:
        names = [name for name in self.PANES if self.wanted(name)]
        place = names.index(self.active) if self.active in names else 0
        self.focus_pane(names[(place + step) % len(names)])

    def focus_pane(self, name: str) -> None:
        """Give a pane the focus, and show it if it was hidden."""
        self.active = name
        self.lay_out()
        self.set_focus(self.pane(self.active))
        self.show()

    def do_zoom(self) -> None:
        """Show the active pane alone, or all panes again."""
        self.zoomed = not self.zoomed
        self.lay_out()
        self.show()

    # Showing

    def show(self) -> None:
        """Fill bars and panes from the state."""
        if not self.is_mounted or self.hangtop.page is not self:
            return
        self.turns.stop()
        self.fill()
        self.show_bars()

    def steps(self) -> Iterator[None]:
        """Fill the panes in steps, between which a key may be handled."""
        self.fill()
        yield

    def fill(self) -> None:
        """Fill the panes."""
        raise NotImplementedError

    def show_bars(self) -> None:
        """Show headline, tabs, crumbs and footer."""
        self.query_one("#tabs", Bar).show(
            lambda width: tabs(self.NAME, self.hangtop.keymap, width, files=self.state.files)
        )
        self.tick()
        self.query_one("#crumbs", Bar).show(self._crumbs)
        self.query_one("#foot", Bar).show(self._foot)

    def tick(self) -> None:
        """Update what changes with time alone."""
        bar = self.query_one_optional("#headline", Bar)
        if bar is None:
            return  # the screen is being closed
        state = self.state
        if state.taken is not None:
            line_of = partial(slider, state.history, state.shown, incomplete=state.incomplete)
            self.query_one("#slider", Bar).show(line_of)
        bar.show(
            lambda width: headline(
                state.snapshot,
                state.job,
                state.diagnosis,
                now=self.hangtop.real_now(),
                paused=state.paused,
                live=state.live,
                captured=state.taken is not None,
                pause=state.pause,
                width=width,
            )
        )

    def path(self) -> list[str]:
        """Return the parts of the location between job and cursor."""
        return []

    def _crumbs(self, width: int) -> Line:
        job = self.state.job
        parts = [(job.name or job.key) if job else "no job", *self.path()]
        told, role = self.hangtop.told
        right = line((told, role), " ") if told else self._pane_names() if self.narrow else EMPTY
        tail = EMPTY
        if self.query_one(FilterBar).display:
            parts, tail = [], line(("filter", "key"), (" Enter keeps it, Esc takes it away", "dim"))
        elif self.filter_text:
            tail = line("filter ", (self.filter_text, "warn"), ("  Esc clears", "dim"))
        room = width - cells(right) - (cells(tail) + 6 if tail else 3)
        # The filter and the end of the location matter more than its beginning.
        while len(parts) > (not tail) and len(" › ".join(parts)) > room:
            parts.pop(0)
        left = line(" ", (" › ".join(parts), "dim"), "   " if parts and tail else "", tail)
        return spread(left, right, width)

    def _pane_names(self) -> Line:
        """Return the panes that Tab cycles through, the shown one marked."""
        parts: list[tuple[str, str]] = [("Tab", "key")]
        for name in self.PANES:
            if self.wanted(name):
                parts += [(" ", ""), (name, "title" if name == self.active else "dim")]
        return line(*parts, " ")

    def _foot(self, width: int) -> Line:
        return footer(self.state.situation(self.NAME), self.hangtop.keymap, width)

    # Opening, and back

    def do_open(self) -> None:
        """Open the row under the cursor; a pane of text opens to the whole screen."""
        pane = self.active_pane
        if isinstance(pane, LineTable | ItemList):
            pane.open()
        else:
            self.do_zoom()

    def do_back(self) -> None:
        """Go up one level: zoom, filter, then the page that led here, or the overview."""
        if self.zoomed:
            self.do_zoom()
        elif self.filter_text:
            self.set_filter("")
        elif self.NAME != "overview":
            *trail, up = self.hangtop.trail or ["overview"]
            self.hangtop.go(up)
            self.hangtop.trail = trail

    # Filter and sorting

    def row_facts(self, item: Any) -> tuple[query.Fields, frozenset[int]]:
        """Return fields and ranks of a row, for the filter."""
        return {}, frozenset()

    def do_filter(self) -> None:
        """Open the filter line, and drop a filter of another pane."""
        name = self.active if self.active in self.FILTERED else self.FILTERED[0]
        if name != self.filter_pane:
            self.set_filter("")
            self.filter_pane = name
        self.query_one(FilterBar).open(self.filter_text)
        self.show_bars()

    def set_filter(self, text: str) -> str | None:
        """Filter the table; return what is wrong with the text, if anything."""
        table: LineTable[Any] = self.query_one(f"#{self.filter_pane}", LineTable)
        text = text.strip()
        accept = None
        if text:
            try:
                match = query.parse(text, self.FIELDS)
            except ValueError as error:
                return str(error)

            def accept(item: Any) -> bool:
                values, ranks = self.row_facts(item)
                return match(values, ranks, table.row_text(item))

        self.filter_text = text
        none = line((f"No row passes the filter {text!r}; Esc clears it.", "dim"))
        table.set_filter(accept, none)
        self.show_bars()
        return None

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed; show an error and keep the last valid filter."""
        event.stop()
        self.hangtop.tell(self.set_filter(event.value) or "", "warn")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter on Enter."""
        event.stop()
        self.query_one(FilterBar).close()
        self.show_bars()

    def on_filter_bar_left(self) -> None:
        """Remove the filter on Esc."""
        self.query_one(FilterBar).close()
        self.set_filter("")

    def do_sort_next(self) -> None:
        """Sort by the next column."""
        self._sort(1)

    def do_sort_previous(self) -> None:
        """Sort by the previous column."""
        self._sort(-1)

    def _sort(self, step: int) -> None:
        table = self.active_table
        if table is None or len(columns := table.sort_columns()) < 2:
            self.hangtop.tell("this pane is not a table that can be sorted", "warn")
            return
        place = (columns.index(table.order.column) + step) % len(columns)
        table.set_order(Order(columns[place], table.order.inverted))
        self.show()

    def do_invert(self) -> None:
        """Reverse the order."""
        table = self.active_table
        if table is None:
            self.hangtop.tell("this pane is not a table that can be sorted", "warn")
            return
        table.set_order(Order(table.order.column, not table.order.inverted))
        self.show()

    # For the actions that keep things

    def editor_place(self) -> tuple[str, int] | None:
        """Return the file and line that `V` opens."""
        return None
