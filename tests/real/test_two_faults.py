"""A real job with two faults that have nothing to do with one another, diagnosed by the command."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from support.jobs import run_hangtop
from support.launch import torchrun
from support.processes import state, wait_until

if TYPE_CHECKING:
    from support.launch import Started

pytestmark = pytest.mark.real


def stopped(job: Started) -> bool:
    """Whether rank 1 has stopped itself."""
    return any(state(pid) == "T" for pid in job.pids())


def test_two_faults_are_listed_apart_with_their_own_evidence_and_steps() -> None:
    with torchrun("two") as job:
        assert wait_until(lambda: stopped(job))
        now = time.time()
        pids = [str(pid) for pid in job.pids()]
        done = run_hangtop(
            "diagnose", "--json", "--hang-after", "3", "--observe", "3", "--pid", *pids
        )
    found = json.loads(done.stdout)
    assert done.returncode == 10, found
    first, second = found["verdicts"]
    assert (first["cause"], second["cause"]) == ("rank-stopped", "lock-wait")
    assert [[one["rank"] for one in v["culprits"]] for v in (first, second)] == [[1], [3]]
    assert first["victims"] == second["victims"] == [0, 2]
    assert (first["apart"], second["apart"]) == (False, True)
    assert "rank 1 does not hold rank 3" in second["weaker"]
    assert any("kill -CONT" in step for step in first["next_steps"])
    assert any("held.acquire()" in one["text"] for one in second["evidence"])
    out = {cause for one in found["ruled_out"] for cause in one["causes"]}
    assert "rank-exited" in out
    assert not out & {"rank-stopped", "lock-wait"}
    moments = {(one["kind"], one["rank"]): one["at"] for one in found["timeline"]}
    assert abs(moments["sign", 1] - now) < 30, "when it was stopped, though nobody watched then"
    assert moments["started", None] < moments["sign", 1] < moments["watched", None]
