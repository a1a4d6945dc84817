"""Ranks that the kernel really ends or refuses: crash, OOM killer, core, full disk."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from support.launch import SUPPORT, Started, free_port
from support.places import NoPlaceError, frozen_disk, limited, slow_disk, small_disk
from support.processes import PATIENCE, wait_until
from support.standing import main_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.session.session import Update

pytestmark = pytest.mark.real

CAUSES = {
    "crash": "rank-crashed",
    "memory": "rank-oom-killed",
    "core": "rank-dumping-core",
    "disk": "disk-full",
}


class Dying:
    """A job whose rank 1 dies once `gate` exists."""

    group: Path | None = None
    """The cgroup of rank 1, where it has one of its own."""

    def __init__(self, gate: Path, *how: str) -> None:
        self.gate = gate
        self.port = free_port()
        script = str(SUPPORT / "kernel_job.py")
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        env = {**where, "DYING_GATE": str(gate)}
        self.started = Started(sys.executable, script, "LAUNCH", *how, env=env)

    def all_there(self) -> bool:
        """Whether its launcher and all its ranks have been started."""
        return len(self.started.pids()) == 4

    def waits(self, update: Update) -> bool:
        """Whether rank 1 is at its gate, and the others where they stay."""
        job = next((j for j in update.snapshot.jobs if self._is(j.master)), None)
        places = {r.rank: main_stack(update, r) for r in job.ranks} if job is not None else {}
        wanted = {0: "wait_for_rank_1", 1: "wait_for_gate", 2: "wait_for_rank_1"}
        return all(name in places.get(rank, ()) for rank, name in wanted.items())

    def explained(self, update: Update, cause: str) -> bool:
        """Whether it is said why rank 1 has died, and who waits for it."""
        verdict = self.verdict(update)
        return (
            verdict is not None
            and verdict.cause == cause
            and [culprit.rank for culprit in verdict.culprits] == [1]
            and verdict.victims == (0, 2)
        )

    def verdict(self, update: Update) -> Verdict | None:
        """What is said of it first."""
        key = next((j.key for j in update.snapshot.jobs if self._is(j.master)), "")
        diagnosis = update.diagnoses.get(key)
        return diagnosis.verdicts[0] if diagnosis is not None and diagnosis.verdicts else None

    def counts_killed(self, update: Update) -> bool:
        """Whether it is told that its cgroup lost a process; that is read after it has died."""
        verdict = self.verdict(update)
        facts = verdict.evidence if verdict is not None else ()
        told = [fact.text for fact in facts if f"cgroup {self.group}:" in fact.text]
        return len(told) == 1 and "1 of its processes killed" in told[0]

    def cause(self, update: Update) -> str | None:
        """The cause of that."""
        verdict = self.verdict(update)
        return verdict.cause if verdict is not None else None

    def _is(self, master: str | None) -> bool:
        return (master or "").endswith(f":{self.port}")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Dying]]:
    if os.geteuid() != 0:
        pytest.skip("needs root, for a cgroup and a file system of its own")
    if shutil.which("fsfreeze") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("fsfreeze or mkfs.ext4 is missing")
    here = tmp_path_factory.mktemp("dying")
    with ExitStack() as stack:
        try:
            group = stack.enter_context(limited())
            disk = stack.enter_context(frozen_disk(here))
        except NoPlaceError as error:
            pytest.skip(str(error))
        how = {
            "crash": ("segfault",),
            "memory": ("memory", str(group)),
            "core": ("core", str(disk.point)),
            "disk": ("disk", str(stack.enter_context(small_disk(here)))),
        }
        started: dict[str, Dying] = {}
        for name, words in how.items():
            started[name] = Dying(here / f"gate-of-{name}", *words)
            started[name].group = group if name == "memory" else None
            stack.enter_context(started[name].started)
            # A process that writes its core cannot be killed before it can write.
            stack.callback(disk.thaw)
            # One after the other: it is by their order that pids of lost ranks are told.
            assert wait_until(started[name].all_there)
        yield started


def explained(jobs: dict[str, Dying], update: Update) -> bool:
    return all(one.explained(update, CAUSES[name]) for name, one in jobs.items())


def test_explained_as_it_happens_and_afterwards(jobs: dict[str, Dying]) -> None:
    # Only these jobs: stacks of others, which may start just now, would keep the probe busy.
    options = Options(hang_after=4.0, pids=tuple(one.started.pid for one in jobs.values()))
    with Session(options, diagnose) as session:
        ready = session.wait(lambda u: all(one.waits(u) for one in jobs.values()), 2 * PATIENCE)
        assert ready is not None, session.latest
        for one in jobs.values():
            one.gate.touch()
        memory = jobs["memory"]
        seen = session.wait(lambda u: explained(jobs, u) and memory.counts_killed(u), PATIENCE)
        assert seen is not None, session.latest and session.latest.diagnoses
    for name, one in jobs.items():
        verdict = one.verdict(seen)
        assert verdict is not None
        assert {"kernel", "process"} & {fact.source for fact in verdict.evidence}, name
        assert verdict.next_steps, name
    with Session(options, diagnose) as session:
        late = session.wait(lambda u: explained(jobs, u), PATIENCE)
        assert late is not None, session.latest and session.latest.diagnoses


def test_a_file_that_is_slow_is_told_from_one_that_stands_still(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4, for a disk of its own")
    with ExitStack() as stack:
        try:
            point, members, limit = stack.enter_context(slow_disk(tmp_path, 200 << 10, "read"))
        except NoPlaceError as error:
            pytest.skip(str(error))
        shard = point / "shard-17"
        with shard.open("wb") as file:
            file.write(bytes(96 << 20))
            os.fsync(file.fileno())
        job = Dying(tmp_path / "gate", "read", str(members), str(shard))
        stack.enter_context(job.started)
        stack.callback(limit, 0)
        options = Options(hang_after=4.0, pids=(job.started.pid,))
        session = stack.enter_context(Session(options, diagnose))
        assert session.wait(job.waits, PATIENCE), session.latest
        job.gate.touch()
        # GIVEN a rank that others wait for, and that reads what its disk gives it
        reads = f"reads {shard} on {point} (ext4) at "
        seen = session.wait(
            lambda u: job.explained(u, "long-phase") and reads in job.verdict(u).summary, PATIENCE
        )
        assert seen is not None, session.latest and job.verdict(session.latest)
        verdict = job.verdict(seen)
        assert verdict is not None
        assert "% of 96.0 MiB" in verdict.summary
        # WHEN its disk gives next to nothing more
        limit(1)

        # THEN its position does not move, and that is a hang
        def stands(update: Update) -> bool:
            verdict = job.verdict(update)
            facts = verdict.evidence if verdict is not None else ()
            told = [fact.text for fact in facts if "its position is" in fact.text]
            is_told = len(told) == 1 and "has not moved for" in told[0]
            return job.cause(update) == "io-wait" and is_told

        seen = session.wait(stands, PATIENCE)
        assert seen is not None, session.latest and job.verdict(session.latest)
        verdict = job.verdict(seen)
        assert verdict is not None
        assert [one.rank for one in verdict.culprits] == [1]
