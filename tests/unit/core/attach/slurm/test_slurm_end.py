"""How Slurm ended a job, as sacct and scontrol print it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.slurm.slurm_end import how_ended

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Slurm = Callable[[str | None, str], None]

STARTED = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
START = "2026-11-21T11:59:58"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Programs that print what is given; without a text for sacct there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def set_up(accounted: str | None, shown: str) -> None:
        for name, text in (("sacct", accounted), ("scontrol", shown)):
            if text is not None:
                (tmp_path / name).write_text(f"#!/bin/sh\n/bin/cat <<'EOF'\n{text}\nEOF\n")
                (tmp_path / name).chmod(0o755)

    return set_up


def shown(state: str, start: str = START, job: int = 47) -> str:
    rest = f"Reason=None Dependency=(null)\n   SubmitTime={start} EligibleTime={start}\n"
    times = f"   StartTime={start} EndTime=2026-11-21T12:30:00 Deadline=N/A\n"
    return f"JobId={job} ArrayJobId=47 JobName=lm\n   JobState={state} {rest}{times}\n"


TOLD = [
    (f"47|CANCELLED by 4294967290|{START}\n", "", "cancelled with scancel by uid 4294967290"),
    (f"47|CANCELLED by 0|{START}\n", "", "cancelled with scancel by root (uid 0)"),
    (f"47|TIMEOUT|{START}\n", "", "Slurm ended it at its time limit"),
    (f"47|FAILED|{START}\n", "", ""),
    (f"47|RUNNING|{START}\n", shown("COMPLETING"), None),
    (f"47|RUNNING|{START}\n", shown("CANCELLED"), "cancelled with scancel"),
    ("", shown("PREEMPTED"), "Slurm preempted it"),
    (None, shown("NODE_FAIL"), "Slurm ended it: a node failed"),
    (None, shown("COMPLETED"), ""),
    (None, "", None),
    # All tasks of an array are listed.
    (
        f"46|TIMEOUT|{START}\n47|CANCELLED by 0|{START}\n",
        "",
        "cancelled with scancel by root (uid 0)",
    ),
    (None, shown("TIMEOUT", job=46) + shown("CANCELLED"), "cancelled with scancel"),
    (None, shown("TIMEOUT", job=471), None),
    # Another job, of another cluster.
    ("47|CANCELLED by 0|2026-11-21T13:59:58\n", "", ""),
    ("47|CANCELLED by \x1b[31m|x\n", shown("\x1b[31m"), None),
]


@pytest.mark.parametrize(("accounted", "shows", "words"), TOLD)
def test_states_of_slurm_in_words(
    slurm: Slurm, accounted: str | None, shows: str, words: str | None
) -> None:
    slurm(accounted, shows)
    assert how_ended("47", STARTED) == words


def test_no_program_is_run_for_what_is_no_number(slurm: Slurm) -> None:
    slurm(None, shown("CANCELLED"))
    assert how_ended("47;id", STARTED) == ""
    assert how_ended("--help", STARTED) == ""


def test_without_slurm_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="scontrol"):
        how_ended("47", STARTED)
