"""Screen 1: the verdict first, then stack classes and health, then every rank."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal

from hangtop.screens.outliers import OutlierPage
from hangtop.terminal.spans import EMPTY, line, second_in_view
from hangtop.views.common import rank_key
from hangtop.views.health import health_steps
from hangtop.views.nodes.programs import Program, programs
from hangtop.views.overview import (
    CLASS_COLUMNS,
    ClassRow,
    class_row_steps,
    unreadable,
    verdict_lines,
    verdict_title,
)
from hangtop.views.ranks.ranks import CALM, RANK_COLUMNS, RankRow, RankRows, class_of
from hangtop.views.recorder.groups import GROUPINGS, Group, Grouping, grouped, ranks_of
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from textual.widget import Widget

    from hangtop.keys import query

TABLE_LINES = 3
"""Lines of a table beside its rows: its frame, and the titles of its columns."""
VERDICT_LINES = (3, 8)
"""Least and most lines of text of the verdict panel."""


class OverviewPage(OutlierPage):
    """Verdict, stack classes, health, ranks."""

    CSS_PATH = "overview.tcss"
    NAME = "overview"
    PANES = ("ranks", "verdict", "classes", "health")
    PINNED = "verdict"
    FILTERED = ("ranks",)
    NONE_STANDS_OUT = ("no rank stands out", "warn")
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"rank", "node", "pid", "state", "cpu", "idle", "where", "why", "children"}
    )

    def __init__(self) -> None:
        super().__init__()
        self._rank_rows = RankRows()
        self.grouping: Grouping = ""
        self.toggled: frozenset[str] = frozenset()
        """Groups whose folding differs from the start."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield TextPane("VERDICT", pane_id="verdict")
        with Horizontal(id="middle"):
            yield LineTable[ClassRow](
                "STACK CLASSES",
                pane_id="classes",
                columns=CLASS_COLUMNS,
                key=attrgetter("key"),
            )
            yield TextPane("HEALTH", pane_id="health")
        yield LineTable[Any](
            "RANKS",
            pane_id="ranks",
            columns=RANK_COLUMNS,
            key=attrgetter("key"),
            heading=attrgetter("heading"),
        )

    @property
    def ranks(self) -> LineTable[Any]:
        """The table of ranks, and of their groups."""
        return self.query_one("#ranks", LineTable)

    @property
    def stack_classes(self) -> LineTable[ClassRow]:
        """The table of stack classes."""
        return self.query_one("#classes", LineTable)

    def fill(self) -> None:
        """Fill the panes."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Fill one pane after the other."""
        state, now = self.state, self.hangtop.now()
        snapshot, job, diagnosis = state.snapshot, state.job, state.diagnosis
        self._fill_verdict()
        yield
        health = self.query_one("#health", TextPane)
        health.set_lines((yield from health_steps(snapshot, job, now, state.keys)))
        if snapshot is None:
            return
        yield
        classes = yield from class_row_steps(snapshot, job, diagnosis, now)
        yield
        count = plural(len(classes), "class", "classes")
        self.stack_classes.retitle(line(("STACK CLASSES  ", "title"), count))
        self.stack_classes.set_items(classes, [line(("no ranks yet", "dim"))])
        yield
        yield from self._rank_rows.steps(snapshot, job, diagnosis, now)
        yield
        if job is None and (listed := programs(snapshot)):
            self.ranks.retitle(line(("PYTHON PROGRAMS  ", "title"), "Enter opens one"), EMPTY)
            self.ranks.set_items(listed, [])
            return
        rows = grouped(
            snapshot,
            self._rank_rows.rows,
            self.grouping if job else "",
            self.toggled,
            now,
            whole=bool(self.filter_text),
        )
        table = self.ranks
        table.marks = state.marks
        order = table.order.column or "suspicion"
        by = line(("  by ", "label"), self.grouping) if self.grouping else EMPTY
        title = line(("RANKS  ", "title"), ("sort ", "label"), order, by)
        note = line(("marked ", "label"), str(len(state.marks))) if state.marks else EMPTY
        table.retitle(title, note)
        table.set_items(rows, self._no_ranks())

    def _fill_verdict(self) -> None:
        state = self.state
        pane = self.query_one("#verdict", TextPane)
        lines = verdict_lines(state.snapshot, state.job, state.diagnosis, live=state.live)
        width = max(self.app.size.width - 4, 10)
        most = VERDICT_LINES[1] if self.app.size.height >= 30 else self._spare_lines()
        if self.state.job is None:
            most = max(most, self.app.size.height // 2)
        alone = self.has_class("-alone") and not pane.has_class("-pinned")
        if state.diagnosis is not None and state.diagnosis.verdicts and not alone:
            lines = second_in_view(lines, width, most)  # the next step
        pane.set_lines(lines)
        tall = pane.prepare(width)
        pane.styles.height = "1fr" if alone else max(VERDICT_LINES[0], min(tall, most)) + 2
        hint = line(("5", "key"), (" in full", "dim")) if state.job else EMPTY
        best = next(iter(state.diagnosis.verdicts), None) if state.diagnosis else None
        pane.retitle(verdict_title(best), hint)
        pane.paint()

    def _spare_lines(self) -> int:
        """Return the lines that few ranks leave to the verdict on a small screen; 4 in any case."""
        job = self.state.job
        below = len(job.ranks if job is not None else ()) + TABLE_LINES
        return max(min(self.query_one("#body").size.height - below - 2, VERDICT_LINES[1]), 4)

    def _no_ranks(self) -> list[Any]:
        if self.state.job is None:
            return [line(("No ranks to show; the panel above says why.", "dim"))]
        if self.state.job.unnumbered:
            return unreadable(self.state.job, self.hangtop.now())
        return [line(("No rank has started yet; the launcher is there.", "dim"))]

    def set_filter(self, text: str) -> str | None:
        """Set a filter, which also searches folded groups."""
        wrong = super().set_filter(text)
        if self.grouping and wrong is None:
            self.show()
        return wrong

    def row_facts(self, item: RankRow) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a rank, for the filter."""
        rank = item.rank
        share = None if rank.cpu_share is None else rank.cpu_share * 100
        fields: dict[str, str | float | None] = {
            "rank": rank.number,
            "node": rank.node,
            "pid": float(rank.process.pid),
            "state": rank.state,
            "cpu": share,
            "idle": item.idle,
            "where": f"{item.place} {item.call}",
            "why": item.why,
            "children": float(len(rank.children)),
        }
        return fields, frozenset({rank.rank})

    def path(self) -> list[str]:
        """Return the rank under the cursor."""
        row = self.ranks.current
        if isinstance(row, Program):
            return ["Python programs", f"pid {row.pid}"]
        if isinstance(row, Group):
            return ["all ranks", row.node or ranks_of(row.rows)]
        return ["all ranks"] if row is None else ["all ranks", row.rank.name]

    def do_open(self) -> None:
        """Open the verdict in full on its own screen."""
        if self.active == "verdict":
            self.hangtop.follow("verdict")
        else:
            super().do_open()

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """Choose the rank under the cursor for actions."""
        if isinstance(event.item, RankRow):
            self.state.choose(event.item.rank, event.item.key)
            self.show_bars()
        elif isinstance(event.item, Group) and event.item.rows:
            self.state.choose(event.item.rows[0].rank, event.item.rows[0].key)
            self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Open a rank or a class on Enter, or fold a group."""
        item = event.item
        if isinstance(item, Program):
            self.hangtop.open_program(item.pid)
        elif isinstance(item, Group):
            self._fold({item.key}, not item.open)
        elif isinstance(item, RankRow):
            self.state.rank_key = item.key
            self.hangtop.follow("rank")
        elif isinstance(item, ClassRow):
            self._choose(item)
            self.hangtop.follow("stacks", item.ranks[0] if item.ranks else None)

    def _choose(self, item: ClassRow) -> None:
        job = self.state.job
        for rank in job.ranks if job else ():
            if rank.rank in item.ranks:
                self.state.rank_key = rank_key(rank)
                return

    def outliers(self) -> list[str]:
        """Return culprits and ranks in an unusual state, else those of the smallest class."""
        rows = [row for row in self.ranks.items if isinstance(row, RankRow)]
        odd = [row for row in rows if row.level < CALM]
        if not odd:
            rows = [row for row in rows if row.level == CALM]
            smallest = min((row.order[1] for row in rows), default=0)
            odd = [row for row in rows if row.order[1] == smallest]
        return [row.key for row in odd]

    def do_mark(self) -> None:
        """Mark the rank, or the ranks of the group, and go one down."""
        row = self.ranks.current
        if isinstance(row, Program):
            return
        if isinstance(row, Group):
            keys = frozenset(one.key for one in row.rows)
            # A fully marked group is unmarked; any other one becomes marked.
            self.state.marks = self._with(keys)
        elif row is not None:
            self.state.marks ^= {row.key}
        if row is not None:
            self.ranks.move(1)
            self.show()

    def _with(self, keys: frozenset[str]) -> frozenset[str]:
        marks = self.state.marks
        return marks - keys if keys <= marks else marks | keys

    def do_mark_class(self) -> None:
        """Mark all ranks on one stack: that of the rank, or of the class under the cursor."""
        job, rank = self.state.job, self.state.rank
        if job is None or rank is None:
            return
        row = self.stack_classes.current if self.active == "classes" else None
        if row is not None:
            same = [one for one in job.ranks if one.rank in row.ranks]
        else:
            same = [one for one in job.ranks if class_of(one) == class_of(rank)]
        self.state.marks = self._with(frozenset(rank_key(one) for one in same))
        self.show()
        self.hangtop.tell(f"{plural(len(self.state.marks), 'rank')} marked; U takes marks away")

    def do_group(self) -> None:
        """Group by node, by stack class, or not at all."""
        place = GROUPINGS.index(self.grouping) + 1
        self.grouping = GROUPINGS[place % len(GROUPINGS)]
        self.focus_pane("ranks")
        self.hangtop.tell(f"ranks by {self.grouping}" if self.grouping else "ranks in one list")

    def _fold(self, keys: Iterable[str], is_open: bool) -> None:
        """Open or fold groups."""
        groups = [row for row in self.ranks.given if isinstance(row, Group) and row.rows]
        if not groups:
            self.hangtop.tell("there is nothing to fold; t groups the ranks", "warn")
            return
        wanted = set(keys)
        self.toggled ^= {one.key for one in groups if one.key in wanted and one.open != is_open}
        self.show()

    def _group_here(self) -> list[str]:
        """Return the group under the cursor, or that of the rank under it."""
        here, found = self.ranks.cursor, []
        for row in self.ranks.items[: here + 1]:
            if isinstance(row, Group):
                found = [row.key]
        return found

    def do_fold(self) -> None:
        """Fold the group; the cursor goes to its heading."""
        keys = self._group_here()
        if keys:
            self.ranks.select(keys[0])
        self._fold(keys, False)

    def do_unfold(self) -> None:
        """Open the group."""
        self._fold(self._group_here(), True)

    def do_unfold_all(self) -> None:
        """Open all groups."""
        self._fold([row.key for row in self.ranks.given if isinstance(row, Group)], True)

    def do_unmark(self) -> None:
        """Clear all marks."""
        self.state.marks = frozenset()
        self.show()
