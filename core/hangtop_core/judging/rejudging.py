"""Stored snapshots, judged by this version of hangtop."""

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
    """Return an update with the diagnoses of this version from its snapshot alone."""
    snapshot = update.snapshot
    diagnoses = {job.key: diagnose(snapshot, job, hang_after) for job in snapshot.jobs}
    return replace(update, diagnoses=diagnoses or {"": diagnose(snapshot, None, hang_after)})


def rejudge(pictures: Sequence[Update], hang_after: float) -> tuple[Update, ...]:
    """Judge the newest of some updates anew, with the hangs before the jobs' ends.

    The updates that such a hang is taken from are judged anew, too; the diagnoses of all others
    stay.

    Args:
        pictures: oldest first.
        hang_after: seconds without progress after which a job counts as hung.
    """
    *earlier, newest = pictures
    pictures = (*earlier, judge(newest, hang_after))
    judged, sources = _followed(pictures)
    if any(update.snapshot.at in sources for update in earlier):
        fresh = (
            _fresh(update, hang_after) if update.snapshot.at in sources else update
            for update in earlier
        )
        judged, _ = _followed((*fresh, pictures[-1]))
    return (*judged[:-1], _agreed(judged[-1], pictures[-1], newest))


def _agreed(judged: Update, alone: Update, stored: Update) -> Update:
    """Return the newest update without hangs that were over before the end.

    Its recorder took more snapshots than are kept. Its earlier attempts stay.
    """
    over = {
        key
        for key, diagnosis in stored.diagnoses.items()
        if diagnosis.ended and not diagnosis.hung_until_end
    }
    diagnoses = {
        key: replace(alone.diagnoses.get(key, diagnosis), past_attempts=diagnosis.past_attempts)
        if key in over
        else diagnosis
        for key, diagnosis in judged.diagnoses.items()
    }
    return replace(judged, diagnoses=diagnoses)


def _followed(pictures: Sequence[Update]) -> tuple[tuple[Update, ...], frozenset[float]]:
    """Return updates with earlier hangs added, and the times of the snapshots these come from."""
    past = PastHangs()
    judged = [
        replace(update, diagnoses=past.add(update.snapshot, update.diagnoses))
        for update in pictures
    ]
    return tuple(judged), past.sources


def _fresh(update: Update, hang_after: float) -> Update:
    """Judge an update anew; return it without diagnoses where that fails (it may be forged)."""
    try:
        return judge(update, hang_after)
    except Exception:
        log.exception("a picture cannot be judged anew")
        return replace(update, diagnoses={})
