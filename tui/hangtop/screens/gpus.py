"""Screen 6: GPUs by utilisation and power; the chosen one, and its node's network ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal

from hangtop.screens.outliers import OutlierPage
from hangtop.terminal.spans import EMPTY, line
from hangtop.views.nodes.gpu import PORT_COLUMNS, gpu_items
from hangtop.views.nodes.gpus import FOLD_FROM, GPU_COLUMNS, GpuRow, counts, gpu_rows, none_found
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.line_table import LineTable
from hangtop_core.model.node.hardware import UP, Nic
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from hangtop.keys import query


BELOW = 16
"""The fewest lines of the panes below (`gpus.tcss`)."""


class GpusPage(OutlierPage):
    """GPUs, the chosen one, the ports of its node."""

    CSS_PATH = "gpus.tcss"
    NAME = "gpus"
    PANES = ("gpus", "gpu", "ports")
    PINNED = "gpu"
    FILTERED = ("gpus",)
    NONE_STANDS_OUT = ("nothing is wrong with any GPU, and all do the same", "good")
    STANDS_OUT = "{} of {} that differ"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"node", "gpu", "does", "util", "power", "memory", "temperature", "ecc", "xid", "trouble"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.folded: bool | None = None
        """Whether each node has one row; None until the user chose: then by the number of GPUs."""
        self._below = (0, 0)
        """Width of the screen, and the most lines that the panes below have filled at it."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield LineTable[GpuRow]("GPUS", pane_id="gpus", columns=GPU_COLUMNS)
        with Horizontal(id="below"):
            yield ItemList("GPU", pane_id="gpu")
            yield LineTable[Nic](
                "PORTS", pane_id="ports", columns=PORT_COLUMNS, key=lambda nic: nic.name
            )

    @property
    def table(self) -> LineTable[GpuRow]:
        """The table of GPUs."""
        return self.query_one("#gpus", LineTable)

    def fill(self) -> None:
        """Fill the panes."""
        snapshot = self.state.snapshot
        if snapshot is None:
            self.table.set_items([], [line(("Connecting; nothing has answered yet.", "dim"))])
            self._fill_below()
            return
        total = sum(len(node.gpus) for node in snapshot.nodes)
        folded = total > FOLD_FROM if self.folded is None else self.folded
        rows = gpu_rows(snapshot, self.state.job, folded=folded)
        how = self.table.order.column or ("each node in one row" if folded else "trouble")
        label = "" if folded and self.table.order.column is None else "sort "
        title = line(("GPUS  ", "title"), str(total), ("  " + label, "label"), how)
        self.table.retitle(title, counts(rows))
        self.table.set_items(rows, none_found(snapshot))
        self._fill_below()

    def _fill_below(self) -> None:
        row = self.table.current
        detail = self.query_one("#gpu", ItemList)
        ports = self.query_one("#ports", LineTable)
        snapshot = self.state.snapshot
        node = row.node if row is not None else None
        if node is None and snapshot is not None and len(snapshot.nodes) == 1:
            node = snapshot.nodes[0]  # its ports can be shown without a GPU, too
        if row is None:
            detail.set_items([], [line(("no GPU is chosen", "dim"))])
        else:
            place = "" if row.folded else f" GPU {row.gpus[0].index}"
            title = line(("GPU  ", "title"), f"{row.node.name}{place}")
            hint = line(("y", "key"), (" copies", "dim")) if self.active == "gpu" else EMPTY
            detail.retitle(title, hint)
            detail.set_items(gpu_items(row, self.hangtop.now()))
        nics = list(node.nics) if node is not None else []
        nics.sort(key=lambda nic: (not (nic.was_up and nic.state not in UP), nic.name))
        name = node.name if node is not None else "no node"
        up = sum(nic.state in UP for nic in nics)
        ports.retitle(line(("PORTS  ", "title"), name), line((f"{up}/{len(nics)} up", "dim")))
        nothing = "no network port is seen on this node" if node is not None else "no node"
        ports.set_items(nics, [line((nothing, "dim"))])
        self._share_room(detail, len(nics) + 3)

    def _share_room(self, detail: ItemList, ports: int) -> None:
        """Keep the pane of the chosen GPU from scrolling while the table has unused lines.

        Uses the most lines that any GPU has filled so far: panes that resize with each GPU are hard
        to read.
        """
        body, height = self.query_one("#body").size, None
        if not self.has_class("-alone") and body.height > BELOW:
            width, most = self._below
            filled = max(detail.prepare(max(body.width * 3 // 5 - 4, 10)) + 2, ports)
            self._below = body.width, max(filled, most if width == body.width else 0)
            height = max(min(self._below[1], body.height - len(self.table.items) - 3), BELOW)
        self.query_one("#below").styles.height = height

    def row_facts(self, item: Any) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a GPU, for the filter."""
        fields: dict[str, str | float | None] = {
            "node": item.node.name,
            "gpu": None if item.folded else float(item.gpus[0].index),
            "does": " ".join(sorted(item.does)),
            "trouble": item.trouble,
            "xid": float(item.xids[0]) if item.xids else None,
        }
        for name, field in (
            ("util", "util"),
            ("power", "power_w"),
            ("memory", "memory_used"),
            ("temperature", "temperature"),
            ("ecc", "ecc_now"),
        ):
            values = item.values(field)
            fields[name] = float(max(values)) if values else None
        return fields, frozenset(item.ranks)

    def path(self) -> list[str]:
        """Return the GPU under the cursor."""
        row = self.table.current
        return ["gpus"] if row is None else ["gpus", row.node.name]

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """Choose the GPU under the cursor, and its node, for actions."""
        if not isinstance(event.item, GpuRow):
            return
        self.state.node_name = event.item.node.name
        detail = self.query_one("#gpu", ItemList)
        detail.start_at("does:0")
        self._fill_below()
        self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Unfold a node on Enter, or go from a GPU to its rank."""
        row = event.item
        if not isinstance(row, GpuRow):
            self.hangtop.tell("nothing is behind a port; y copies its line")
        elif len(row.gpus) > 1:
            self._fold(False, f"{row.node.name}:{row.gpus[0].index}")
        elif row.rank_key is not None:
            self.state.rank_key = row.rank_key
            self.hangtop.follow("rank")
        else:
            text = "several ranks are on this GPU" if row.ranks else "no rank is on this GPU"
            self.hangtop.tell(text, "warn")

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        """Show that nothing is behind an entry, but that it can be copied."""
        self.hangtop.tell("y copies it")

    def do_group(self) -> None:
        """Show each node in one row, or each GPU in its own."""
        row = self.table.current
        folded = any(len(one.gpus) > 1 for one in self.table.items)
        key = None
        if row is not None:
            key = f"{row.node.name}:{row.gpus[0].index}" if row.gpus and folded else None
            key = key or f"{row.node.name}+"
        self._fold(not folded, key)
        self.hangtop.tell(plural(len(self.table.items), "row"))

    def _fold(self, folded: bool, key: str | None) -> None:
        self.folded = folded
        if key is not None:
            self.table.cursor_key = key
        self.show()

    def outliers(self) -> list[str]:
        """Return the GPUs that differ from the others, or have a problem."""
        return [row.key for row in self.table.items if row.level < 2]
