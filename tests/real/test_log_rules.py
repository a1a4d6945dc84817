"""Known lines in the logs of a job that hangs, judged while it hangs.

The job is real: torchrun, gloo, all ranks in the same line, so that nothing but its logs tells who
is to blame. The lines of NCCL, of CUDA and of a kernel are a double: there is no GPU, so a thread
of each rank prints texts as torch 2.4 to 2.15, NCCL and Linux print them, see `logs.known`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from hangtop_core.state import outputs
from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.model.updates import Update

pytestmark = pytest.mark.real

RANKS = 3
ROOT = os.geteuid() == 0


@dataclass
class Talking:
    """A job that hangs, whose ranks print what they are told to."""

    folder: Path
    session: Session

    def say(self, rank: int, *lines: str) -> None:
        """Let a rank print lines; waits until it reads them."""
        with (self.folder / str(rank)).open("w") as fifo:
            fifo.write("".join(f"{line}\n" for line in lines))

    def ranks(self) -> tuple[Rank, ...]:
        """Its ranks."""
        assert self.session.latest is not None
        return self.session.latest.snapshot.jobs[0].ranks

    def verdict(self, cause: str, *blames: int) -> Verdict:
        """Wait for a verdict of a cause that blames these ranks and nobody else.

        What ranks print comes one after the other, and the first of it may tell something else.
        """
        update = self.session.wait(lambda one: _verdict(one, cause, blames) is not None, PATIENCE)
        latest = self.session.latest
        told = [d.verdicts for d in latest.diagnoses.values()] if latest is not None else None
        found = _verdict(update, cause, blames) if update is not None else None
        assert found is not None, told
        return found


def _verdict(update: Update, cause: str, blames: tuple[int, ...]) -> Verdict | None:
    (diagnosis,) = update.diagnoses.values() or [None]
    if diagnosis is None or diagnosis.state != "hung":
        return None
    some = (one for one in diagnosis.verdicts if one.cause == cause)
    return next((v for v in some if tuple(c.rank for c in v.culprits) == blames), None)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    """Three ranks that hang in one line."""
    folder = tmp_path_factory.mktemp("talking")
    for rank in range(RANKS):
        os.mkfifo(folder / str(rank))
    small = 'mount -t tmpfs -o size=1m none /dev/shm; exec "$@"'
    argv = ["unshare", "--mount", "bash", "-c", small, "job"] if ROOT else []
    argv += [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    argv += [f"--master-port={free_port()}", "--redirects=3", f"--log-dir={folder}/logs"]
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(outputs, "AGAIN", 0.5)
        started = stack.enter_context(
            Started(*argv, str(SUPPORT / "logging_job.py"), "apart", str(folder))
        )
        options = Options(interval=0.5, pids=(started.pid,), hang_after=2.0)
        session = stack.enter_context(Session(options, diagnose))
        there = session.wait(
            lambda one: [len(job.ranks) for job in one.snapshot.jobs] == [RANKS], PATIENCE
        )
        assert there is not None, session.latest
        yield Talking(folder, session)


def watchdog(rank: int, text: str) -> str:
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)).lstrip("0")
    return (
        f"[rank{rank}]:[E{stamp}.{int(now % 1 * 1e9):09d} ProcessGroupNCCL.cpp:2271] "
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] {text}"
    )


def test_without_lines_nobody_is_blamed(job: Talking) -> None:
    job.verdict("unknown")
    # A script is told that it hangs and that no cause was found.
    pids = [str(rank.process.pid) for rank in job.ranks()]
    done = run_hangtop("watch", "--once", "--json", "--hang-after", "2", "--pid", *pids)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, told[-1]["event"]) == (11, "hang"), done.stderr
    assert [one["cause"] for one in told[-1]["diagnosis"]["verdicts"]] == ["unknown"]


def test_versions_that_ranks_print_are_compared(job: Talking) -> None:
    for rank, version in enumerate(("2.27.5+cuda12.9", "2.21.5+cuda12.4", "2.27.5+cuda12.9")):
        job.say(rank, f"NCCL version {version}")
    found = job.verdict("version-mismatch", 1)
    assert "NCCL 2.21.5" in found.summary


def test_an_error_that_was_caught_is_told(job: Talking) -> None:
    job.say(
        2,
        "Traceback (most recent call last):",
        '  File "train.py", line 41, in step',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a",
        "skipping this batch",
    )
    found = job.verdict("missing-collective", 2)
    assert "2.00 GiB more were wanted at train.py:41 (step)" in found.summary
    assert "log" in {one.source for one in found.evidence}


def test_watchdogs_tell_who_has_begun_less(job: Talking) -> None:
    timeout = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, "
    timeout += "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600061 "
    timeout += "milliseconds before timing out."
    state = " failure detected by watchdog at work sequence id: 17 PG status: last enqueued "
    state += "work: 17, last completed work: 16"
    told = "Received a dump signal due to a collective timeout from  rank 0 and we will try our "
    told += "best to dump the debug info. Last enqueued NCCL work: 16, last completed NCCL work: 16"
    job.say(1, watchdog(1, told + ".This is most likely caused by incorrect usages"))
    for rank in (0, 2):
        job.say(rank, watchdog(rank, timeout), watchdog(rank, state))
    found = job.verdict("missing-collective", 1)
    assert (
        "did not issue allreduce #17 of group default_pg that ranks 0,2 wait for" in found.summary
    )


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("gpu-xid", "[ 9123.4] NVRM: Xid (PCI:0000:9b:00): 79, pid={pid}, GPU has fallen off the"),
        (
            "nccl-ib-error",
            "n2:1:2 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<39412> "
            "with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_3",
        ),
        ("ib-port-down", "NCCL WARN NET/IB : mlx5_2:1 async fatal event: port error"),
    ],
)
def test_lines_of_kernels_and_of_infiniband(job: Talking, cause: str, line: str) -> None:
    """Rank 0 prints a line of the kernel that is about the process of rank 1."""
    pids = {rank.rank: rank.process.pid for rank in job.ranks()}
    job.say(0, line.format(pid=pids[1]))
    job.verdict(cause, 1 if cause == "gpu-xid" else 0)


@pytest.mark.skipif(not ROOT, reason="a small /dev/shm needs root")
def test_shared_memory_that_is_too_small(job: Talking) -> None:
    """This line is real: the job has a /dev/shm of 1 MiB, as a container may have one of 64."""
    job.say(2, "load")
    found = job.verdict("shm-too-small", 2)
    assert "unable to allocate shared memory" in found.summary
    assert any("/dev/shm" in step for step in found.next_steps)
