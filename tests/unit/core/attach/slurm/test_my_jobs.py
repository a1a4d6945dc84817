"""A person's jobs as squeue and sacct print them: which one is meant, and what became of others."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.slurm import my_jobs
from hangtop_core.attach.slurm.my_jobs import SeveralJobsError, only_job, running_jobs, what_became
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = "7|RUNNING|1-02:03:04|2026-12-01T00:00:00|n[1-3]|None|train"
ENDING = "8|COMPLETING|5:06|2026-11-28T05:00:00|n4|None|eval"
PENDING = "9_[1-5%2]|PENDING|0:00|N/A||Priority|sweep"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that print the files `running`, `all` and `accounted`; and note their settings."""
    for name in ("running", "all", "accounted"):
        (tmp_path / name).write_text("")
    squeue, sacct = tmp_path / "squeue", tmp_path / "sacct"
    squeue.write_text(
        f"#!/bin/sh\nenv >{tmp_path}/env\n"
        f'case "$*" in *"-t all"*) cat {tmp_path}/all;; *) cat {tmp_path}/running;; esac\n'
    )
    sacct.write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\ncat {tmp_path}/accounted\n')
    for program in (squeue, sacct):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def listed(folder: Path, *rows: str) -> list[my_jobs.ListedJob]:
    (folder / "running").write_text("".join(f"{row}\n" for row in rows))
    return running_jobs()


def ago(seconds: float) -> str:
    return (datetime.now() - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def test_a_job_is_told_by_name_time_nodes_and_state(folder: Path) -> None:
    (job,) = listed(folder, TRAIN)
    assert job.in_words() == "train, for 1-02:03:04, 3 nodes n[1-3], RUNNING"
    wide = f"7|SUSPENDED|INVALID|N/A|{','.join(f'rack{n}-a' for n in range(60))}|None|x|y\x1b[2J"
    text = listed(folder, wide)[0].in_words()
    assert text.startswith("x|y")
    assert "\x1b" not in text
    assert "60 nodes" in text
    assert len(text) < 120
    (left,) = listed(folder, "7|COMPLETING|1:00|N/A||None|x")
    assert left.in_words() == "x, for 1:00, 0 nodes, COMPLETING"


def test_a_job_of_1024_nodes_is_counted_by_their_names(folder: Path) -> None:
    """squeue writes 1,024 nodes as 1K (and so on) where it counts them itself."""
    (job,) = listed(folder, TRAIN.replace("n[1-3]", "gpu[0001-1024]"))
    assert job.count == 1024


def test_one_that_is_ending_gives_way(folder: Path) -> None:
    assert only_job(listed(folder, ENDING, TRAIN)).name == "7"
    assert only_job(listed(folder, ENDING)).name == "8"
    with pytest.raises(SeveralJobsError, match="2 jobs of yours run") as error:
        only_job(listed(folder, TRAIN, ENDING.replace("COMPLETING", "SUSPENDED")))
    assert [job.name for job in error.value.jobs] == ["7", "8"]


def test_components_of_one_job_are_one_and_tasks_of_an_array_are_not(folder: Path) -> None:
    parts = (
        "7+1|RUNNING|5:06|N/A|g[1-2]|None|eval",
        "7+0|RUNNING|5:06|N/A|n[1-3]|None|train",
        "9_1|RUNNING|5:06|N/A|n9|None|sweep",
        "9_2|RUNNING|5:06|N/A|n9|None|sweep",
    )
    jobs = listed(folder, *parts)
    assert [(job.name, job.title, job.count) for job in jobs] == [
        ("7", "train", 5), ("9_1", "sweep", 1), ("9_2", "sweep", 1),
    ]  # fmt: skip
    assert listed(folder, parts[1])[0].name == "7+0", "the other component has ended"


def test_very_many_are_not_all_told(folder: Path) -> None:
    rows = [TRAIN.replace("7|", f"{number}|", 1) for number in range(100, 150)]
    with pytest.raises(SeveralJobsError) as error:
        only_job(listed(folder, *rows))
    assert len(error.value.help.splitlines()) == my_jobs.MAX_LISTED + 1
    assert "and 30 more" in error.value.help


@pytest.mark.parametrize(
    "nodes", ["-oProxyCommand=x", "a b", "@all", "n[1-99999999]", "n[1", "$(x)"]
)
def test_nodes_that_cannot_be_are_an_error(folder: Path, nodes: str) -> None:
    with pytest.raises(UsageError):
        listed(folder, TRAIN.replace("n[1-3]", nodes))


def test_it_prints_times_as_asked_whatever_the_user_has_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_FORMAT", "SLURM_TIME_FORMAT", "SACCT_FORMAT", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "relative")
    listed(folder, TRAIN)
    assert "relative" not in (folder / "env").read_text()


def test_what_became_of_the_last_job(folder: Path) -> None:
    assert what_became() == ""
    old = f"5|COMPLETED|9:59|{ago(900)}|n1|None|first"
    late = f"6|OUT_OF_MEMORY|1:00|{ago(90)}|n1|OutOfMemory|train\x1b[2J"
    (folder / "all").write_text(f"{late}\n{old}\n{PENDING}\n")
    assert what_became().startswith("your job 6 (train")
    assert what_became().endswith(" ago: OUT_OF_MEMORY")
    assert re.search(r" ended [12]:\d\d ago", what_became()), "a minute and a half"
    assert what_became().isprintable()


def test_what_slurm_has_forgotten_its_accounting_knows(folder: Path) -> None:
    rows = (f"4|CANCELLED by 1000|{ago(1300)}|a|b", f"5|FAILED|{ago(300)}|train")
    (folder / "accounted").write_text("\n".join([*rows, "6|RUNNING|Unknown|x", ""]))
    assert re.fullmatch(r"your job 5 \(train\) ended 5:[0-5]\d ago: FAILED", what_became())
    assert f"-u {os.geteuid()}" in (folder / "asked").read_text()
    (folder / "accounted").write_text("Slurm accounting storage is disabled\n")
    assert what_became() == ""
    (folder / "sacct").unlink()
    (folder / "sacct").symlink_to("/nowhere")
    assert what_became() == ""


def test_jobs_that_wait_are_said_to(folder: Path) -> None:
    (folder / "all").write_text(f"{PENDING}\n")
    assert what_became() == "your job 9_[1-5%2] (sweep) waits: PENDING (Priority)"
    (folder / "all").write_text(f"{PENDING}\n{PENDING.replace('9_', '10_')}\n")
    assert what_became() == "2 jobs of yours wait"
