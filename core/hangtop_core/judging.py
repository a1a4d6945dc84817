"""What is concluded from every snapshot, for every job of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model import Snapshot
    from hangtop_core.updates import Diagnose

log = logging.getLogger(__name__)


class Judge:
    """Diagnoses all jobs of one snapshot after the other. On the session's thread."""

    def __init__(self, diagnose: Diagnose, hang_after: float) -> None:
        self._diagnose = diagnose
        self._hang_after = hang_after
        self._last: dict[str, Diagnosis] = {}

    def judge(self, snapshot: Snapshot) -> Mapping[str, Diagnosis]:
        """Diagnose every job; where that fails, what was concluded last stands."""
        found: dict[str, Diagnosis] = {}
        for job in snapshot.jobs or (None,):
            key = job.key if job is not None else ""
            try:
                found[key] = self._diagnose(snapshot, job, self._hang_after)
            except Exception:
                log.exception("diagnosing job %r failed", key)
                if key in self._last:
                    found[key] = self._last[key]
        self._last = found
        return dict(found)
