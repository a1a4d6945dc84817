"""Schedule of snapshots: frequent while they are cheap, rare while they are expensive.

A snapshot takes CPU time that reading messages needs, too. So messages are read first, and the
interval grows with the size of snapshots and with the backlog of messages.
"""

from __future__ import annotations

URGENT_GAP = 0.2
"""Seconds between two snapshots when a message should not wait."""
DIAGNOSE_SHARE = 3.0
"""Minimum interval between snapshots, as a multiple of the time to make one."""
URGENT_SHARE = 10.0
"""This multiple where snapshots do not wait for the interval."""
KNOWN_SHARE = 10.0
"""This multiple while a job hangs with a verdict, and something has changed."""
SETTLED_SHARE, SETTLED_S = 1600.0, 600.0
"""This multiple while a job hangs with a verdict, and nothing changes; and the maximum seconds
between two snapshots then, unless the interval is longer."""
BEHIND_SHARE = 5.0
"""This multiple, of elapsed time, while messages arrive faster than they are read."""
BEHIND_S = 10.0
"""Maximum seconds between two snapshots then."""
ARRIVING_SHARE, ARRIVING_S = 40.0, 5.0
"""Multiple and maximum while nodes connect: once all are there, a snapshot of them is due at
once."""


class Schedule:
    """The schedule of one session; times are of the monotonic clock."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._ended = 0.0
        self._cpu = self._took = 0.0

    def made(self, began: float, ended: float, cpu: float) -> None:
        """Note that a snapshot was made, and the CPU seconds that it took.

        On a busy machine the elapsed time is longer than that.
        """
        self._ended = ended
        self._cpu, self._took = cpu, ended - began

    def gap(
        self,
        *,
        urgent: bool = False,
        rests: bool = False,
        behind: bool = False,
        arriving: bool = False,
        settled: bool = False,
        growth: float = 1.0,
    ) -> float:
        """Return the seconds from the end of one snapshot to the next.

        Args:
            growth: size of the next snapshot relative to the last: the first ones are of few nodes.
            urgent: whether a message should not wait for the interval.
            settled: whether the job hangs with a verdict.
            rests: whether besides nothing came that could change the verdict.
            behind: whether messages still wait to be read.
            arriving: whether nodes are connecting: each snapshot is larger, and complete soon.
        """
        cpu, gap = self._cpu, self._interval
        if arriving:
            cpu *= growth
            gap = max(URGENT_GAP, min(cpu * ARRIVING_SHARE, ARRIVING_S))
        elif urgent:
            gap = min(gap, max(URGENT_GAP, cpu * URGENT_SHARE))
        elif rests:
            gap = max(gap, min(cpu * SETTLED_SHARE, SETTLED_S))
        gap = max(gap, 0.1, cpu * (KNOWN_SHARE if settled else DIAGNOSE_SHARE))
        return max(gap, min(self._took * BEHIND_SHARE, BEHIND_S)) if behind else gap

    def wait(
        self,
        now: float,
        *,
        urgent: bool,
        rests: bool,
        behind: bool,
        arriving: bool = False,
        settled: bool = False,
        growth: float = 1.0,
    ) -> float:
        """Return the seconds from now until the next snapshot is due; 0 or less when it is."""
        gap = self.gap(
            urgent=urgent,
            rests=rests,
            behind=behind,
            arriving=arriving,
            settled=settled,
            growth=growth,
        )
        return self._ended + gap - now
