"""Hysteresis: a hang lasts until a rank makes progress, and slow steps stay slow for a while.

A rank may be sampled at another line for a moment, a sample may fail, a node may not respond: the
newest snapshot alone then proves neither a hang nor progress.
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
    """Keep the last conclusion on one job over its snapshots."""

    def __init__(self) -> None:
        self._hung: Diagnosis | None = None
        """The last diagnosis of the present hang."""
        self._slow: Diagnosis | None = None
        """The last diagnosis of slow steps, made at `_at`."""
        self._alive: frozenset[Identity] = frozenset()
        self._at = self._since = 0.0
        """When the kept diagnosis was made, and the first diagnosis of the same hang."""

    def take(self, diagnosis: Diagnosis, at: float, alive: frozenset[Identity]) -> Diagnosis:
        """Return the diagnosis that stands: this one, or the hang before it if nothing has moved.

        Args:
            diagnosis: of the newest snapshot.
            at: the time of that snapshot.
            alive: the live ranks; new ranks mean another attempt.
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
        """Whether the earlier conclusion still holds: nothing has moved, or steps vary a little."""
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


def moved_since(reported_at: float, diagnosis: Diagnosis, at: float) -> bool:
    """Whether progress was seen after a hang was reported.

    A state other than hung is no progress: a node may not respond, or a rank may run without
    progress.
    """
    if diagnosis.state in MAKES_PROGRESS:
        return True
    if diagnosis.state == "exited" or diagnosis.stalled_for_s is None:
        # None below `STALLED_AFTER_S`, and without visible ranks.
        return False
    return at - diagnosis.stalled_for_s > reported_at + STALLED_AFTER_S
