"""Times in a recorder that its clock cannot have told: from before the rank began, or to come.

Where a clock was set while the rank ran, what was recorded before has times of another clock. How
far ranks have come the numbers tell all the same; since when they wait such times do not.
"""

from __future__ import annotations

from array import array
from itertools import islice
from operator import sub
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from hangtop_core.model.recorder.trace import Trace

SLACK_S = 10.0
"""Seconds by which times of one node may differ: when a process began is known less well."""
NS = 1_000_000_000


def without_untimely(
    trace: Trace, began: float | None = None, read: float | None = None
) -> tuple[Trace, int]:
    """Return a trace in which times that cannot be are unknown (0), and how many these are.

    Args:
        trace: entries oldest first.
        began: when its process did, where that is known.
        read: when it was read.
    """
    low = 0 if began is None else int((began - SLACK_S) * NS)
    high = 1 << 62 if read is None else int((read + SLACK_S) * NS)
    times = array("q", trace.created)
    kept = array("q", times)
    for at in range(_set_back(times)):
        kept[at] = 0
    for at, time in enumerate(kept):
        if not low <= time <= high:
            kept[at] = 0
    count = sum(map(bool, times)) - sum(map(bool, kept))
    if not count:
        return trace, 0
    return replace(trace, raw_created=kept.tobytes(), newest_ns=max(kept, default=0)), count


def _set_back(times: array[int]) -> int:
    """Return how many entries are from before the last time that the clock was set back."""
    known = [(at, time) for at, time in enumerate(times) if time]
    steps = map(sub, (time for _, time in islice(known, 1, None)), (time for _, time in known))
    back = [at for at, step in enumerate(steps, 1) if step < -SLACK_S * NS]
    return known[back[-1]][0] if back else 0
