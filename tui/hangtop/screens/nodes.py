"""Screen 9: every node with its state, and the chosen one with the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Horizontal

from hangtop.screens.outliers import OutlierPage
from hangtop.terminal.spans import EMPTY, line
from hangtop.views.nodes.node import FIX, commands_of, node_items
from hangtop.views.nodes.nodes import NODE_COLUMNS, NodeRow, counts, node_rows
from hangtop.views.texts import command_lines
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from hangtop.keys import query


class NodesPage(OutlierPage):
    """Nodes, the chosen one, its commands."""

    CSS_PATH = "nodes.tcss"
    NAME = "nodes"
    PANES = ("nodes", "node", "commands")
    PINNED = "node"
    FILTERED = ("nodes",)
    NONE_STANDS_OUT = ("every node answers, and none is to blame", "good")
    STANDS_OUT = "{} of {} in trouble"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"node", "state", "for", "seen", "latency", "load", "ranks", "trouble", "reason",
         "user", "python", "arch"}
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.folded = False
        """Whether equal nodes share one row."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield LineTable[NodeRow]("NODES", pane_id="nodes", columns=NODE_COLUMNS)
        with Horizontal(id="lower"):
            yield ItemList("NODE", pane_id="node")
            yield TextPane("COMMANDS", pane_id="commands", indent=2)

    @property
    def table(self) -> LineTable[NodeRow]:
        """The table of nodes."""
        return self.query_one("#nodes", LineTable)

    def on_screen_resume(self) -> None:
        """Put the cursor on the current node, whatever was chosen here before."""
        self.table.chosen = False
        super().on_screen_resume()

    def fill(self) -> None:
        """Fill the panes."""
        state, snapshot = self.state, self.state.snapshot
        if snapshot is None:
            self.table.set_items([], [line(("Connecting; nothing has answered yet.", "dim"))])
            self._fill_lower()
            return
        rows = node_rows(
            snapshot, state.job, state.diagnosis, self.hangtop.now(), folded=self.folded
        )
        how = self.table.order.column or ("equal ones in one row" if self.folded else "trouble")
        label = "" if self.folded and self.table.order.column is None else "sort "
        title = line(("NODES  ", "title"), (label, "label"), how)
        self.table.retitle(title, counts(snapshot.nodes))
        if state.node_name is not None and not self.table.chosen:
            self._point_at(rows, state.node_name)
        self.table.set_items(rows)
        self._fill_lower()

    def _point_at(self, rows: list[NodeRow], name: str) -> None:
        """Put the cursor on a node that was chosen elsewhere."""
        for row in rows:
            if any(node.name == name for node in row.nodes):
                self.table.cursor_key, self.table.chosen = row.key, True

    def _fill_lower(self) -> None:
        row = self.table.current
        detail = self.query_one("#node", ItemList)
        commands = self.query_one("#commands", TextPane)
        if row is None:
            detail.set_items([], [line(("no node is chosen", "dim"))])
            commands.set_lines([])
            return
        several = f"  and {len(row.nodes) - 1} more like it" if len(row.nodes) > 1 else ""
        title = line(("NODE  ", "title"), row.node.name, (several, "dim"))
        hint = line(("y", "key"), (" copies", "dim")) if self.active == "node" else EMPTY
        detail.retitle(title, hint)
        detail.set_items(node_items(row, self.hangtop.source.shell(row.node.name)))
        records = commands_of(self.hangtop.source.commands, row)
        commands.retitle(line(("COMMANDS  ", "title"), str(len(records))), line(("@ all", "dim")))
        commands.set_lines(command_lines(records, named=len(row.nodes) > 1))

    def row_facts(self, item: NodeRow) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a node, for the filter."""
        latency, node = item.worst("latency_s"), item.node
        fields: dict[str, str | float | None] = {
            "node": item.name,
            "state": item.state,
            "for": item.lasting,
            "seen": item.quiet,
            "latency": None if latency is None else latency * 1000,
            "load": item.load,
            "ranks": float(len(item.ranks)),
            "trouble": item.trouble,
            "reason": item.reason,
            "user": node.user,
            "python": node.python,
            "arch": node.arch,
        }
        return fields, frozenset(item.ranks)

    def path(self) -> list[str]:
        """Return the node under the cursor."""
        row = self.table.current
        return ["nodes"] if row is None else ["nodes", row.node.name]

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """Choose the node under the cursor for actions."""
        self.state.node_name = event.item.node.name
        detail = self.query_one("#node", ItemList)
        detail.start_at(FIX)
        self._fill_lower()
        self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Go from a node to its ranks on Enter, or take several apart."""
        row: NodeRow = event.item
        if len(row.nodes) > 1:
            self._fold(False, row.node.name)
        elif row.ranks:
            self.hangtop.show_node(row.name)
        else:
            self.hangtop.tell(f"no rank is seen on {row.name}; its own screen is below", "warn")

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        """Show that nothing is behind an entry, but that it can be copied."""
        self.hangtop.tell("y copies it; hangtop runs nothing of this by itself")

    def do_group(self) -> None:
        """Show equal nodes in one row, or each in its own."""
        row = self.table.current
        self._fold(not self.folded, row.node.name if row else None)
        count = plural(len(self.table.items), "row")
        self.hangtop.tell(f"equal nodes in one row: {count}" if self.folded else f"{count}")

    def do_retry(self) -> None:
        """Reconnect to the node, or to all the equal ones."""
        row = self.table.current
        if row is not None:
            self.hangtop.retry_nodes(row.nodes)

    def _fold(self, folded: bool, name: str | None) -> None:
        self.folded = folded
        if name is not None:
            self.state.node_name, self.table.chosen = name, False
        self.show()

    def outliers(self) -> list[str]:
        """Return the nodes that need a person."""
        return [row.key for row in self.table.items if row.level < 2]
