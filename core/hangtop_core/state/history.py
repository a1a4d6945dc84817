"""History of snapshots for `[`: bounded, and coarser the older they are."""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING

from hangtop_core.scheduling.interruptible import PART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Rank
    from hangtop_core.model.updates import Update

RANKS_KEPT = 50_000
"""Maximum changed ranks of all kept snapshots together. Snapshots share unchanged ranks, so this
bounds their memory, 1.2 KB each, 60 MB, and the objects that the garbage collector scans while keys
wait."""
SHARED = 20
"""Number of unchanged ranks that count as one changed rank."""
MOST, LEAST = 240, 6
"""Snapshots that are kept of a small job, and of the largest."""


class History:
    """Snapshots with their diagnoses, oldest first."""

    def __init__(self, pictures: Sequence[Update] = ()) -> None:
        """Begin with some snapshots, all of which are kept."""
        self._updates = list(pictures)
        self._costs = [0] * len(self._updates)
        self._left: list[Rank] = []
        """Ranks of dropped snapshots: to free thousands of them takes a while."""

    def __len__(self) -> int:
        return len(self._updates)

    @property
    def pictures(self) -> tuple[Update, ...]:
        """Return all kept snapshots, oldest first."""
        return tuple(self._updates)

    def add(self, update: Update) -> None:
        """Keep a snapshot. When there are too many, drop every second one of the older half."""
        before = self._updates[-1] if self._updates else None
        if before is update:
            return
        if before is not None and before.snapshot is update.snapshot:
            self._updates[-1] = update  # its diagnosis has arrived
            return
        if before is not None and len(self._updates) == 1 and _is_empty(before):
            # A state before the first observation is of no use.
            self._updates, self._costs = [], []
        self._updates.append(update)
        self._costs.append(_cost(update, before))
        if len(self._updates) > MOST or (
            sum(self._costs) > RANKS_KEPT and len(self._updates) > LEAST
        ):
            pinned = _verdict_times(update) | _last_of_attempts(self._updates)
            self._thin_out(len(self._updates) // 2, pinned)

    def _thin_out(self, half: int, pinned: frozenset[float]) -> None:
        """Keep every second snapshot of the older half, and the ``pinned`` ones."""
        older = self._updates[:half]
        kept = [
            update
            for place, update in enumerate(older)
            if place % 2 == 0 or round(update.snapshot.at, 3) in pinned
        ]
        for update in older:
            if not any(map(partial(is_, update), kept)):
                for job in update.snapshot.jobs:
                    self._left += job.ranks
        del self._left[RANKS_KEPT:]  # in case the freeing is never requested
        self._updates[:half] = kept
        before_each = (None, *kept)
        self._costs[:half] = map(_cost, kept, before_each)

    def let_go(self) -> bool:
        """Free some ranks of dropped snapshots; return whether there are more."""
        del self._left[-PART:]
        return bool(self._left)

    def place(self, shown: Update) -> int:
        """Return the number of snapshots before the shown one."""
        return sum(update.snapshot.at < shown.snapshot.at for update in self._updates)

    def near(self, shown: Update, step: int) -> Update | None:
        """Return the snapshot `step` before (negative) or after the shown one, or None."""
        later = [
            i for i, update in enumerate(self._updates) if update.snapshot.at > shown.snapshot.at
        ]
        if step > 0:
            place = (later[0] if later else len(self._updates)) + step - 1
        else:
            place = self.place(shown) + step
        return self._updates[place] if 0 <= place < len(self._updates) else None


def _verdict_times(update: Update) -> frozenset[float]:
    """Return the times of the snapshots in which verdicts on ended hangs were given."""
    diagnoses = update.diagnoses.values()
    ends = [diagnosis.ended for diagnosis in diagnoses] + [
        past.ended for diagnosis in diagnoses for past in diagnosis.past_attempts
    ]
    return frozenset(end.verdict_at for end in ends if end is not None and end.verdict_at)


def _last_of_attempts(pictures: Sequence[Update]) -> frozenset[float]:
    """Return the time of the last snapshot of each past attempt that the newest one still lists.

    A short attempt may be in no other snapshot.
    """
    judged = [update for update in pictures if update.diagnoses]
    ends = [_past_ends(update) for update in judged]
    return frozenset(
        round(update.snapshot.at, 3)
        for update, before, after in zip(judged, ends, ends[1:], strict=False)
        if (after - before) & ends[-1]
    )


def _past_ends(update: Update) -> frozenset[tuple[int | None, float]]:
    """Return numbers and ends of the past attempts of all jobs, whose keys may have changed."""
    diagnoses = update.diagnoses.values()
    return frozenset(
        (past.number, past.ended.at) for diagnosis in diagnoses for past in diagnosis.past_attempts
    )


def _is_empty(update: Update) -> bool:
    """Return whether no node has answered yet."""
    nodes = update.snapshot.nodes
    return bool(nodes) and all(node.state == "connecting" for node in nodes)


def _cost(update: Update, before: Update | None) -> int:
    """Return the ranks that differ from the snapshot before, plus a share of the others."""
    old = {job.key: job.ranks for job in before.snapshot.jobs} if before is not None else {}
    count = 0
    for job in update.snapshot.jobs:
        ranks = old.get(job.key, ())
        count += len(job.ranks) // SHARED
        if ranks is not job.ranks:
            shared = sum(map(is_, job.ranks, ranks))
            count += len(job.ranks) - shared
    return count
