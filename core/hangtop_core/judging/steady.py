"""That a hang which was called one stays one until somebody makes progress, and slow steps slow.

A rank may be met at another line for a moment, a sample may fail, a node may say nothing: then the
newest picture alone is not enough to call a hang, and is no sign of progress either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.diagnosis import MAKES_PROGRESS, STALLED_AFTER_S, Diagnosis

if TYPE_CHECKING:
    from hangtop_core.jobs.following import Identity

VARIES_S = 30.0
"""Seconds for which a job stays slow after steps were last measured to be long."""


class Steady:
    """Keeps what was concluded of one job, over its pictures."""

    def __init__(self) -> None:
        self._hung: Diagnosis | None = None
        """The last diagnosis of the hang that goes on."""
        self._slow: Diagnosis | None = None
        """The last one that told steps to be slow, at `_at`."""
        self._alive: frozenset[Identity] = frozenset()
        self._at = self._since = 0.0
        """When that was made, and the first of the same hang."""

    def take(self, diagnosis: Diagnosis, at: float, alive: frozenset[Identity]) -> Diagnosis:
        """Return what stands: this diagnosis, or the hang before it, where nothing has moved.

        Args:
            diagnosis: of the newest picture.
            at: the time of that.
            alive: the ranks that live; where others came, it is another attempt.
        """
        if not alive <= self._alive:
            self._hung = self._slow = None
        self._alive = alive
        if diagnosis.state == "hung":
            self._since = at if self._hung is None else self._since
            self._hung, self._slow, self._at = diagnosis, None, at
        elif diagnosis.state == "slow":
            self._hung, self._slow, self._at = None, diagnosis, at
        elif not self._stands(diagnosis, at):
            self._hung = self._slow = None
        held = self._hung or self._slow
        return diagnosis if held in (None, diagnosis) else _held(held, diagnosis, at - self._at)

    def _stands(self, diagnosis: Diagnosis, at: float) -> bool:
        """Whether what was concluded before holds on: nothing has moved, or steps vary a little."""
        if self._hung is not None:
            return diagnosis.state == "unknown" and not moved_since(self._since, diagnosis, at)
        return diagnosis.state == "progressing" and at - self._at <= VARIES_S


def _held(before: Diagnosis, now: Diagnosis, later: float) -> Diagnosis:
    """Return a diagnosis that still holds, ``later`` seconds after it was made."""
    hung = before.hung_for_s
    return replace(
        before,
        observed_at=now.observed_at,
        observed_for_s=now.observed_for_s,
        hung_for_s=None if hung is None else round(hung + later, 1),
        stalled_for_s=now.stalled_for_s,
        blind_spots=now.blind_spots,
    )


def moved_since(told: float, diagnosis: Diagnosis, at: float) -> bool:
    """Whether progress was seen after a hang was told.

    That a job is no longer called hung is none: a node may be silent, or a rank may run and get
    nowhere.
    """
    if diagnosis.state in MAKES_PROGRESS:
        return True
    if diagnosis.state == "exited" or diagnosis.stalled_for_s is None:
        # Less than `STALLED_AFTER_S` is not said; without ranks that can be seen neither.
        return False
    return at - diagnosis.stalled_for_s > told + STALLED_AFTER_S
