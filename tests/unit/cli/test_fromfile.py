from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop.cli.main import main
from hangtop_core.capture import Facts, load, save
from hangtop_hook.numericsfile import VARIABLE
from support.record import path_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RECORDING = str(path_of("skip"))


def test_a_capture_in_which_nobody_looks_for_nan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numerics", RECORDING]) != 0
    told = capsys.readouterr().err
    assert "no rank of this capture's job looks for inf and nan" in told
    assert "--detect-overflow" in told


def test_a_capture_from_before_the_first_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = load(RECORDING).newest
    (job,) = newest.snapshot.jobs
    ranks = []
    for rank in job.ranks:
        env = {**rank.process.env, VARIABLE: "{}"}
        process = msgspec.structs.replace(rank.process, env=env)
        ranks.append(msgspec.structs.replace(rank, process=process))
    jobs = (msgspec.structs.replace(job, ranks=tuple(ranks)),)
    snapshot = msgspec.structs.replace(newest.snapshot, jobs=jobs)
    save(tmp_path / "a.hangtop", [msgspec.structs.replace(newest, snapshot=snapshot)], Facts())
    assert main(["numerics", str(tmp_path / "a.hangtop")]) != 0
    told = capsys.readouterr().err
    assert "look for inf and nan, but when the capture was made: not read yet" in told
