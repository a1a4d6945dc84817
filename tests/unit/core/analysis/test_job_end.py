"""When and by what a job has ended, and which attempt of torchrun's it is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.case import Case
from hangtop_core.analysis.verdict.jobend import attempt_of, job_end
from hangtop_core.diagnosis import Attempt
from hangtop_core.model.output import Output
from hangtop_core.model.snapshot import Process
from hangtop_core.state.outputs import parse
from support.build import NOW
from support.ends import hanging, with_gone

TIMED_OUT = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/tmp/e/job.py", line 9, in steps
[rank0]:     dist.all_reduce(torch.ones(4))
[rank0]: RuntimeError: [/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] \
Timed out waiting 15000ms for recv operation to complete
"""
RAISED = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/tmp/e/job.py", line 9, in steps
[rank2]:     batch = cache[key]
[rank2]: KeyError: 'shard-7'
"""
TOLD = "torch.distributed.elastic Received 15 death signal, shutting down workers\n"
SLURM = "slurmstepd: error: *** STEP 17.0 ON gpu03 CANCELLED AT x DUE TO TIME LIMIT ***\n"


def by(text: str, codes: dict[int, int | None], *launchers: Process) -> str:
    snapshot = with_gone(hanging(), 3.0, codes)
    job = replace(snapshot.jobs[0], launchers=launchers)
    snapshot = replace(snapshot, jobs=(job,))
    if text:
        path = "/log/train.out"
        log = parse("n1", path, text, 0, len(text), NOW)
        pids = tuple(rank.process.pid for rank in snapshot.jobs[0].ranks)
        out = Output("n1", "8:1", path, pids, NOW, len(text), NOW + 3, 0, text, log)
        snapshot = replace(snapshot, outputs=(out,))
    return job_end(Case(snapshot, snapshot.jobs[0])).by


GONE: dict[int, int | None] = dict.fromkeys(range(4))


@pytest.mark.parametrize(
    ("text", "codes", "told"),
    [
        ("", GONE, ""),
        ("", dict.fromkeys(range(4), 0), ""),
        ("", dict.fromkeys(range(4), -9), "ranks 0-3 were killed by SIGKILL"),
        ("", {0: None, 1: -15, 2: -15, 3: -15}, ""),
        ("", dict.fromkeys(range(4), -15), "ranks 0-3 were killed by SIGTERM"),
        ("", {0: 1, 1: -15, 2: -15, 3: -15}, "rank 0 exited with status 1"),
        (TIMED_OUT, GONE, "rank 0 timed out: waited 15000 ms to recv, and gave up"),
        (TIMED_OUT + TOLD, GONE, "torchrun itself was told to end (15): cancelled, preempted,"),
        (RAISED, {2: 1, 0: -15, 1: -15, 3: -15}, "rank 2 failed: KeyError: 'shard-7'"),
        (SLURM, GONE, "Slurm ended the job: DUE TO TIME LIMIT"),
    ],
)
def test_what_ended_a_job(text: str, codes: dict[int, int | None], told: str) -> None:
    assert by(text, codes).startswith(told)
    assert bool(told) == bool(by(text, codes))


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("", -9, "torchrun was killed by SIGKILL"),
        ("", 1, "rank 0 exited with status 1"),
        ("", None, "rank 0 exited with status 1"),
        (SLURM, -15, "Slurm ended the job: DUE TO TIME LIMIT"),
    ],
)
def test_who_kills_a_launcher_ends_its_job(text: str, status: int | None, told: str) -> None:
    codes: dict[int, int | None] = {0: 1, 1: -15, 2: -15, 3: -15}
    launcher = Process(99, 1, 5, 0.0, "launcher", "torchrun", "S", node="n1", launcher="torchrun")
    launcher = replace(launcher, gone_at=None if status is None else NOW, exit_code=status)
    assert by(text, codes, launcher) == told


def test_it_ended_when_the_last_rank_left() -> None:
    first = with_gone(hanging(), 3.0, {0: None})
    last = with_gone(first, 6.0, {1: None, 2: None, 3: None})
    assert job_end(Case(last, last.jobs[0])).at == NOW + 9.0


@pytest.mark.parametrize(
    ("count", "most", "attempt"),
    [
        ("0", "5", Attempt(1, 6)),
        ("1", "5", Attempt(2, 6)),
        ("0", "0", None),
        ("3", None, Attempt(4, None)),
        ("7", "2", Attempt(8, 8)),
        ("x", "5", None),
        (None, None, None),
    ],
)
def test_which_attempt_it_is(count: str | None, most: str | None, attempt: Attempt | None) -> None:
    job = hanging().jobs[0]
    names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    env = {name: text for name, text in zip(names, (count, most), strict=True) if text}
    ranks = tuple(replace(one, process=replace(one.process, env=env)) for one in job.ranks)
    assert attempt_of(replace(job, ranks=ranks)) == attempt
