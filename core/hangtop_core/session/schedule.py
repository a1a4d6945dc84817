"""When the next picture of everything is due: soon where little is seen, seldom where it is dear.

A picture takes processor that what nodes say needs, too. So what they have said is read first, and
pictures come the farther apart the more of them, and of what waits to be read, there is.
"""

from __future__ import annotations

URGENT_GAP = 0.2
"""Seconds between two pictures when something came that should not wait."""
DIAGNOSE_SHARE = 3.0
"""Pictures are at least this many times as far apart as making one takes."""
URGENT_SHARE = 10.0
"""The same where they are not to wait for the interval."""
KNOWN_SHARE = 10.0
"""The same while a job hangs and the verdict is given, where something new is known."""
SETTLED_SHARE, SETTLED_S = 1600.0, 600.0
"""The same while a job hangs, the verdict is given, and nothing new is known; and the seconds
between two pictures then at most, unless the interval is longer."""
BEHIND_SHARE = 5.0
"""The same, of the time that passed, while more comes than is read."""
BEHIND_S = 10.0
"""Seconds between two pictures then at most."""
ARRIVING_SHARE, ARRIVING_S = 40.0, 5.0
"""The same two while nodes come in: once all are there, a picture of them is due at once."""


class Rhythm:
    """Of one session; times are of the monotonic clock."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._ended = 0.0
        self._cpu = self._took = 0.0

    def made(self, began: float, ended: float, cpu: float) -> None:
        """Note that a picture was made, and the seconds of processor that it took.

        On a machine with much to do it takes longer than that.
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
        """Seconds from the end of one picture to the next.

        Args:
            growth: how many times as much the next one is of: the first ones are of few nodes.
            urgent: whether something came that should not wait for the interval.
            settled: whether the job hangs and the verdict is given.
            rests: whether besides nothing came that could change what is concluded.
            behind: whether something that came still waits to be read.
            arriving: whether nodes are coming in: each picture is of more, and soon the last one.
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
        """Seconds from now until the next picture is due; 0 or less when it is."""
        gap = self.gap(
            urgent=urgent,
            rests=rests,
            behind=behind,
            arriving=arriving,
            settled=settled,
            growth=growth,
        )
        return self._ended + gap - now
