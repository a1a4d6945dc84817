"""Slurm jobs in the app: to choose from at the start, and by J at any time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangtop.source.slurm_jobs import SlurmJobs
from hangtop_core.attach.slurm.my_jobs import ListedJob
from support.player import app_for, keys, settled
from support.record import load

if TYPE_CHECKING:
    from pathlib import Path

    from hangtop.application import HangtopApp

SIZE = (120, 36)
JOBS = (
    ListedJob("7", "train", "RUNNING", "1:02", "n[1-3]", count=3),
    ListedJob("8", "eval", "SUSPENDED", "0:40", "n9", count=1),
)


TRAIN = "7|RUNNING|1:02|N/A|n[1-3]|None|train\n"
EVAL = "8|SUSPENDED|0:40|N/A|n9|None|eval\x1b[2J\n"


@pytest.fixture
def rows(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A squeue that prints these rows."""
    path, program = tmp_path / "rows", tmp_path / "squeue"
    path.write_text(request.param)
    program.write_text(f'#!/bin/sh\ncase "$*" in *"-t all"*) ;; *) cat {path} ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def app_in_slurm(slurm: SlurmJobs) -> HangtopApp:
    app = app_for(load("skip"))
    app.slurm, app.state.in_slurm = slurm, True
    return app


async def test_several_are_listed_at_the_start_and_one_is_chosen() -> None:
    slurm = SlurmJobs(None, JOBS)
    app = app_in_slurm(slurm)
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot)
        assert "Slurm 7  train, for 1:02, 3 nodes n[1-3], RUNNING" in text
        await keys(pilot, "end", "enter")
        assert await settled(pilot, lambda: not app.is_running)
    assert slurm.chosen == "8"


async def test_leaving_the_list_shows_this_machine() -> None:
    slurm = SlurmJobs(None, JOBS)
    app = app_in_slurm(slurm)
    async with app.run_test(size=SIZE) as pilot:
        assert "missing-collective" in await keys(pilot, "escape")
        assert app.is_running
    assert slurm.chosen is None


@pytest.mark.parametrize("rows", [TRAIN + EVAL], indirect=True)
@pytest.mark.usefixtures("rows")
async def test_j_asks_slurm_and_leaves_out_what_is_shown() -> None:
    slurm = SlurmJobs("7.0")
    app = app_in_slurm(slurm)
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "J")
        assert await settled(pilot, lambda: bool(slurm.jobs))
        text = await keys(pilot)
        assert "Slurm 8  eval" in text
        assert "Slurm 7" not in text
        assert "HUNG" in text, "the job on these nodes is in the list, too"
        await keys(pilot, "end", "enter")
        assert await settled(pilot, lambda: not app.is_running)
    assert slurm.chosen == "8"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("", "no other Slurm job of yours runs"),
        (TRAIN, "no other Slurm job of yours runs"),
        ("what\n", "squeue printed what cannot be read"),
    ],
    indirect=["rows"],
)
@pytest.mark.usefixtures("rows")
async def test_j_says_why_there_is_no_choice(told: str) -> None:
    app = app_in_slurm(SlurmJobs("7"))
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "J")
        assert await settled(pilot, lambda: told in app.told[0])
        assert "JOBS ON THESE NODES" not in await keys(pilot)
