"""Impossible times in a flight recorder: before the rank began, or in the future.

Where a clock was set while the rank ran, earlier entries have times of another clock. Sequence
numbers still show the progress of ranks; such times do not show how long ranks have waited.
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
"""Seconds by which times of one node may differ: the start of a process is known less precisely."""
NS = 1_000_000_000


def without_untimely(
    trace: Trace, began: float | None = None, read: float | None = None
) -> tuple[Trace, int]:
    """Return a trace whose impossible times are set to unknown (0), and the number of them.

    Args:
        trace: entries oldest first.
        began: when its process began, where known.
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
    """Return the number of entries from before the clock was last set back."""
    timed = [(at, time) for at, time in enumerate(times) if time]
    steps = map(sub, (time for _, time in islice(timed, 1, None)), (time for _, time in timed))
    back = [at for at, step in enumerate(steps, 1) if step < -SLACK_S * NS]
    return timed[back[-1]][0] if back else 0
