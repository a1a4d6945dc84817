"""What gdb leaves behind in a rank, without gdb."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hangtop_probe import inject
from hangtop_probe.recorderread import Told
from hangtop_probe.recorderways import Facts


@pytest.mark.parametrize(("running", "code"), [(True, "nothing-written"), (False, "not-running")])
def test_a_rank_that_has_written_nothing_keeps_no_folder_of_ours(
    monkeypatch: pytest.MonkeyPatch, running: bool, code: str
) -> None:
    made: list[str] = []
    make = tempfile.mkdtemp

    def noted(prefix: str, dir: str) -> str:  # noqa: A002  # as it is called
        made.append(make(prefix=prefix, dir=dir))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    monkeypatch.setattr(inject, "_gdb", lambda pid, code: True)
    monkeypatch.setattr(inject, "_running", lambda pid: running)
    rank = Facts(os.getpid(), 0, os.geteuid(), {}, frozenset(), loaded=True)
    with pytest.raises(Told) as told:
        inject.dump(rank)
    assert told.value.message["code"] == code
    assert made
    assert not Path(made[0]).exists()
