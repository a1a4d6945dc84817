"""One line of a table of figures, as docs/performance.md has it."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = "| what | goal | measured | peer, same run |\n|---|---|---|---|"


def row(what: str, goal: str, measured: str, peer: str = "-") -> None:
    """Print a line of the table."""
    print(f"| {what} | {goal} | {measured} | {peer} |", flush=True)


def load() -> None:
    """Say how busy the machine is, under a table: what it does besides counts, too."""
    one, five, _ = os.getloadavg()
    print(f"\n{os.cpu_count()} cores, load {one:.1f}, {five:.1f} over five minutes", flush=True)


def p90(values: Sequence[float]) -> float:
    """The value that nine of ten do not exceed."""
    return statistics.quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
