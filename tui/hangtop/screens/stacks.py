"""Screen 2: one tree over all ranks, and the class under the cursor beside the majority."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Horizontal

from hangtop.screens.outliers import OutlierPage
from hangtop.terminal.spans import line, plain
from hangtop.views.common import rank_key
from hangtop.views.ranks.stacks import (
    TREE_COLUMNS,
    TreeRow,
    class_lines,
    majority_lines,
    rank_rows,
    representative,
    stacks_title,
    tree_rows,
)
from hangtop.widgets.line_tree import LineTree
from hangtop.widgets.text_pane import TextPane
from hangtop_core.model.frames import plain_name
from hangtop_core.stacks.merging import Merged, merge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from hangtop.keys import query
    from hangtop.widgets.line_table import LineTable
    from hangtop_core.model.snapshot import Rank


class StacksPage(OutlierPage):
    """Merged stacks."""

    CSS_PATH = "stacks.tcss"
    NAME = "stacks"
    PANES = ("tree", "class", "majority")
    FILTERED = ("tree",)
    NONE_STANDS_OUT = ("all ranks are on one stack: nobody stands out", "warn")
    FIELDS: ClassVar[frozenset[str]] = frozenset({"frame", "at", "count", "age"})

    def __init__(self) -> None:
        super().__init__()
        self.per_rank = False
        self.merged: Merged | None = None
        self._led = False
        """Whether the cursor was put on the most interesting row."""
        self._came: int | None = None
        """The rank that the page was opened for: it represents its class, else a culprit in it
        does.
        """

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield LineTree[TreeRow]("MERGED STACKS", pane_id="tree", columns=TREE_COLUMNS)
        with Horizontal(id="compare"):
            yield TextPane("THIS CLASS", pane_id="class", indent=4)
            yield TextPane("MAJORITY", pane_id="majority", indent=4)

    @property
    def stack_tree(self) -> LineTree[TreeRow]:
        """The tree."""
        return self.query_one("#tree", LineTree)

    def fill(self) -> None:
        """Merge again, and fill the panes."""
        state, now = self.state, self.hangtop.now()
        job, snapshot = state.job, state.snapshot
        tree = self.stack_tree
        if snapshot is None or job is None:
            self.merged = None
            tree.retitle(line(("MERGED STACKS", "title")))
            tree.set_items(
                [], [line(("No training job, so no stacks. 1 says what was found.", "dim"))]
            )
            self._compare()
            return
        self.merged = merge(
            snapshot,
            job,
            threads="all" if state.all_threads else "main",
            libraries=not state.cut,
        )
        if self.per_rank:
            rows = rank_rows(snapshot, job, tree.folded, tree.opened, cut=state.cut, now=now)
        else:
            rows = tree_rows(self.merged, tree.folded, tree.opened, join=state.cut, now=now)
        title, note, hint = stacks_title(
            snapshot, job, self.merged, now, cut=state.cut, threads=state.all_threads
        )
        if self.per_rank:
            title = line(("STACKS OF EACH RANK", "title"))
        tree.retitle(title, note, hint)
        none = "No rank gave a stack yet" + ("; B asks all of them." if state.live else ".")
        tree.set_items(rows, [line((none, "dim"))])
        if self.hangtop.lead is not None or not self._led:
            self._led = True
            goal = self._start(rows)
            if goal is not None:
                tree.jump(goal)
        self._compare()

    def _start(self, rows: list[TreeRow]) -> str | None:
        """Return the innermost frame of the rank to show first, else the smallest group."""
        goal, self.hangtop.lead = self.hangtop.lead, None
        self._came = goal
        if goal is not None:
            found = (row.key for row in reversed(rows) if row.count and goal in row.ranks)
            return next(found, None)
        few = [row for row in rows if row.row is not None and row.row.fewest]
        return min(few, key=lambda row: row.count).key if few else None

    def _compare(self) -> None:
        state = self.state
        one = self.query_one("#class", TextPane)
        other = self.query_one("#majority", TextPane)
        if self.merged is None or state.snapshot is None or state.job is None:
            one.set_lines([])
            other.set_lines([])
            return
        title, lines = class_lines(
            state.snapshot,
            self._chosen(self.stack_tree.current),
            self.stack_tree.current,
            cut=state.cut,
            now=self.hangtop.now(),
        )
        one.retitle(title)
        one.set_lines(lines)
        title, lines = majority_lines(self.merged, cut=state.cut)
        other.retitle(title)
        other.set_lines(lines)

    def path(self) -> list[str]:
        """Return the frame under the cursor."""
        row = self.stack_tree.current
        if row is None or self.merged is None:
            return ["stacks"]
        here = plain_name(row.frame.name) if row.frame else plain(row.name).strip("▾▸ ")
        return ["stacks", here]

    def row_facts(self, item: TreeRow) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a frame, for the filter."""
        fields: dict[str, str | float | None] = {
            "frame": "".join(span.text for span in item.name),
            "at": "".join(span.text for span in item.place),
            "count": float(item.count),
            "age": item.age,
        }
        return fields, frozenset(item.ranks)

    def _chosen(self, item: TreeRow | None) -> Rank | None:
        """Return the rank that represents a row: the one opened for, a culprit, or the lowest."""
        state = self.state
        if state.job is None:
            return None
        verdicts = state.diagnosis.verdicts if state.diagnosis is not None else ()
        blamed = [c.rank for one in verdicts for c in one.culprits if c.rank is not None]
        came = [self._came] if self._came is not None else []
        return representative(state.job, item, (*came, *blamed))

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """Choose the rank that represents the row, for actions."""
        rank = self._chosen(event.item)
        if rank is not None:
            self.state.rank_key = rank_key(rank)
        self._compare()
        self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Unfold what is folded or joined on Enter, else open the rank."""
        item: TreeRow = event.item
        if self.per_rank and item.key.startswith("rank:"):
            turn = self.stack_tree.fold if item.is_open else self.stack_tree.unfold
            turn(item.key)
            self.fill()
        elif item.row is not None and (item.row.folded or item.row.joined):
            self.stack_tree.unfold(item.key)
            self.fill()
        else:
            self.hangtop.follow("rank")

    def do_fold(self) -> None:
        """Close the branch under the cursor; for a frame below a rank, that of the rank."""
        row = self.stack_tree.current
        if row is not None:
            key = row.heading or row.key
            self.stack_tree.select(key)
            self.stack_tree.fold(key)
            self.fill()

    def do_unfold(self) -> None:
        """Open the branch, or the joined chain, under the cursor."""
        row = self.stack_tree.current
        if row is not None:
            self.stack_tree.unfold(row.key)
            self.fill()

    def do_unfold_all(self) -> None:
        """Open everything."""
        keys = [row.key for row in self.stack_tree.given]
        self.stack_tree.unfold_all(keys)
        self.fill()

    def do_merged(self) -> None:
        """Show stacks merged, or rank by rank."""
        self.per_rank = not self.per_rank
        self._again()

    def do_cut(self) -> None:
        """Show or hide library frames."""
        self.state.cut = not self.state.cut
        self._again()

    def do_threads(self) -> None:
        """Show all threads, or the main thread."""
        self.state.all_threads = not self.state.all_threads
        self._again()

    def _again(self) -> None:
        """Rebuild the rows, with the cursor on the same rank."""
        rank = self.state.rank
        self.hangtop.lead = rank.rank if rank else None
        self.show()

    def outliers(self) -> list[str]:
        """Return the smallest groups: where the tree branches, and ranks without a stack."""
        odd = [r for r in self.stack_tree.items if r.row is None or r.row.fewest]
        return [row.key for row in sorted(odd, key=lambda row: row.count)]

    def editor_place(self) -> tuple[str, int] | None:
        """Return the frame under the cursor."""
        row = self.stack_tree.current
        if row is None or row.frame is None or not row.frame.file:
            return None
        return row.frame.file, row.frame.line
