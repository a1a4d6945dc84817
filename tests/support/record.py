"""Record one `Update` of a live session into a file that screen tests can replay.

    python tests/support/record.py NAME --scenario skip     start a job of the gallery, record it
    python tests/support/record.py NAME --seconds 20        record whatever runs on this machine
    python tests/support/record.py NAME --cluster           a job over three nodes, of which the
        third freezes, and a fourth node that refuses logins; as root, see support/cluster.py

What differs from machine to machine (user, host, folders, times, process ids) is normalised, so
that recording the same scenario again changes little.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from array import array
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from hangtop.demo.gallery import BY_NAME
from hangtop.demo.runner import Demo
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ssh import Login, SshLauncher
from hangtop_core.session import Session
from hangtop_core.updates import Options, Update
from support.cluster import Cluster
from support.remote_jobs import torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.model import Job, Rank

FOLDER = Path(__file__).parents[1] / "recordings"
HOME = str(Path.home())
SMALL = 1000
"""Below this, as in a container, process ids are stable, and like other numbers."""
STARTED = 1_767_225_600.0
"""The moment a recording is moved to: 2026-01-01 00:00:00 UTC."""


def load(name: str) -> Update:
    """Read a recording."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Update)


def save(name: str, update: Update) -> Path:
    """Write a recording, normalised."""
    text = msgspec.json.format(msgspec.json.encode(_moved(update)), indent=1).decode()
    path = FOLDER / f"{name}.json"
    path.write_text(normalised(text, update) + "\n")
    return path


def normalised(text: str, update: Update) -> str:
    """The recording without what only this machine has."""
    offset = STARTED - update.snapshot.observed_since
    low, high = update.snapshot.at - 3 * 86400, update.snapshot.at + 86400

    def moved(match: re.Match[str]) -> str:
        value = float(match[0])
        return f"{value + offset:.3f}" if low < value < high else match[0]

    text = re.sub(r"(?<![\w.\"-])\d{10}\.\d+(?![\w.])", moved, text)
    text = _stable_pids(text, update)
    text = re.sub(r"/[^\"\s:]*/(?=site-packages/|python3\.\d+/)", "/usr/lib/python3/", text)
    text = re.sub(r"/tmp/hangtop-demo-\w+", "/home/ada/demo", text)
    text = re.sub(r"demo-[0-9a-f]{12}(_\w{8})?", "demo", text)
    text = text.replace(str(Path(__file__).parents[2]), "/opt/hangtop")
    for folder, name in ((sys.prefix, "/opt/venv"), (sys.base_prefix, "/usr"), (HOME, "/home/ada")):
        text = text.replace(folder, name)
    text = re.sub(r'"cgroup": "[^"]*"', '"cgroup": "/user.slice/session-1.scope"', text)
    if len(update.snapshot.nodes) == 1:
        name = update.snapshot.nodes[0].name
        text = re.sub(rf"\b{re.escape(name)}\b", "node1", text)
    user = os.environ.get("USER") or "root"
    return re.sub(rf"\"user\": \"{re.escape(user)}\"", '"user": "ada"', text)


def _moved(update: Update) -> Update:
    """With the times in recorders' columns moved, which are no numbers in the text."""
    ahead = int((STARTED - update.snapshot.observed_since) * 1e9)

    def later(rank: Rank) -> Rank:
        trace = rank.recorder.trace if rank.recorder is not None else None
        if trace is None:
            return rank
        created = array("q", [at and at + ahead for at in trace.created]).tobytes()
        moved = replace(trace, raw_created=created, newest_ns=trace.newest_ns + ahead)
        return replace(rank, recorder=replace(rank.recorder, trace=moved))

    jobs = tuple(replace(job, ranks=tuple(map(later, job.ranks))) for job in update.snapshot.jobs)
    return replace(update, snapshot=replace(update.snapshot, jobs=jobs))


def _stable_pids(text: str, update: Update) -> str:
    """Process ids counted from 4001 in the order of ranks."""
    seen: dict[int, int] = {}
    for job in update.snapshot.jobs:
        for process in (*job.launchers, *(p for r in job.ranks for p in (r.process, *r.children))):
            if process.pid >= SMALL:
                seen.setdefault(process.pid, 4001 + len(seen))
    for old in seen:
        text = re.sub(rf"(?<![\w.]){old}(?![\w.])", f"@{seen[old]}@", text)
    return re.sub(r"@(\d+)@", r"\1", text)


