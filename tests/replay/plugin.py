"""A plugin of pytest: keeps each situation that tests have judged as a capture.

`make situations` uses it, and packs the folder. Two that are the same are kept once. Large jobs
are left out: their tests are about cost.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.analysis.verdict import engine
from hangtop_core.capture import Facts, Redaction, save
from hangtop_core.diagnosis import HANG_AFTER_S
from hangtop_core.errors import CaptureWriteError
from hangtop_core.model.updates import Update

if TYPE_CHECKING:
    import pytest

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot

_judge = engine.diagnose
MAX_RANKS = 128
_kept_in: list[Path] = []


def _judge_and_keep(
    snapshot: Snapshot, job: Job | None, hang_after: float = HANG_AFTER_S, **rules: Any
) -> Diagnosis:
    diagnosis = _judge(snapshot, job, hang_after, **rules)
    if job is not None and len(job.ranks) <= MAX_RANKS and not rules and _kept_in:
        _keep(_kept_in[0], snapshot, job, hang_after, diagnosis)
    return diagnosis


engine.diagnose = _judge_and_keep
"""At once: conftest.py, which imports it by name, is read before pytest is configured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--situations", type=Path, metavar="FOLDER", help="where to keep them")


def pytest_configure(config: pytest.Config) -> None:
    folder: Path | None = config.getoption("--situations")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _kept_in.append(folder)


def _keep(
    folder: Path, snapshot: Snapshot, job: Job, hang_after: float, diagnosis: Diagnosis
) -> None:
    try:
        key = msgspec.json.encode((snapshot, job.key, hang_after))
    except TypeError:
        return  # a test's own double stands in it, which no capture can hold
    path = folder / f"{hashlib.sha1(key, usedforsecurity=False).hexdigest()[:16]}.hangtop"
    if path.exists():
        return
    facts = Facts(by="unit tests", job=job.key, hang_after=hang_after)
    try:
        save(path, [Update(snapshot, {job.key: diagnosis})], facts, Redaction())
    except CaptureWriteError:
        if not path.exists():  # another process of the same run has kept it meanwhile
            raise
