"""Runs scenarios of the demo gallery and diagnoses them, several at a time.

Most of a scenario's time is waiting: for torch to be imported, for the hang to last. So the
tests of the suite take their outcomes from a small pool, which works ahead of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangtop.demo.gallery import BY_NAME, Scenario
from hangtop.demo.runner import Demo
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable

AT_ONCE = 3
"""Jobs that are alive at the same time; starting one keeps two cores busy for four seconds."""
POOL_VARIABLE = "HANGTOP_TEST_POOL"
"""Marks processes that outlive the test during which they happen to be started."""


@dataclass(frozen=True)
class Outcome:
    """What `hangtop diagnose --json` said about a scenario."""

    scenario: Scenario
    diagnosis: dict[str, Any]
    exit_code: int
    stderr: str
    took_s: float
    left: tuple[int, ...]
    """Processes of the job that survived its end."""

    @property
    def first(self) -> dict[str, Any]:
        """The first verdict; empty when there is none."""
        verdicts = self.diagnosis["verdicts"]
        return dict(verdicts[0]) if verdicts else {}

    @property
    def culprits(self) -> tuple[int | None, ...]:
        """Ranks that the first verdict blames."""
        return tuple(culprit["rank"] for culprit in self.first.get("culprits", ()))

    def told(self) -> str:
        """Everything, for the message of a failing test."""
        return json.dumps(self.diagnosis, indent=1) + "\n" + self.stderr


def run_hangtop(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "hangtop", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        env={**os.environ, POOL_VARIABLE: "1"},
        stdin=subprocess.DEVNULL,
    )


def hangtop_json(*arguments: str) -> tuple[int, Any, str]:
    """Run it with --json: its exit status, its document, if there is one, and its stderr."""
    done = run_hangtop(*arguments, "--json")
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def diagnose_scenario(scenario: Scenario, hang_after: float) -> Outcome:
    """Start a job, wait until it hangs, diagnose it, end it."""
    with Demo(scenario, {POOL_VARIABLE: "1"}) as demo:
        demo.wait_until_hung(PATIENCE)
        started = time.monotonic()
        options = ("--hang-after", str(hang_after), "--pid", *map(str, demo.members))
        done = run_hangtop("diagnose", "--json", *options)
        took_s = time.monotonic() - started
    if not done.stdout:
        raise AssertionError(f"exit {done.returncode}, nothing printed\n{done.stderr}")
    return Outcome(
        scenario, json.loads(done.stdout), done.returncode, done.stderr, took_s, tuple(demo.pids())
    )


class ScenarioPool:
    """Outcomes of scenarios, worked out ahead in a few threads."""

    def __init__(self, names: Iterable[str], hang_after: float) -> None:
        self._executor = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scenario")
        self._outcomes: dict[str, Future[Outcome]] = {
            name: self._executor.submit(diagnose_scenario, BY_NAME[name], hang_after)
            for name in names
        }

    def outcome(self, name: str) -> Outcome:
        """Wait for the outcome of one scenario."""
        return self._outcomes[name].result()

    def close(self) -> None:
        """Wait for what runs and forget the rest."""
        self._executor.shutdown(cancel_futures=True)
