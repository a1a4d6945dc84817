"""The timeline of a capture: times of the first and the last snapshot, and the one shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, cells, line
from hangtop.views.common import clock
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from hangtop_core.model.updates import Update
    from hangtop_core.state.history import History

LEAST = 8
"""Shortest timeline in cells; a narrower space gets none."""


INCOMPLETE = line(("  incomplete ", "warn"))


def slider(history: History, shown: Update | None, width: int, *, incomplete: bool = False) -> Line:
    """Return `[ 14:02:11 ----●--- 14:12:09 ] 37 of 120, 5:12 before the last`, scaled by time.

    ``incomplete`` means that the file was truncated or damaged.
    """
    if incomplete:
        return (*slider(history, shown, width - cells(INCOMPLETE)), *INCOMPLETE)
    pictures = history.pictures
    if not pictures or shown is None:
        return line("")
    first, last = pictures[0].snapshot.at, pictures[-1].snapshot.at
    at_shown = shown.snapshot.at
    place = min(history.place(shown) + 1, len(pictures))
    count = len(pictures)
    if count == 1:
        return line((f" one picture, of {clock(last)}", "dim"))
    before = f", {duration(last - at_shown)} before the last" if at_shown < last else ""
    start, end = f" {clock(first)} ", f" {clock(last)} "
    caption = f"  {place} of {count}{before}"
    # The same width for every snapshot, so that the timeline does not move.
    reserved = len(f"  {count} of {count}, {duration(last - first)} before the last") + 2
    track = width - len(start) - len(end) - reserved - 5
    if track < LEAST:
        caption, reserved = f"  {place}/{count}", 2 * len(str(count)) + 3
        track = max(width - len(start) - len(end) - reserved - 5, LEAST)
    part = (at_shown - first) / (last - first) if last > first else 1.0
    at = min(max(round(part * (track - 1)), 0), track - 1)
    return line(
        (" [", "key"), (start, "dim"), ("─" * at, "dim"), ("●", "title"),
        ("─" * (track - 1 - at), "dim"), (end, "dim"), ("]", "key"), (caption, ""),
    )  # fmt: skip
