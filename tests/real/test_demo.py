"""The demo's promise: however hangtop ends, nothing of the demo job stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop.demo.gallery import BY_NAME, GALLERY
from hangtop.demo.runner import Demo, DemoError, missing
from support.processes import PATIENCE, is_alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(
    missing(BY_NAME["skip"]) is not None, reason="torch is not installed"
)


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[str]]:
    """A process that keeps a demo with a stopped rank, which SIGTERM alone would not end."""
    with subprocess.Popen(
        [sys.executable, "-m", "hangtop.demo.runner", "stopped"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


@needs_torch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_job_ends_with_the_process_that_started_it(
    number: signal.Signals, runner: subprocess.Popen[str]
) -> None:
    assert runner.stdout is not None
    directory = Path(runner.stdout.readline().split()[-1])
    pids = [int(word) for word in re.findall(r"\d+", runner.stdout.readline())]
    assert len(pids) == 6  # four ranks, torchrun, the keeper
    assert all(is_alive(pid) for pid in pids)
    os.kill(runner.pid, number)
    runner.wait(timeout=PATIENCE)
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert wait_until(lambda: not directory.exists())


@needs_torch
def test_job_ends_when_its_keeper_is_killed() -> None:
    with Demo(BY_NAME["orphaned"]) as demo:
        demo.wait_until_hung(PATIENCE)
        assert demo.keeper is not None
        demo.keeper.kill()
        demo.keeper.wait()
        assert wait_until(lambda: len(demo.pids()) == 4), demo.pids()
        orphans = demo.pids()
    assert not any(is_alive(pid) for pid in orphans)
    assert not demo.directory.exists()


@needs_torch
def test_failing_job_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "NONSENSE")
    with (
        Demo(BY_NAME["skip"]) as demo,
        pytest.raises(DemoError, match=r"did not start: .*gloo device"),
    ):
        demo.wait_until_hung(PATIENCE)


def test_names_are_unique_and_first_four_are_the_promised_ones() -> None:
    assert len(BY_NAME) == len(GALLERY)
    assert [scenario.name for scenario in GALLERY[:4]] == [
        "skip", "dataloader-worker", "stopped", "lock",
    ]  # fmt: skip
