"""How long a process waits each time before it goes on: its last waits, and when it was given data.

That waits have ended so far tells for how long the next one may be taken for another of them.
"""

from __future__ import annotations

from msgspec import Struct

KEPT = 6
"""Waits, and times at which data came, that are remembered of a process."""
SHORT_S = 1.5
"""Seconds below which a wait is a part of a step: with a reading a second it cannot be measured."""
MEASURED = 0.5
"""Share of a wait in which its thread has to be seen not to run: between two readings that are far
apart many short waits may pass."""


class Wait(Struct, frozen=True, gc=False):
    """One wait of a main thread that has ended."""

    began: float
    ended: float
    for_ranks: bool
    """Whether it waited for other ranks, by the stack that was sampled."""

    @property
    def lasted_s(self) -> float:
        """How many seconds it took."""
        return self.ended - self.began


class Recurring:
    """The waits of one process."""

    __slots__ = ("_for_ranks", "given", "waits")

    def __init__(self) -> None:
        self.waits: tuple[Wait, ...] = ()
        """Oldest first."""
        self.given: tuple[float, ...] = ()
        """When its main thread has read anything, however little, `SHORT_S` apart; oldest first."""
        self._for_ranks: bool | None = None

    def sampled(self, *, for_ranks: bool) -> None:
        """Note whether the main thread waits for other ranks, by its newest stack.

        A wait that ends before it is sampled is taken for one like the last.
        """
        self._for_ranks = for_ranks

    def left(self, began: float, seen: float, ended: float) -> None:
        """Note that the main thread has left a wait.

        Args:
            began: when it last ran before that.
            seen: when it was last seen not to have run since.
            ended: when it ran again.
        """
        lasted = ended - began
        if lasted < SHORT_S or seen - began < MEASURED * lasted or self._for_ranks is None:
            return
        self.waits = (*self.waits[1 - KEPT :], Wait(began, ended, self._for_ranks))

    def read(self, at: float) -> None:
        """Note that the main thread has read something."""
        burst = bool(self.given) and at - self.given[-1] < SHORT_S
        kept = self.given[:-1] if burst else self.given[1 - KEPT :]
        self.given = (*kept, at)
