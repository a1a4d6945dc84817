"""The last waits of a process that ended, and when it received data.

Ended waits show how long the next wait may last and still be another one of them.
"""

from __future__ import annotations

from msgspec import Struct

KEPT = 6
"""Number of waits, and of times at which data came, that are kept per process."""
SHORT_S = 1.5
"""Seconds below which a wait is part of a step: one reading a second cannot measure it."""
MEASURED = 0.5
"""Share of a wait in which its thread must be seen not to run: between two distant readings many
short waits may pass."""


class Wait(Struct, frozen=True, gc=False):
    """One ended wait of a main thread."""

    began: float
    ended: float
    for_ranks: bool
    """Whether the process waited for other ranks, by its sampled stack."""

    @property
    def lasted_s(self) -> float:
        """Return the duration in seconds."""
        return self.ended - self.began


class Recurring:
    """The waits of one process."""

    __slots__ = ("_for_ranks", "given", "waits")

    def __init__(self) -> None:
        self.waits: tuple[Wait, ...] = ()
        """Oldest first."""
        self.given: tuple[float, ...] = ()
        """When the main thread read data, however little, at least `SHORT_S` apart; oldest
        first."""
        self._for_ranks: bool | None = None

    def sampled(self, *, for_ranks: bool) -> None:
        """Note whether the main thread waits for other ranks, by its newest stack.

        A wait that ends before it is sampled counts as one like the last.
        """
        self._for_ranks = for_ranks

    def left(self, began: float, last_resting: float, ended: float) -> None:
        """Note that the main thread has left a wait.

        Args:
            began: when the thread last ran before the wait.
            last_resting: when the thread was last seen not to have run since.
            ended: when the thread ran again.
        """
        lasted = ended - began
        if lasted < SHORT_S or last_resting - began < MEASURED * lasted or self._for_ranks is None:
            return
        self.waits = (*self.waits[1 - KEPT :], Wait(began, ended, self._for_ranks))

    def read(self, at: float) -> None:
        """Note that the main thread has read data."""
        burst = bool(self.given) and at - self.given[-1] < SHORT_S
        kept = self.given[:-1] if burst else self.given[1 - KEPT :]
        self.given = (*kept, at)
