"""The demo's promise: however hangtop ends, nothing of the demo job stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hangtop.demo.gallery import BY_NAME
from hangtop.demo.runner import Demo, DemoError, missing
from support.processes import PATIENCE, is_alive, wait_until

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(
    missing(BY_NAME["skip"]) is not None, reason="torch is not installed"
)


@needs_torch
@pytest.mark.parametrize(
    ("number", "scenario", "count"),
    [
        # Four ranks, torchrun and the keeper; SIGTERM alone would not end the rank that is stopped.
        (signal.SIGKILL, "stopped", 6),
        # No rank yet: what matters is how the program itself takes the signal.
        (signal.SIGINT, "rendezvous", 2),
        (signal.SIGTERM, "rendezvous", 2),
        (signal.SIGHUP, "rendezvous", 2),
    ],
)
def test_job_ends_with_the_process_that_started_it(
    number: signal.Signals, scenario: str, count: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "hangtop.demo.runner", scenario],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as runner:
        try:
            assert runner.stdout is not None
            directory = Path(runner.stdout.readline().split()[-1])
            pids = [int(word) for word in re.findall(r"\d+", runner.stdout.readline())]
            assert len(pids) == count
            assert all(is_alive(pid) for pid in pids)
            os.kill(runner.pid, number)
            runner.wait(timeout=PATIENCE)
            assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
            assert wait_until(lambda: not directory.exists())
        finally:
            runner.kill()


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
