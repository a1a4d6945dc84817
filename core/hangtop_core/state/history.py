"""The pictures that `[` goes back through: bounded, and the coarser the farther back."""

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
"""Ranks that changed, of all kept pictures together. Pictures share what did not change between
them, so this bounds what they take, 1.2 KB each, 60 MB, and what the garbage collector has to look
through while keys wait."""
SHARED = 20
"""So many ranks that did not change count as one that did."""
MOST, LEAST = 240, 6
"""Pictures that are kept of a small job, and of the largest."""


class History:
    """Pictures, oldest first."""

    def __init__(self, pictures: Sequence[Update] = ()) -> None:
        """Begin with some pictures, all of which are kept."""
        self._pictures = list(pictures)
        self._costs = [0] * len(self._pictures)
        self._left: list[Rank] = []
        """Ranks of pictures that are not kept any more: to let go of thousands takes a while."""

    def __len__(self) -> int:
        return len(self._pictures)

    @property
    def pictures(self) -> tuple[Update, ...]:
        """All that are kept, oldest first."""
        return tuple(self._pictures)

    def add(self, update: Update) -> None:
        """Keep a picture. When there are too many, every second one of the older half goes."""
        before = self._pictures[-1] if self._pictures else None
        if before is update:
            return
        if before is not None and before.snapshot is update.snapshot:
            self._pictures[-1] = update  # what is concluded from it has come
            return
        if before is not None and len(self._pictures) == 1 and _is_empty(before):
            # Nobody goes back to when nothing had been seen yet.
            self._pictures, self._costs = [], []
        self._pictures.append(update)
        self._costs.append(_cost(update, before))
        if len(self._pictures) > MOST or (
            sum(self._costs) > RANKS_KEPT and len(self._pictures) > LEAST
        ):
            pinned = _verdict_times(update) | _last_of_attempts(self._pictures)
            self._thin_out(len(self._pictures) // 2, pinned)

    def _thin_out(self, half: int, pinned: frozenset[float]) -> None:
        """Keep every second picture of the older half, and those that were ``pinned``."""
        older = self._pictures[:half]
        kept = [
            one
            for place, one in enumerate(older)
            if place % 2 == 0 or round(one.snapshot.at, 3) in pinned
        ]
        for one in older:
            if not any(map(partial(is_, one), kept)):
                for job in one.snapshot.jobs:
                    self._left += job.ranks
        del self._left[RANKS_KEPT:]  # where nobody asks to let go of them
        self._pictures[:half] = kept
        before_each = (None, *kept)
        self._costs[:half] = map(_cost, kept, before_each)

    def let_go(self) -> bool:
        """Let go of some of what is not kept any more; whether there is more of it."""
        del self._left[-PART:]
        return bool(self._left)

    def place(self, shown: Update) -> int:
        """How many pictures are before the shown one."""
        return sum(one.snapshot.at < shown.snapshot.at for one in self._pictures)

    def near(self, shown: Update, step: int) -> Update | None:
        """The picture `step` before (negative) or after the shown one; None when there is none."""
        later = [i for i, one in enumerate(self._pictures) if one.snapshot.at > shown.snapshot.at]
        if step > 0:
            place = (later[0] if later else len(self._pictures)) + step - 1
        else:
            place = self.place(shown) + step
        return self._pictures[place] if 0 <= place < len(self._pictures) else None


def _verdict_times(update: Update) -> frozenset[float]:
    """When the pictures were taken that the verdicts on hangs are of which are over."""
    told = update.diagnoses.values()
    ends = [one.ended for one in told] + [past.ended for one in told for past in one.past_attempts]
    return frozenset(one.verdict_at for one in ends if one is not None and one.verdict_at)


def _last_of_attempts(pictures: Sequence[Update]) -> frozenset[float]:
    """When the last picture of each past attempt was taken that the newest picture still lists.

    A short attempt may be on no other.
    """
    judged = [one for one in pictures if one.diagnoses]
    ends = [_past_ends(one) for one in judged]
    return frozenset(
        round(one.snapshot.at, 3)
        for one, before, after in zip(judged, ends, ends[1:], strict=False)
        if (after - before) & ends[-1]
    )


def _past_ends(update: Update) -> frozenset[tuple[int | None, float]]:
    """Numbers and ends of the past attempts of all jobs, whose keys may have changed since."""
    told = update.diagnoses.values()
    return frozenset((past.number, past.ended.at) for one in told for past in one.past_attempts)


def _is_empty(update: Update) -> bool:
    """Whether no node has answered yet."""
    nodes = update.snapshot.nodes
    return bool(nodes) and all(node.state == "connecting" for node in nodes)


def _cost(update: Update, before: Update | None) -> int:
    """Ranks that are others than in the picture before, and something for the rest."""
    old = {job.key: job.ranks for job in before.snapshot.jobs} if before is not None else {}
    count = 0
    for job in update.snapshot.jobs:
        ranks = old.get(job.key, ())
        count += len(job.ranks) // SHARED
        if ranks is not job.ranks:
            shared = sum(map(is_, job.ranks, ranks))
            count += len(job.ranks) - shared
    return count
