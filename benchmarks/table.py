"""A table of 8,192 ranks of which a tenth changes each tick, beside Textual's DataTable.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/table.py [--ranks N] [--ticks T]

Both stand alone on a screen of 120x36 and get the same rows with the same cells in one run. The
rows of hangtop's table come from snapshots, as the overview makes them; DataTable
gets only the cells that differ of the ranks that changed, by `update_cell`. Printed are medians
over the ticks: CPU time of this process, and bytes that would go to the terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.widgets import DataTable

import figures
from hangtop.terminal.spans import plain
from hangtop.views.ranks.ranks import RANK_COLUMNS, RankRow, RankRows
from hangtop.widgets.line_table import LineTable
from support.record import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangtop_core.model.snapshot import Rank, Snapshot

SIZE = (120, 36)
CHANGED = 10
"""Every so many-th rank changes in a tick."""
SETTLE_S = 0.25
replace = msgspec.structs.replace


class Counting(HeadlessDriver):
    """Counts what would be written to a terminal."""

    written: ClassVar[int] = 0

    @property
    def is_headless(self) -> bool:
        """The app is to draw as it does on a terminal."""
        return False

    def write(self, data: str) -> None:
        """Count it."""
        Counting.written += len(data.encode())


class Cost(NamedTuple):
    """Medians of one table."""

    cpu_ms: float
    bytes: float


def pictures(ranks: int, ticks: int) -> Iterator[Snapshot]:
    """Snapshots of a job in which another tenth of the ranks used the processor each time."""
    update = load("skip")
    job = update.snapshot.jobs[0]
    some = [
        replace(
            job.ranks[0],
            rank=number,
            node=f"node{number // 8:04d}",
            process=replace(job.ranks[0].process, pid=5000 + number, rank=number),
        )
        for number in range(ranks)
    ]
    for tick in range(ticks):
        for number in range(tick % CHANGED, ranks, CHANGED):
            process = some[number].process
            moved = replace(process.meters, cpu_s=float(tick))
            some[number] = replace(
                some[number],
                process=replace(process, meters=moved),
                cpu_share=(tick * 7 % 100) / 100,
            )
        jobs = (replace(job, ranks=tuple(some), world_size=ranks),)
        yield replace(update.snapshot, jobs=jobs)


class Rows:
    """The rows of the overview's table, of one picture after the other."""

    def __init__(self) -> None:
        self._rows = RankRows()

    def __call__(self, snapshot: Snapshot) -> list[RankRow]:
        """Those of the next picture."""
        return self._rows.take(snapshot, snapshot.jobs[0], None, snapshot.at)


async def ours(shots: list[Snapshot]) -> Cost:
    """hangtop's table."""
    table: LineTable[Any] = LineTable(
        "RANKS",
        pane_id="ranks",
        columns=RANK_COLUMNS,
        key=attrgetter("key"),
        heading=attrgetter("heading"),
    )
    rows = Rows()
    return await ticked(table, shots, lambda snapshot: table.set_items(rows(snapshot)))


async def theirs(shots: list[Snapshot]) -> Cost:
    """Textual's."""
    table: DataTable[str] = DataTable(cursor_type="row")
    shown: dict[str, list[str]] = {}
    known: dict[int, Rank] = {}
    rows = Rows()

    def take(snapshot: Snapshot) -> None:
        if not shown:
            for column in RANK_COLUMNS:
                table.add_column(column.title, key=column.key, width=12)
        for row in rows(snapshot):
            if known.get(row.rank.rank) is row.rank:
                continue
            known[row.rank.rank] = row.rank
            cells = [plain(column.cell(row)) for column in RANK_COLUMNS]
            old = shown.get(row.key)
            if old is None:
                table.add_row(*cells, key=row.key)
            else:
                for column, was, now in zip(RANK_COLUMNS, old, cells, strict=True):
                    if was != now:
                        table.update_cell(row.key, column.key, now)
            shown[row.key] = cells

    return await ticked(table, shots, take)


async def ticked(table: Any, shots: list[Snapshot], take: Callable[[Snapshot], None]) -> Cost:
    """Give a table all pictures, one by one; the first two are not counted."""

    class Alone(App[None]):
        def compose(self) -> Iterator[Any]:
            yield table

    spent, written = [], []

    async def play(_: Any) -> None:
        await asyncio.sleep(1.0)
        for snapshot in shots:
            before, began = Counting.written, time.process_time()
            take(snapshot)
            await asyncio.sleep(SETTLE_S)
            spent.append((time.process_time() - began) * 1000)
            written.append(float(Counting.written - before))
        app.exit()

    app = Alone(driver_class=Counting)
    await app.run_async(size=SIZE, auto_pilot=play)
    return Cost(statistics.median(spent[2:]), statistics.median(written[2:]))


def main() -> None:
    """Print the line of the table of figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=8192)
    parser.add_argument("--ticks", type=int, default=12)
    options = parser.parse_args()
    shots = list(pictures(options.ranks, options.ticks))
    mine, peer = asyncio.run(ours(shots)), asyncio.run(theirs(shots))
    print(figures.HEAD)
    figures.row(
        f"table of {options.ranks:,} rows, a tenth changes: CPU of a tick",
        "10 ms",
        f"{mine.cpu_ms:.0f} ms",
        f"DataTable {peer.cpu_ms:.0f} ms, {peer.cpu_ms / mine.cpu_ms:.1f}x",
    )
    figures.row(
        "the same: bytes of a tick at 120x36",
        "2 KB",
        f"{mine.bytes:.0f} B",
        f"DataTable {peer.bytes:.0f} B, {peer.bytes / max(mine.bytes, 1):.1f}x",
    )
    figures.load()


if __name__ == "__main__":
    main()
