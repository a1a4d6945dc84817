"""The first inf or nan of real models: found by the hook, told by the command and verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.model.numerics import Numerics, earliest
from hangtop_core.tools.numerics_files import find, read
from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and output of a process that goes through all cases."""
    folder = tmp_path_factory.mktemp("cases")
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "numerics_job.py"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder, done.stdout


def found(folder: Path, case: str, batches: frozenset[int] = frozenset()) -> Numerics:
    """What one case wrote."""
    [path] = find([folder / case])
    return read(path, batches.__contains__)


def test_nothing_of_what_a_program_computes_changes(cases: tuple[Path, str]) -> None:
    _, output = cases
    assert "CHANGED" not in output
    for name in ("fine", "activation", "gradient", "recomputed", "scaled", "compiled", "spread"):
        assert f"{name}: same 19\n" in output


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("activation", "nan in output of blocks.1 (Block) at batch 2"),
        # What the program shows of its own accord is looked at like an output.
        ("inside", "inf in out times factor of blocks.1 (Block) at batch 2"),
        ("weight", "nan in blocks.2.down.weight at batch 2"),
        ("input", "inf in input[0] of Net at batch 2"),
        ("gradient", "nan in blocks.0.up.weight.grad at batch 2"),
        ("recomputed", "inf in output of blocks.1 (Block) at batch 2"),
        # Each batch of this one is two calls; the first of each raises.
        ("failing", "nan in output of blocks.1 (Block) at batch 3"),
        ("compiled", "nan in output of Net (OptimizedModule) at batch 2"),
        # Within the pass there are no modules, or every rank has the same weights.
        ("compiled weight", "nan in blocks.2.down.weight at batch 2"),
        ("spread", "nan in blocks.2.down.weight at batch 2"),
    ],
)
def test_the_first_is_named(cases: tuple[Path, str], case: str, sentence: str) -> None:
    told = found(cases[0], case)
    assert told.failure is None
    first = told.first
    assert first is not None
    assert first.sentence == sentence
    assert (first.way == "weights") == (case in ("compiled weight", "spread"))
    if first.way == "forward":
        assert first.site.partition(":")[0].endswith("numerics_job.py")
        assert first.frames[-1].where == first.where
        assert "nan" in (one.high for one in first.frames[-1].measures) or first.what == "inf"


def test_what_is_as_it_should_be_is_not_reported(cases: tuple[Path, str]) -> None:
    """A mask of -inf goes into a block of every case; GradScaler finds its scale by overflows."""
    assert found(cases[0], "fine").firsts == ()
    [scaled] = found(cases[0], "scaled").firsts
    assert scaled.expected
    assert scaled.kind == "scaled gradient"


def test_frames_before_and_batches_that_are_traced(cases: tuple[Path, str]) -> None:
    first = found(cases[0], "activation").first
    assert first is not None
    names = [frame.module for frame in first.frames]
    assert names == ["blocks.1.up", "blocks.1.act", "blocks.1.down", "blocks.1"]
    highs = {one.name: one.high for one in first.frames[-1].measures}
    assert highs["input[mask]"] == "inf"
    traced = found(cases[0], "traced", frozenset(range(9))).traced
    assert sorted({frame.batch for frame in traced}) == [1, 3, 4]
    assert {frame.way for frame in traced} == {"forward", "backward", "step"}
    done = run_hangtop("numerics", str(cases[0] / "traced"), "--batch", "3", "--json")
    [rank] = json.loads(done.stdout)["ranks"]
    assert {frame["batch"] for frame in rank["traced"]} == {3}
    assert done.returncode == 0


def test_the_program_ends_where_that_was_asked_for(cases: tuple[Path, str]) -> None:
    folder, output = cases
    assert "abort: " in output
    assert "the first nan is in output of blocks.1 at batch 2" in output
    assert "after: ended after batch 1, as --abort-after-batch says" in output
    ended = found(folder, "after")
    assert ended.notes == ("ended after batch 1, as asked for",)
    assert ended.seen is not None
    assert ended.seen.batch == 1


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Numerics]]:
    """A run in which rank 1 leaves its loop on a loss that is not finite."""
    folder = tmp_path_factory.mktemp("numerics") / "run"
    hangtop = [sys.executable, "-m", "hangtop", "run", "--detect-overflow", "--dir", str(folder)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
    script = [str(SUPPORT / "gloo_job.py"), "overflow"]
    output = folder.parent / "output.txt"
    with Started(*hangtop, "--", *torchrun, "--nproc-per-node=2", *script, output=output):

        def seen() -> bool:
            files = sorted((folder / "numerics").glob("rank*.jsonl"))
            return len(files) == 2 and any(read(path).first for path in files)

        assert wait_until(seen), output.read_text()
        yield [read(path) for path in find([folder])]


def test_a_hang_by_a_rank_that_left_on_nan(job: list[Numerics], tmp_path: Path) -> None:
    first = earliest(job)
    assert first is not None
    assert (first[0].rank, first[1].module, first[1].batch) == (1, "layers.1", 3)
    pid = str(first[0].pid)
    done = run_hangtop("diagnose", "--json", "--hang-after", "2", "--pid", pid)
    document = json.loads(done.stdout)
    assert document["numbers"]["rank"] == 1
    verdict: dict[str, Any] = document["verdicts"][0]
    assert (verdict["cause"], verdict["culprits"][0]["rank"]) == ("missing-collective", 1)
    told = [one for one in verdict["evidence"] if one["source"] == "numerics"]
    assert [one["rank"] for one in told] == [1]
    assert told[0]["text"].startswith("saw inf in output of layers.1 (Hot) at batch 3")
    done = run_hangtop("numerics", "--pid", pid)
    assert done.returncode == 10
    assert "First: rank 1" in done.stdout
    capture = str(tmp_path / "a.hangtop")
    run_hangtop("capture", "--observe", "0.5", "--pid", pid, "-o", capture)
    assert run_hangtop("numerics", capture).stdout == done.stdout
    assert "inf in output of layers.1 (Hot) at batch 3" in done.stdout
    assert "rank 0" in done.stdout
