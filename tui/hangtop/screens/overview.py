"""Screen 1: the verdict first, then stack classes and health, then every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal

from hangtop.screens.page import Page
from hangtop.spans import EMPTY, cells, line, wrap_all
from hangtop.views.common import rank_key
from hangtop.views.overview import (
    CLASS_COLUMNS,
    ClassRow,
    class_rows,
    health_lines,
    unreadable,
    verdict_lines,
    verdict_title,
)
from hangtop.views.ranks import RANK_COLUMNS, RankRow, rank_rows
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from hangtop_core.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from hangtop import query

VERDICT_LINES = (3, 8)
"""The panel takes at least and at most this many lines of text."""


class OverviewPage(Page):
    """Verdict, stack classes, health, ranks."""

    CSS_PATH = "overview.tcss"
    NAME = "overview"
    PANES = ("ranks", "verdict", "classes", "health")
    PINNED = "verdict"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"rank", "node", "pid", "state", "cpu", "idle", "where", "why", "children"}
    )

    def compose_body(self) -> Iterable[Widget]:
        """The panes."""
        flat = self.hangtop.ascii
        yield TextPane("VERDICT", pane_id="verdict", flat=flat)
        with Horizontal(id="middle"):
            yield LineTable[ClassRow](
                "STACK CLASSES",
                pane_id="classes",
                columns=CLASS_COLUMNS,
                key=lambda row: row.key,
                flat=flat,
            )
            yield TextPane("HEALTH", pane_id="health", flat=flat)
        yield LineTable[RankRow](
            "RANKS", pane_id="ranks", columns=RANK_COLUMNS, key=lambda row: row.key, flat=flat
        )

    @property
    def ranks(self) -> LineTable[RankRow]:
        """The table of ranks."""
        return self.query_one("#ranks", LineTable)

    @property
    def stack_classes(self) -> LineTable[ClassRow]:
        """The table of stack classes."""
        return self.query_one("#classes", LineTable)

    @property
    def filtered(self) -> LineTable[Any] | None:
        """Always the ranks."""
        return self.ranks

    def fill(self) -> None:
        """Fill the panes."""
        state, now = self.state, self.hangtop.now()
        snapshot, job, diagnosis = state.snapshot, state.job, state.diagnosis
        self._fill_verdict()
        health = self.query_one("#health", TextPane)
        health.set_lines(health_lines(snapshot, job, now))
        if snapshot is None:
            return
        classes = class_rows(snapshot, job, diagnosis, now)
        count = plural(len(classes), "class", "classes")
        self.stack_classes.retitle(line(("STACK CLASSES  ", "title"), count))
        self.stack_classes.set_items(classes, [line(("no ranks yet", "dim"))])
        rows = rank_rows(snapshot, job, diagnosis, now)
        table = self.ranks
        table.marks = state.marks
        order = table.order.column or "suspicion"
        title = line(("RANKS  ", "title"), ("sort ", "label"), order)
        note = line(("marked ", "label"), str(len(state.marks))) if state.marks else EMPTY
        table.retitle(title, note)
        table.set_items(rows, self._no_ranks())

    def _fill_verdict(self) -> None:
        state = self.state
        pane = self.query_one("#verdict", TextPane)
        lines = verdict_lines(state.snapshot, state.job, state.diagnosis)
        width = max(self.app.size.width - 4, 10)
        tall = len(wrap_all([item for item in lines if cells(item)], width, 6))
        most = VERDICT_LINES[1] if self.app.size.height >= 30 else 4
        if self.state.job is None:
            most = max(most, self.app.size.height // 2)
        wanted = max(VERDICT_LINES[0], min(tall, most)) + 2
        if self.has_class("-alone") and not pane.has_class("-pinned"):
            pane.styles.height = "1fr"
        else:
            pane.styles.height = wanted
        hint = line(("5", "key"), (" in full", "dim")) if state.job else EMPTY
        pane.retitle(verdict_title(state.diagnosis), hint)
        pane.set_lines(lines)

    def _no_ranks(self) -> list[Any]:
        if self.state.job is None:
            return [line(("No ranks to show; the panel above says why.", "dim"))]
        if self.filter_text:
            return [
                line((f"No rank passes the filter {self.filter_text!r}; Esc clears it.", "dim"))
            ]
        if self.state.job.unnumbered:
            return unreadable(self.state.job)
        return [line(("No rank has started yet; the launcher is there.", "dim"))]

    def row_facts(self, item: RankRow) -> tuple[query.Fields, frozenset[int]]:
        """Fields of a rank, for the filter."""
        rank = item.rank
        share = None if rank.cpu_share is None else rank.cpu_share * 100
        fields: dict[str, str | float | None] = {
            "rank": float(rank.rank),
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
        """The rank under the cursor."""
        row = self.ranks.current
        return ["all ranks"] if row is None else ["all ranks", f"rank {row.rank.rank}"]

    def do_open(self) -> None:
        """The verdict opens in full on its own screen."""
        if self.active == "verdict":
            self.hangtop.go("verdict")
        else:
            super().do_open()

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """The cursor chooses the rank that actions work on."""
        if isinstance(event.item, RankRow):
            self.state.rank_key = event.item.key
            self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Enter: a rank opens, a class filters."""
        item = event.item
        if isinstance(item, RankRow):
            self.state.rank_key = item.key
            self.hangtop.go("rank")
        elif isinstance(item, ClassRow):
            self._choose(item)
            self.hangtop.go("stacks", item.ranks[0] if item.ranks else None)

    def _choose(self, item: ClassRow) -> None:
        job = self.state.job
        for rank in job.ranks if job else ():
            if rank.rank in item.ranks:
                self.state.rank_key = rank_key(rank)
                return

    def do_next_outlier(self) -> None:
        """The next rank that something is said about."""
        self._outlier(1)

    def do_previous_outlier(self) -> None:
        """The one before."""
        self._outlier(-1)

    def _outlier(self, step: int) -> None:
        table = self.ranks
        odd = [row for row in table.items if row.order[0] < 3]
        if not odd:
            smallest = min((row.order[1] for row in table.items), default=0)
            odd = [row for row in table.items if row.order[1] == smallest]
        if not odd:
            self.hangtop.tell("no rank stands out", "warn")
            return
        keys = [row.key for row in odd]
        here = table.cursor_key
        place = (keys.index(here) + step) % len(keys) if here in keys else 0
        self.focus_pane("ranks")
        table.select(keys[place])
        self.hangtop.tell(f"outlier {place + 1} of {len(keys)}")

    def do_mark(self) -> None:
        """Mark the rank and go one down."""
        row = self.ranks.current
        if row is not None:
            self.state.marks ^= {row.key}
            self.ranks.move(1)
            self.show()

    def do_unmark(self) -> None:
        """Take all marks away."""
        self.state.marks = frozenset()
        self.show()
