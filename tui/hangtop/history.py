"""The pictures that `[` goes back through: bounded, and the coarser the farther back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.updates import Update

RANKS_KEPT = 50_000
"""Ranks in all kept pictures together. Pictures share what did not change between them, so this
bounds the worst case, a job whose every rank changes every second: 1.2 KB each, 60 MB, and what
the garbage collector has to look through while keys wait."""
MOST, LEAST = 240, 6
"""Pictures that are kept of a small job, and of the largest."""


class History:
    """Pictures, oldest first."""

    def __init__(self) -> None:
        self._pictures: list[Update] = []

    def __len__(self) -> int:
        return len(self._pictures)

    def add(self, update: Update) -> None:
        """Keep a picture. When there are too many, every second one of the older half goes."""
        self._pictures.append(update)
        ranks = sum(len(job.ranks) for job in update.snapshot.jobs)
        if len(self._pictures) > max(LEAST, min(MOST, RANKS_KEPT // max(ranks, 1))):
            half = len(self._pictures) // 2
            self._pictures[:half] = self._pictures[:half:2]

    def near(self, shown: Update, step: int) -> Update | None:
        """The picture `step` before (negative) or after the shown one; None when there is none."""
        later = [i for i, one in enumerate(self._pictures) if one.snapshot.at > shown.snapshot.at]
        if step > 0:
            place = (later[0] if later else len(self._pictures)) + step - 1
        else:
            here = sum(one.snapshot.at < shown.snapshot.at for one in self._pictures)
            place = here + step
        return self._pictures[place] if 0 <= place < len(self._pictures) else None
