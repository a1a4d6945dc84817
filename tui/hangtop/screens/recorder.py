"""Screen 4: process groups, their collectives by sequence number, and the missing ranks."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal

from hangtop.screens.outliers import OutlierPage
from hangtop.screens.page import PIN_FROM
from hangtop.terminal.spans import EMPTY, line, wrap
from hangtop.views.common import rank_key
from hangtop.views.recorder import members as who
from hangtop.views.recorder import recorder as views
from hangtop.views.recorder import source as sources
from hangtop.widgets.grid_pane import GridPane
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from hangtop_core.analysis.flight.groups import GroupLine
from hangtop_core.analysis.flight.sequences import NumberLine
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.widget import Widget

    from hangtop.keys import query
    from hangtop.source.recordings import Seen
    from hangtop.terminal.spans import Line

TALL = 44
"""Lines of a screen from which stacks and sources are shown at the same time."""
WIDE = 120
"""Columns from which a rank's stack is shown beside the entry of the waiting ranks."""
PINNED_ROWS = 4
"""Groups that stay in view above another pane on a small screen."""
ABOVE = {
    "numbers": "groups",
    "members": "numbers",
    "grid": "numbers",
    "stack": "members",
    "waiting": "members",
    "source": "groups",
}
"""The pane that Esc leads to from each pane."""


