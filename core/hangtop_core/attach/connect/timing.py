"""Clocks and time limits of a connection."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from msgspec import Struct

_DOUBLINGS = 64
"""More doublings than any wait needs to reach its bound; 2.0**1024 is no float."""
_MOST_FAILURES = 16
"""Maximum count of failures: no wait is longer by then."""


def doubled(first: float, times: int, bound: float) -> float:
    """Return a wait that was doubled so many times, up to a bound."""
    return min(first * 2.0 ** min(times, _DOUBLINGS), bound)


class Timing(Struct, frozen=True):
    """All time limits of a link, in seconds."""

    hello: float = 20.0
    """From starting the command to the probe's first message."""
    ship: float = 90.0
    """From a node's request for components to the probe's first message."""
    ping: float | None = 5.0
    """Silence after which a node is pinged; None where nothing can be asked, and only silence shows
    a failure. Half of `silence` where the node sends unasked."""
    slow: float = 3.0
    """Without a pong for this long a node is slow."""
    lost: float = 15.0
    """Without any answer for this long it is lost, and reconnected."""
    table: float = 10.0
    """With its process table late by this long a node is slow, even if it answers."""
    silence: float = 60.0
    """Without any message for this long a probe ends: its connection may be half open."""
    kill: float = 2.0
    """From ending a probe's input to killing it."""
    retry_first: float = 0.5
    retry_last: float = 60.0
    rest: float = 0.0
    """Pause between two rounds of unattended requests to a node."""
    login: float = 0.0
    """Extra time of a request, where each is a login of its own."""
    healthy: float = 30.0
    """Ready for this long, the waits between retries start from the first again."""

    def backoff(self, failures: int) -> float:
        """Return how long to wait after so many failures: random, up to a doubling bound."""
        bound = doubled(self.retry_first, failures, self.retry_last)
        return bound * random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, hides nothing


class Retry:
    """The backoff of one link: the more failures, the longer the wait."""

    def __init__(self, timing: Timing) -> None:
        self.at: float | None = None
        """When (monotonic) to connect; None where that is not planned."""
        self.failures = 0
        """Number of failures in a row."""
        self._timing = timing

    def plan(self, now: float) -> float:
        """Plan the next connection after a failure; return the seconds until then."""
        wait = self._timing.backoff(self.failures)
        self.failures = min(self.failures + 1, _MOST_FAILURES)
        self.at = now + wait
        return wait


class Moment(NamedTuple):
    """The time, on both clocks: `epoch` for people, `mono` for waits."""

    epoch: float
    mono: float

    @classmethod
    def now(cls) -> Moment:
        """Return the present time."""
        return cls(time.time(), time.monotonic())
