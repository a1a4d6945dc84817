"""Pictures that were stored, judged by this version of hangtop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.judging.past_hangs import PastHangs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.updates import Update

log = logging.getLogger(__name__)


def judge(update: Update, hang_after: float) -> Update:
    """A picture with what this version of hangtop concludes from it alone."""
    snapshot = update.snapshot
    found = {job.key: diagnose(snapshot, job, hang_after) for job in snapshot.jobs}
    return replace(update, diagnoses=found or {"": diagnose(snapshot, None, hang_after)})


def rejudge(pictures: Sequence[Update], hang_after: float) -> tuple[Update, ...]:
    """Pictures, oldest first, the newest judged anew, with what jobs hung by before their end.

    Those that this is taken from are judged anew, too; the verdicts on all others stay.
    """
    *earlier, newest = pictures
    pictures = (*earlier, judge(newest, hang_after))
    told, sources = _followed(pictures)
    if any(one.snapshot.at in sources for one in earlier):
        fresh = (_fresh(one, hang_after) if one.snapshot.at in sources else one for one in earlier)
        told, _ = _followed((*fresh, pictures[-1]))
    return (*told[:-1], _agreed(told[-1], pictures[-1], newest))


def _agreed(told: Update, alone: Update, stored: Update) -> Update:
    """The newest picture, without hangs that were seen to be over before the end.

    Whoever took it has looked more often than pictures are kept. Its earlier attempts stay.
    """
    over = {key for key, one in stored.diagnoses.items() if one.ended and not one.hung_until_end}
    diagnoses = {
        key: replace(alone.diagnoses.get(key, one), past_attempts=one.past_attempts)
        if key in over
        else one
        for key, one in told.diagnoses.items()
    }
    return replace(told, diagnoses=diagnoses)


def _followed(pictures: Sequence[Update]) -> tuple[tuple[Update, ...], frozenset[float]]:
    """Pictures with what is known from those before, and when those were taken that tell it."""
    past = PastHangs()
    told = [replace(one, diagnoses=past.add(one.snapshot, one.diagnoses)) for one in pictures]
    return tuple(told), past.sources


def _fresh(update: Update, hang_after: float) -> Update:
    """A picture judged anew; without any verdict where that fails, as it may be anybody's."""
    try:
        return judge(update, hang_after)
    except Exception:
        log.exception("a picture cannot be judged anew")
        return replace(update, diagnoses={})
