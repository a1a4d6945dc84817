"""Memory that the app's history takes in a simulated hour: a picture a second, ranks changing.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/history.py [--ranks N] [--hours H]

The pictures are `table.py`'s: of a recorded job, made as many ranks as asked for, a tenth of which
changes each second. Each is given to the `History` that the app keeps. Printed is what this process
grew by, beside what keeping all pictures takes, worked out from the first 100 of them.
"""

from __future__ import annotations

import argparse
import gc

import msgspec

import figures
import measures
from hangtop_core.state.history import History
from support.record import load
from table import pictures


def settled() -> float:
    """MiB resident in this process once it has let go of what it needs no more."""
    gc.collect()
    return measures.memory()


def main() -> None:
    """Print the line of the table of figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=8192)
    parser.add_argument("--hours", type=float, default=1.0)
    options = parser.parse_args()
    update = load("skip")
    seconds = int(options.hours * 3600)
    everything = [shot for _, shot in zip(range(101), pictures(options.ranks, 101), strict=False)]
    first = settled()
    del everything[1:]
    each = (first - settled()) / 100
    del everything
    history = History()
    before = settled()
    most = 0.0
    for second, shot in enumerate(pictures(options.ranks, seconds)):
        shot = msgspec.structs.replace(shot, at=update.snapshot.at + second)
        history.add(msgspec.structs.replace(update, snapshot=shot))
        if second % 300 == 299:
            most = max(most, settled() - before)
    print(figures.HEAD)
    figures.row(
        f"history of {options.hours:g} h, {options.ranks:,} ranks, a tenth changes: memory",
        "500 MB with the head",
        f"{most:.0f} MiB, {len(history)} pictures",
        f"all {seconds} pictures {each * seconds:.0f} MiB",
    )
    figures.load()


if __name__ == "__main__":
    main()