def observe(session: Session, pids: frozenset[int], seconds: float) -> Update:
    """Wait until a hang is called, then read descriptors; at most `seconds`."""

    def hung(update: Update) -> bool:
        judged = [update.diagnoses.get(job.key) for job in _jobs(update, pids)]
        return any(one is not None and one.state == "hung" and one.verdicts for one in judged)

    session.wait(hung, seconds)
    latest = session.latest
    assert latest is not None, "nothing has answered"
    for job in _jobs(latest, pids):
        for rank in job.ranks:
            mine = [rank.process.pid, *(child.pid for child in rank.children)]
            session.descriptors(rank.node, mine).result(10)
    time.sleep(2.0)
    update = session.latest
    assert update is not None
    return update


@contextmanager
def half_lost_cluster(root: Path) -> Iterator[Session]:
    """A session on a job over three nodes, some time after one of them froze."""
    with (
        Cluster(root / "c", 4) as cluster,
        patch.dict(os.environ, PATH=f"{cluster.bin}:{os.environ['PATH']}"),
        torchrun(cluster, {1: 2, 2: 2, 3: 2}, "steps"),
    ):
        cluster.node(2).sh(
            "echo 'echo Welcome to node-2, do not store data here' >/run/home/root/.bashrc"
        )
        cluster.node(4).stop_sshd()
        launchers = [SshLauncher(node.name, Login(connect_timeout=2)) for node in cluster.nodes]
        with Session(Options(hang_after=10.0), diagnose, launchers) as session:

            def runs(update: Update) -> bool:
                stacks = update.snapshot.stacks
                mains = [
                    stacks.get(rank.sample.threads[0].stack, ())
                    for job in update.snapshot.jobs
                    for rank in job.ranks
                    if rank.sample is not None and rank.sample.threads
                ]
                steps = sum(any(frame.name == "steps" for frame in main) for main in mains)
                return steps == 6 and len(update.snapshot.jobs) == 1

            assert session.wait(runs, 60), session.latest
            cluster.node(3).freeze()
            try:
                wait_for_loss(session)
                yield session
            finally:
                cluster.node(3).thaw()


def wait_for_loss(session: Session) -> None:
    """Wait until a node is lost, blamed and not reached again."""

    def blamed(update: Update) -> bool:
        found = [one for diagnosis in update.diagnoses.values() for one in diagnosis.verdicts]
        state = update.snapshot.nodes[2].state
        return any(one.cause == "node-unreachable" for one in found) and state == "lost"

    update = session.wait(blamed, 60)
    assert update is not None, session.latest
    session.wait(lambda u: u.snapshot.at > update.snapshot.at + 10, 20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--scenario", choices=sorted(BY_NAME))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hang-after", type=float, default=10.0)
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args(arguments)
    if options.cluster:
        with TemporaryDirectory() as root, half_lost_cluster(Path(root)) as session:
            assert session.latest is not None
            print(save(options.name, session.latest))  # noqa: T201  # a command
        return
    with ExitStack() as stack:
        pids: frozenset[int] = frozenset()
        if options.scenario:
            demo = stack.enter_context(Demo(BY_NAME[options.scenario]))
            demo.wait_until_hung()
            pids = frozenset(demo.members)
        session = stack.enter_context(Session(Options(hang_after=options.hang_after), diagnose))
        update = observe(session, pids, options.seconds)
    if pids:
        update = _only(update, pids)
    print(save(options.name, update))  # noqa: T201  # a command


def _jobs(update: Update, pids: frozenset[int]) -> tuple[Job, ...]:
    """The job that these processes belong to, without others that run on the same machine."""
    return tuple(
        job
        for job in update.snapshot.jobs
        if not pids
        or any(p.pid in pids for p in (*job.launchers, *(rank.process for rank in job.ranks)))
    )


def _only(update: Update, pids: frozenset[int]) -> Update:
    """Nothing but that job."""
    jobs = _jobs(update, pids)
    nodes = tuple(
        msgspec.structs.replace(node, python_processes=(), other_users={})
        for node in update.snapshot.nodes
    )
    used = {
        thread.stack
        for job in jobs
        for rank in job.ranks
        for sample in (rank.sample, *rank.child_samples.values())
        if sample is not None
        for thread in sample.threads
    }
    stacks = {key: frames for key, frames in update.snapshot.stacks.items() if key in used}
    snapshot = msgspec.structs.replace(update.snapshot, jobs=jobs, nodes=nodes, stacks=stacks)
    kept = {job.key: update.diagnoses[job.key] for job in jobs}
    return Update(snapshot, kept)


if __name__ == "__main__":
    main()
