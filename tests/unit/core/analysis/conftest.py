"""Every diagnosis that a test here asks for is also read as English, of one rank and of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from support import build, logs, verdicts
from support.sentences import doubled, faults

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot

MANY = 50
"""Jobs of so many ranks are not doubled: their tests are about size."""


@pytest.fixture(autouse=True)
def sentences_are_right(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test whose diagnosis, or that of twice its ranks, says something wrongly."""

    def read(snapshot: Snapshot, job: Job | None, *rest: Any, **more: Any) -> Diagnosis:
        found = diagnose(snapshot, job, *rest, **more)
        wrong = list(faults(found))
        if job is not None and 0 < len(job.ranks) < MANY:
            wrong += faults(diagnose(*doubled(snapshot, job), *rest, **more))
        assert not wrong, "\n".join(wrong)
        return found

    for module in (request.module, build, logs, verdicts):
        if hasattr(module, "diagnose"):
            monkeypatch.setattr(module, "diagnose", read)
