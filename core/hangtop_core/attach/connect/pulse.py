"""Health of a probe's connection: hello in time, answers to pings, process table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hangtop_core.attach.connect.timing import Timing

Sign = Literal["ping", "sign"]
"""What to send: a ping must be answered, a sign need not."""
Beat = Literal["good", "late", "stalled", "lost"]
"""`late`: no answer to a ping for a while; `stalled`: it answers, but its process table does not
come; `lost`: nothing was heard for so long that the connection is given up, also before its
hello."""
_STALLED = (
    "it answers, but its process table stands still: something there hangs while /proc is read, "
    "or the node has no time for it"
)


LATENCY_S = 300.0
"""Seconds between two pings of a node that sends unasked: they measure its latency."""
SLOW_S = 0.25
"""Seconds for an answer above which the next sign is a ping again: the probe may only have been
busy, as it is at first, and that time must not stay as the latency of its node."""
GRACE_S = 1.0
"""Seconds by which an expected message may be late before a node is pinged."""


class Pulse:
    """Health of one connection; all times are of the monotonic clock."""

    def __init__(self, timing: Timing, now: float, patience: float = 0.0) -> None:
        """``patience`` is the seconds until its hello, where that is more than usual."""
        self.latency: float | None = None
        """Seconds of the last ping; the reader resets it."""
        self.ready_since: float | None = None
        """When the probe said hello; None before."""
        self.ships = False
        """Whether missing components were sent to its node, which has logged in then."""
        self.silence = timing.silence
        """Seconds without any message after which its probe ends."""
        self._timing = timing
        self._started = now
        self._patience = max(timing.hello, patience)
        self._heard = self._next_sign = self._next_ping = now
        self._pinged: float | None = None
        self._table_due: float | None = None
        """When the process table is overdue; None while nothing is watched."""
        self._expected = now
        """End of the announced silence."""

    def ship(self, now: float) -> None:
        """Note that missing components are sent to the node, which takes time."""
        self.ships = True
        self._patience = now - self._started + self._timing.ship

    def hello(self, now: float) -> None:
        """Note the probe's hello: from now on it can be pinged."""
        self.ready_since = self._expected = now
        self._heard = self._next_sign = self._next_ping = now

    def logs_in(self, now: float, hold_s: float) -> bool:
        """Return whether it has yet to log in, and has tried for less than ``hold_s`` seconds."""
        waits = self.ready_since is None and not self.ships
        return waits and now - self._started < hold_s

    def heard(self, now: float) -> None:
        """Note a message, whatever its content."""
        self._heard = now

    def table(self, now: float, pause: float) -> None:
        """Note a piece of the process table; the next one is due in ``pause`` seconds."""
        self._table_due = now + pause + self._timing.table
        self._expected = now + pause + GRACE_S

    def due(self, now: float) -> Sign | None:
        """Return what to send now, if anything, and note that it is sent.

        After recent messages, or before expected ones, a sign is sent only as often as the probe
        needs to know that it is heard, and a ping seldom.
        """
        timing = self._timing
        if timing.ping is None or self._pinged is not None or self.ready_since is None:
            return None
        silent = now - self._heard >= timing.ping and now >= self._expected
        if not silent and now < self._next_sign:
            return None
        self._next_sign = now + self.silence / 2
        return "ping" if silent or now >= self._next_ping else "sign"

    @property
    def quiet_until(self) -> float:
        """Return until when nothing is due without a message; the past if one is awaited."""
        table = math.inf if self._table_due is None else self._table_due
        if self._timing.ping is None:
            return table
        if self._pinged is not None:
            return 0.0
        silent = max(self._heard + self._timing.ping, self._expected)
        return min(self._next_sign, silent, table)

    def ping(self, now: float) -> None:
        """Note that a ping is sent."""
        self._pinged = now
        self._next_ping = now + LATENCY_S

    def pong(self) -> None:
        """Note that the ping was answered."""
        if self._pinged is not None:
            self.latency = self._heard - self._pinged
            self._pinged = None
            if self.latency > SLOW_S:
                self._next_ping = self._heard

    def waiting(self, now: float) -> float:
        """Return for how long the present ping has had no answer, in seconds.

        Where no ping is possible, return for how long nothing was heard.
        """
        since = self._heard if self._timing.ping is None else self._pinged
        return 0.0 if since is None else now - since

    def beat(self, now: float, clogged: bool = False) -> Beat:
        """Return its health; ``clogged`` says that data written to it do not go out."""
        if self.ready_since is None:
            return "lost" if now - self._started > self._patience else "good"
        waiting, timing = self.waiting(now), self._timing
        if timing.ping is None:
            # Only unasked messages can be missed, and only once they are due.
            overdue = now - self._table_due if self._table_due is not None else 0.0
            return "lost" if overdue > timing.lost else "late" if overdue > 0.0 else "good"
        if waiting > timing.lost and (clogged or now - self._heard > timing.lost):
            return "lost"
        if waiting > timing.slow:
            return "late"
        stalled = self._table_due is not None and now > self._table_due
        return "stalled" if stalled else "good"

    def healthy(self, now: float) -> bool:
        """Return whether it has been ready for so long that earlier failures count no more."""
        return self.ready_since is not None and now - self.ready_since > self._timing.healthy

    def why(self, beat: Beat, now: float) -> str:
        """Return what is wrong, for people."""
        if self.ready_since is None:
            return f"no hello from the probe within {self._patience:g} s"
        if beat == "lost":
            return f"no answer for {self.waiting(now):.0f} s"
        if beat == "stalled":
            return _STALLED
        if self._timing.ping is None:
            return f"nothing was heard for {self.waiting(now):.0f} s"
        return f"no answer for more than {self._timing.slow:g} s"

    def forgive(self, seconds: float, now: float) -> None:
        """Do not count so many seconds as waiting."""
        self._started = min(self._started + seconds, now)
        self._heard = min(self._heard + seconds, now)
        if self._pinged is not None:
            self._pinged = min(self._pinged + seconds, now)
        if self._table_due is not None:
            self._table_due += seconds
