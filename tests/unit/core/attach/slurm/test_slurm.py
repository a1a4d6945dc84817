"""What squeue prints, as Slurm 22.05 prints it, and what it must not do to us."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach.slurm import squeue as queue
from hangtop_core.attach.slurm.slurm import Part, find_job, own_job, visibility
from hangtop_core.attach.slurm.slurm_reasons import Step, explain_srun
from hangtop_core.attach.slurm.squeue import PATIENCE_S
from hangtop_core.errors import UsageError

ROWS = {
    "1": "1|1|1|0|root|RUNNING|node-[1-3]|None",
    "2": "7|2_4|2|20001|alice|RUNNING|node-1|None\n2|2_5|2|20001|alice|RUNNING|node-1|None",
    "2_4": "7|2_4|2|20001|alice|RUNNING|node-1|None",
    "3": "3|3+0|3|0|root|RUNNING|node-[1-2]|None\n4|3+1|4|0|root|RUNNING|gpu[07-08]|None",
    "4": "4|3+1|4|0|root|RUNNING|gpu[07-08]|None",
    "5": "5|5|5|0|root|PENDING||PartitionConfig",
    "6": "6|6|6|0|root|COMPLETED|node-3|None",
    "7": "7|2_4|2|20001|alice|RUNNING|node-1|None",
    "8": "8|8|8|0|root|COMPLETING|a,b-1,c[1,3-4]|None",
    "9": "9|9_[1-5%2]|9|0|root|PENDING||Resources",
}


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue that prints `answer`, or what Slurm printed for the job that is asked for."""
    for name, text in ROWS.items():
        (tmp_path / f"job-{name}").write_text(text + "\n")
    script = tmp_path / "squeue"
    script.write_text(
        "#!/bin/sh\n"
        f'cd {tmp_path}; echo "$*" >>asked; [ -e answer ] && exec cat answer\n'
        'case "$*" in *"-s 1.0"*) echo "node-[2-3]"; exit 0;; *" -s "*) exit 0;; esac\n'
        'while [ "$1" != -j ]; do shift; done\n'
        '[ -e "job-$2" ] && exec cat "job-$2"\n'
        "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_job_has_nodes_user_and_ids(squeue: Path) -> None:
    job = find_job("1")
    assert (job.id, job.ids, job.uid, job.user) == ("1", ("1",), 0, "root")
    assert job.nodes == ("node-1", "node-2", "node-3")
    assert job.parts == (Part(("node-1", "node-2", "node-3"), None),)
    assert find_job("8").nodes == ("a", "b-1", "c1", "c3", "c4")


def test_a_task_of_an_array_has_a_number_of_its_own(squeue: Path) -> None:
    for asked in ("2_4", "7"):
        job = find_job(asked)
        assert (job.id, job.ids, job.nodes) == ("7", ("7",), ("node-1",)), asked
    with pytest.raises(UsageError, match="is an array") as caught:
        find_job("2")
    assert "2_4, 2_5" in caught.value.help


def test_components_are_one_job_or_one_by_one(squeue: Path) -> None:
    whole = find_job("3")
    assert whole.parts == (Part(("node-1", "node-2"), 0), Part(("gpu07", "gpu08"), 1))
    assert (whole.id, whole.ids) == ("3", ("3", "4"))
    for asked in ("3+1", "4"):
        one = find_job(asked)
        assert one.parts == (Part(("gpu07", "gpu08"), 1),), asked
        assert (one.id, one.ids) == ("3", ("3", "4")), "srun takes the leader's number"


def test_a_step_has_its_own_nodes(squeue: Path) -> None:
    job = find_job("1.0")
    assert (job.step, job.nodes, job.name) == ("0", ("node-2", "node-3"), "1.0")
    with pytest.raises(UsageError, match="no step 7"):
        find_job("1.7")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("5", r"job 5 has not started: PENDING \(PartitionConfig\)"),
        ("9", r"job 9 has not started: PENDING \(Resources\)"),
        ("6", "job 6 has ended: COMPLETED"),
        ("99", "Slurm knows no job 99"),
        ("1_1", "Slurm knows no job 1_1"),
        ("3+7", r"Slurm knows no job 3\+7"),
        ("abc", "is no Slurm job"),
        ("1;id", "is no Slurm job"),
        ("-1", "is no Slurm job"),
        ("1,2", "is no Slurm job"),
        ("", "is no Slurm job"),
    ],
)
def test_a_job_without_processes_is_said_so(squeue: Path, asked: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        find_job(asked)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1|1|1|0|root|RUNNING|@all|None",
        "1|1|1|0|root|RUNNING|-oProxyCommand=x|None",
        "1|1|1|0|root|RUNNING|a b|None",
        "1|1|1|0|root|RUNNING|node-[1-99999999]|None",
        "1|1|1|0|root|RUNNING||None",
        "1|1|1|x|root|RUNNING|a|None",
        "1|1|1|0|root|run\x1b[2J|a|None",
        "2|2|2|0|root|RUNNING|a",
    ],
)
def test_what_has_not_the_form_is_an_error(squeue: Path, text: str) -> None:
    (squeue / "answer").write_text(text)
    with pytest.raises(UsageError) as caught:
        find_job("1")
    assert "\x1b" not in f"{caught.value}{caught.value.help}"


