"""Ranks that the kernel really ends or refuses: crash, OOM killer, core, full disk."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session import Options, Session
from support.launch import SUPPORT, Started, free_port
from support.places import NoPlaceError, frozen_disk, limited, slow_disk, small_disk
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.session import Update

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

CAUSES = {
    "crash": "rank-crashed",
    "memory": "rank-oom-killed",
    "core": "rank-dumping-core",
    "disk": "disk-full",
}
OPTIONS = Options(hang_after=4.0)


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
        # One after the other: it is by their order that pids of lost ranks are told.
        assert wait_until(lambda: len(self.started.pids()) == 4, 30)

    def ranks(self, update: Update) -> int:
        """How many ranks of it are there and sampled."""
        job = next((j for j in update.snapshot.jobs if self._is(j.master)), None)
        return sum(rank.sample is not None for rank in job.ranks) if job is not None else 0

    def verdict(self, update: Update) -> Verdict | None:
        """What is said of it first."""
        key = next((j.key for j in update.snapshot.jobs if self._is(j.master)), "")
        diagnosis = update.diagnoses.get(key)
        return diagnosis.verdicts[0] if diagnosis is not None and diagnosis.verdicts else None

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
        started = {name: Dying(here / name, *words) for name, words in how.items()}
        started["memory"].group = group
        for one in started.values():
            stack.enter_context(one.started)
        yield started
        # A process that writes its core cannot be killed before it can write.
        disk.thaw()


def told(jobs: dict[str, Dying], update: Update) -> dict[str, str]:
    verdicts = {name: one.verdict(update) for name, one in jobs.items()}
    return {name: verdict.cause for name, verdict in verdicts.items() if verdict is not None}


def test_explained_as_it_happens_and_afterwards(jobs: dict[str, Dying]) -> None:
    with Session(OPTIONS, diagnose) as session:
        assert session.wait(lambda u: all(one.ranks(u) == 3 for one in jobs.values()), 60)
        for one in jobs.values():
            one.gate.touch()
        seen = session.wait(lambda u: told(jobs, u) == CAUSES, 90)
        assert seen is not None, session.latest and told(jobs, session.latest)
    for name, one in jobs.items():
        verdict = one.verdict(seen)
        assert verdict is not None
        assert [culprit.rank for culprit in verdict.culprits] == [1], name
        assert verdict.victims == (0, 2), name
        assert {"kernel", "process"} & {fact.source for fact in verdict.evidence}, name
        assert verdict.next_steps, name
        if one.group is not None:
            texts = [fact.text for fact in verdict.evidence if f"cgroup {one.group}:" in fact.text]
            assert ["1 of its processes killed" in text for text in texts] == [True], verdict
            assert ["(1 while watched)" in text for text in texts] == [True], verdict
    with Session(OPTIONS, diagnose) as session:
        late = session.wait(lambda u: told(jobs, u) == CAUSES, 90)
        assert late is not None, session.latest and told(jobs, session.latest)
    for name, one in jobs.items():
        verdict = one.verdict(late)
        assert verdict is not None
        assert [culprit.rank for culprit in verdict.culprits] == [1], name


def test_a_file_that_is_slow_is_told_from_one_that_stands_still(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4, for a disk of its own")
    with ExitStack() as stack:
        try:
            point, members, limit = stack.enter_context(slow_disk(tmp_path, 400 << 10, "read"))
        except NoPlaceError as error:
            pytest.skip(str(error))
        shard = point / "shard-17"
        with shard.open("wb") as file:
            file.write(bytes(96 << 20))
            os.fsync(file.fileno())
        job = Dying(tmp_path / "gate", "read", str(members), str(shard))
        stack.enter_context(job.started)
        stack.callback(limit, 0)
        session = stack.enter_context(Session(OPTIONS, diagnose))
        assert session.wait(lambda u: job.ranks(u) == 3, 60)
        job.gate.touch()
        # GIVEN a rank that others wait for, and that reads what its disk gives it
        seen = session.wait(lambda u: job.cause(u) == "long-phase", 60)
        assert seen is not None, session.latest and job.verdict(session.latest)
        verdict = job.verdict(seen)
        assert verdict is not None
        assert ([one.rank for one in verdict.culprits], verdict.victims) == ([1], (0, 2))
        assert f"reads {shard} on {point} (ext4) at " in verdict.summary
        assert "% of 96.0 MiB" in verdict.summary
        # WHEN its disk gives next to nothing more
        limit(1)
        # THEN its position does not move, and that is a hang
        seen = session.wait(lambda u: job.cause(u) == "io-wait", 60)
        assert seen is not None, session.latest and job.verdict(session.latest)
        verdict = job.verdict(seen)
        assert verdict is not None
        told = [fact.text for fact in verdict.evidence if "its position is" in fact.text]
        assert ["has not moved for" in text for text in told] == [True], verdict
        assert [one.rank for one in verdict.culprits] == [1]