class RecorderPage(OutlierPage):
    """Groups, sequence numbers, members, joined ranks, stacks, source."""

    CSS_PATH = "recorder.tcss"
    NAME = "recorder"
    PANES = ("groups", "numbers", "members", "grid", "stack", "waiting", "source")
    PINNED = "groups"
    FILTERED = ("groups", "numbers", "members")
    NONE_STANDS_OUT = ("nothing is under way in any group", "good")
    STANDS_OUT = "{} of {} that are not over"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"group", "size", "state", "seq", "op", "shape", "rank", "node", "joined", "last", "now"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen | None = None
        self.live = who.Live()
        self._members_of: tuple[object, ...] | None = None
        """What the table of members was filled for: it is long, and changes rarely."""
        self._of = ""
        """The group that the sequence numbers were filled for."""
        self._laid_for = (False, -1)
        """Whether there was a snapshot, and the number of groups, when panes were laid out."""
        self._placed = ""
        """The number under which the cursor was put; while it is there, it follows the hang."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield LineTable[GroupLine]("PROCESS GROUPS", pane_id="groups", columns=views.GROUP_COLUMNS)
        yield LineTable[NumberLine]("COLLECTIVES", pane_id="numbers", columns=views.NUMBER_COLUMNS)
        with Horizontal(id="who"):
            yield LineTable[who.MemberRow]("MEMBERS", pane_id="members", columns=who.MEMBER_COLUMNS)
            yield GridPane(
                "WHO JOINED",
                pane_id="grid",
                marks={str(how): mark for how, mark in who.MARKS.items()},
                plain=frozenset({"joined", "over"}),
            )
        with Horizontal(id="lower"):
            yield TextPane("STACK NOW", pane_id="stack", indent=4)
            yield TextPane("WAITING", pane_id="waiting", indent=4)
            yield TextPane("SOURCE", pane_id="source")

    # Panes

    def table(self, name: str) -> LineTable[Any]:
        """Return a table by id."""
        return self.query_one(f"#{name}", LineTable)

    def wanted(self, name: str) -> bool:
        """Return whether a pane is shown; without any recorder there is one, which says why."""
        return name == "groups" or (self.seen is not None and bool(self.seen.groups))

    def lay_out(self) -> None:
        """Lay out stacks side by side where they fit; the source replaces them when chosen."""
        super().lay_out()
        alone, height = self.narrow or self.zoomed, self.app.size.height
        groups = self.pane("groups")
        rows = len(self.table("groups").items)
        if self._pins_groups() and self.wanted("numbers") and height >= PIN_FROM:
            # Lines below few groups are better used for the numbers of the group under the cursor.
            self.pane("numbers").display = True
        elif (alone and self.active == "groups") or not self.wanted("numbers"):
            groups.styles.height = "1fr"
            return
        most = PINNED_ROWS if alone else max(height // 6, 3)
        groups.styles.height = max(min(rows, most), 1) + 3
        if not alone and self.wanted("source"):
            self._lay_out_source()

    def _pins_groups(self) -> bool:
        return self.narrow and not self.zoomed and self.active == "groups"

    def _lay_out_source(self) -> None:
        """Show the source below the stacks on a tall screen, else in their place when chosen."""
        size, active = self.app.size, self.active
        tall, wide = size.height >= TALL, size.width >= WIDE
        stacks = tall or active != "source"
        self.pane("source").display = tall or active == "source"
        self.pane("waiting").display = stacks and (wide or active == "waiting")
        self.pane("stack").display = stacks and (wide or active != "waiting")

    # Filling

    def fill(self) -> None:
        """Fill the panes."""
        job = self.state.job
        self.seen = seen = self.hangtop.recordings.look(job)
        table = self.table("groups")
        total = len(seen.picture.world.ranks) if seen is not None else 0
        note = sources.how_read(seen, max(total, len(job.ranks) if job else 0), short=self.narrow)
        title = line(("PROCESS GROUPS", "title"))
        if seen is None:
            table.retitle(title, note if job is not None else EMPTY)
            table.set_items([], self._nothing())
        else:
            order = table.order.column or "first to stall"
            title = line(title, ("  sort ", "label"), order)
            counts = views.group_counts(seen.groups, short=self.narrow)
            counts = line(counts, "  " if self.narrow else "   ", note)
            table.retitle(title, counts, views.countdown_line(seen, self._at))
            if seen.groups and seen.groups is table.given and table.items:
                table.paint()
            else:
                table.set_items(seen.groups, self._nothing())
            self._lead(seen)
        if (seen is not None, len(table.items)) != self._laid_for:
            self._laid_for = (seen is not None, len(table.items))
            self.lay_out()
        self._fill_numbers()

    @property
    def _at(self) -> float:
        """Return the time of the snapshot, which the headline counts from, too."""
        snapshot = self.state.snapshot
        return snapshot.at if snapshot is not None else self.hangtop.now()

    def _nothing(self) -> list[Line]:
        """Return why there is no group to show."""
        state, recordings = self.state, self.hangtop.recordings
        if state.snapshot is None:
            return [line(("Connecting; nothing has answered yet.", "dim"))]
        if state.job is None or not (state.job.ranks or recordings.from_files):
            what = "training job" if state.job is None else "rank of this job is seen"
            return [line((f"No {what}, so no recorders. 1 says what was found.", "dim"))]
        if recordings.running:
            return [line(("Putting the recorders of all ranks together…", "info"))]
        if recordings.wrong:
            return [line((f"The recorders cannot be put together: {recordings.wrong}", "bad"))]
        if self.seen is not None:
            said = "The recorders that were read hold no process group: nothing was recorded yet."
        else:
            said = "No flight recorder could be read, so it is not known who has joined what."
        lines = [line((said, "warn")), EMPTY, *sources.why_not(state.diagnosis)]
        return [part for one in lines for part in wrap(one, max(self.app.size.width - 4, 20), 9)]

    def _lead(self, seen: Seen) -> None:
        """Go to the group in which the rank that the page was opened for is missing."""
        goal, self.hangtop.lead = self.hangtop.lead, None
        if goal is None:
            return
        for one in seen.groups:
            operation = one.operation
            if operation is not None and goal in (*operation.missing, *operation.mismatched):
                self.table("groups").jump(one.key)
                return

    @property
    def group(self) -> GroupLine | None:
        """Return the group under the cursor."""
        return self.table("groups").current

    @property
    def number(self) -> NumberLine | None:
        """Return the sequence number under the cursor."""
        return self.table("numbers").current

    def _fill_numbers(self) -> None:
        seen, group, table = self.seen, self.group, self.table("numbers")
        if seen is None or group is None:
            table.set_items([])
            self._fill_members()
            return
        numbers = self.hangtop.recordings.numbers(seen, group)
        title = line(("COLLECTIVES  ", "title"), group.label)
        table.retitle(title, views.numbers_note(numbers or (), short=self.narrow))
        if numbers is None:
            table.set_items([], [line(("Counting the entries of all its ranks…", "info"))])
        else:
            follows = self._of != group.key or table.cursor_key in (None, self._placed)
            empty = "Its ranks' recorders hold none of its entries any more."
            if numbers is table.given:
                table.paint()
            else:
                table.set_items(numbers, [line((empty, "dim"))])
            if follows and numbers:
                self._place(group, numbers)
        self._of = group.key
        self._fill_members()

    def _place(self, group: GroupLine, numbers: Sequence[NumberLine]) -> None:
        """Put the cursor on a waiting operation, else on the newest one."""
        goal = numbers[-1].key
        for one in numbers:
            if one.operation is not None and one.operation is group.operation:
                goal = one.key
        if goal != self.table("numbers").cursor_key or goal != self._placed:
            self._placed = goal
            self.table("numbers").jump(goal)

    def _fill_members(self) -> None:
        seen, group, number, job = self.seen, self.group, self.number, self.state.job
        members, grid = self.table("members"), self.query_one("#grid", GridPane)
        self.live.take(self.state.snapshot, job.ranks if job is not None else ())
        shown = (seen, group, number)
        if self._members_of is not None and all(map(is_, shown, self._members_of)):
            members.paint()  # only what ranks do now may have changed
        else:
            self._members_of = shown
            rows: list[who.MemberRow] = []
            if seen is not None and group is not None and number is not None:
                rows = who.member_rows(seen, group.index, number, self.live)
                name = views.title_of(number)
                members.retitle(*who.members_title(name, rows))
                title = line(("WHO JOINED  ", "title"), name)
                grid.retitle(title, who.grid_note(rows), who.grid_hint(rows))
            members.set_items(rows, [line(("nothing is chosen", "dim"))])
            cells = sorted((row.attendee.rank, str(row.attendee.how)) for row in rows)
            grid.set_cells(tuple(cells))
        self._fill_lower()

    def _fill_lower(self) -> None:
        state, seen, now = self.state, self.seen, self.hangtop.now()
        files = self.hangtop.recordings.from_files
        row: who.MemberRow | None = self.table("members").current
        if row is not None and row.live is not None:
            state.rank_key = rank_key(row.live)
        pane = self.query_one("#stack", TextPane)
        if pane.display:
            title, lines = sources.stack_now(row, now, cut=state.cut, files=files)
            pane.retitle(title)
            pane.set_lines(lines)
        pane = self.query_one("#waiting", TextPane)
        if pane.display and seen is not None:
            title, lines = sources.waiting_entry(self.number, self.live, cut=state.cut)
            pane.retitle(title)
            pane.set_lines(lines)
        pane = self.query_one("#source", TextPane)
        if pane.display:
            pane.set_lines(
                sources.source_lines(seen, state.job, state.diagnosis, self._at, files=files)
            )

    # Moving

    def path(self) -> list[str]:
        """Return group, sequence number and rank."""
        parts = ["recorder"]
        if self.group is not None:
            parts.append(self.group.label)
            if self.number is not None:
                parts.append(views.title_of(self.number))
        return parts

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """Show the row under the cursor in the panes below."""
        if event.table.id == "groups":
            self._fill_numbers()
        elif event.table.id == "numbers":
            self._fill_members()
        else:
            self._fill_lower()
        self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Go on Enter from a group to its numbers, to the members, to a rank."""
        if event.table.id != "members":
            self.focus_pane("numbers" if event.table.id == "groups" else "members")
            return
        row: who.MemberRow = event.item
        if row.live is not None:
            self.state.rank_key = rank_key(row.live)
            self.hangtop.follow("rank", row.attendee.rank)
        elif self.hangtop.recordings.from_files:
            self.hangtop.tell("these are files: there is no running rank to look at", "warn")
        else:
            self.hangtop.tell(f"no process is seen that is {rank_name(row.attendee.rank)}", "warn")

    def do_back(self) -> None:
        """Go up one level: zoom, filter, members, numbers, groups, and then the overview."""
        if self.zoomed or self.filter_text or self.active == "groups":
            super().do_back()
        else:
            self.focus_pane(ABOVE[self.active])

    def do_cut(self) -> None:
        """Cut library frames, or show them."""
        self.state.cut = not self.state.cut
        self.show()

    def outliers(self) -> list[str]:
        """Return the groups that have stalled."""
        return [one.key for one in self.rows.items if one.stalled]

    # Filter

    def set_filter(self, text: str) -> str | None:
        """Set a filter, and adapt heights and cursor to the remaining rows."""
        wrong = super().set_filter(text)
        self.show()
        return wrong

    def row_facts(self, item: Any) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a group, a sequence number or a member, for the filter."""
        return who.facts(item) if isinstance(item, who.MemberRow) else views.facts(item)