@pytest.mark.parametrize("where", ["1", "2"])
def test_a_squeue_that_prints_without_end_is_ended(squeue: Path, where: str) -> None:
    # GIVEN one that would print for ever, and says whether it still runs
    (squeue / "squeue").write_text(f"#!/bin/sh\necho $$ >{squeue}/pid\nexec yes >&{where}\n")
    began = time.monotonic()
    with pytest.raises(UsageError, match="squeue printed more than 4 MiB about job 1"):
        find_job("1")
    assert time.monotonic() - began < PATIENCE_S / 2
    assert not Path(f"/proc/{(squeue / 'pid').read_text().strip()}").exists()


def test_a_squeue_that_says_nothing_is_ended(squeue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PATIENCE_S", 0.3)
    (squeue / "squeue").write_text(f"#!/bin/sh\necho $$ >{squeue}/pid\nexec sleep 1000\n")
    with pytest.raises(UsageError, match="Slurm does not answer"):
        find_job("1")
    assert not Path(f"/proc/{(squeue / 'pid').read_text().strip()}").exists()


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_number_of_a_job_is_taken_or_refused(asked: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(UsageError):
            find_job(asked)


def test_without_slurm_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="squeue") as caught:
        find_job("1")
    assert "-w NODES" in caught.value.help


def test_the_job_of_this_shell() -> None:
    assert own_job({}) is None
    assert own_job({"SLURM_JOB_ID": "12"}) == "12"
    assert own_job({"SLURM_JOB_ID": "x"}) is None
    array = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    assert own_job(array) == "10_3"


def test_of_somebody_elses_job_it_is_said_what_is_withheld(squeue: Path) -> None:
    job = find_job("7")
    assert visibility(job, uid=20001) is None
    assert "not stacks" in (visibility(job, uid=1000) or "")
    told = visibility(job, uid=0) or ""
    assert "for alice only, not for root" in told
    assert "not stacks" not in told


ME = Step("node-1", "12", "alice", ("srun", "--overlap", "--jobid=12", "-w", "node-1"))
FAILED = (
    "srun: error: slurm_receive_msgs: [[node-2]:6818] failed: Socket timed out\n"
    "srun: error: Task launch for StepId=12.10 failed on node node-2: Socket timed out on "
    "send/recv operation\n"
    "srun: error: Application launch failed: Socket timed out on send/recv operation\n"
)
# As Slurm 22.05.8 printed them: standard error, ready before, state, part of the reason, again.
ENDINGS = [
    (FAILED, False, "connecting", "because of node-2", True),
    (FAILED, True, "lost", "because of node-2", True),
    (FAILED.replace("node-2", "node-1"), False, "unreachable", "cannot start anything on it", True),
    ("srun: error: Slurm job 6 has expired\n", False, "unreachable", "is over", False),
    ("srun: error: Slurm job 6 has expired\n", True, "lost", "is over", False),
    ("srun: error: Unable to confirm allocation for job 9: Invalid job id specified\n", False,
     "unreachable", "is over", False),
    ("srun: error: Unable to confirm allocation for job 5: Job is pending execution\n", False,
     "unreachable", "has not started", True),
    ("srun: error: Unable to create step for job 1: Access/permission denied\n", False,
     "denied", "only the job's user", False),
    ("srun: error: Unable to create step for job 1: Requested node configuration is not "
     "available\n", False, "denied", "not one of the job's nodes", False),
    ("0: slurmstepd-node-1: error: *** STEP 9.1 ON node-1 CANCELLED AT 2026-11-21T08:23:20 DUE TO "
     "TIME LIMIT ***\nsrun: error: node-1: task 0: Killed\n", True, "lost", "time limit", False),
    ("0: slurmstepd-node-1: error: *** STEP 9.1 ON node-1 CANCELLED AT 2026-11-21T08:23:20 ***\n"
     "srun: error: node-1: task 0: Terminated\n", True, "lost", "ended the step", True),
    ("slurmstepd-node-1: error: execve(): /no/python: No such file or directory\n"
     "srun: error: node-1: task 0: Exited with exit code 2\n", False, "unreachable", "status 2",
     True),
    ("/bin/sh: 1: exec: python9: not found\nsrun: error: node-1: task 0: Exited with exit code "
     "127\n", False, "no-python", "there is no", False),
]  # fmt: skip


@pytest.mark.parametrize(("stderr", "ready", "state", "reason", "again"), ENDINGS)
def test_an_srun_that_ends_says_why(
    stderr: str, ready: bool, state: str, reason: str, again: bool
) -> None:
    code = 127 if "127" in stderr else 2
    ending = explain_srun(code, stderr, ready, ME, "python9", False)
    assert (ending.state, ending.retry) == (state, again), ending
    assert reason in ending.reason
    assert "{" not in f"{ending.reason}{ending.fix_text}"
