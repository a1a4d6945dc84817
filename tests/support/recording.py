"""Records the captures in tests/recordings: jobs that really run here, most of which hang.

What differs from machine to machine (user, host, folders, times, process ids) gets other values,
so that nothing is told of the machine, and recording the same job again changes little. Then they
are written by what `hangtop capture` writes with; that of several nodes with names of hosts
redacted. `screenshots/make.py --record` calls this.
"""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import sys
from array import array
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hangtop.cli.commands.dump import pids_by_node
from hangtop.demo.gallery import BY_NAME
from hangtop.demo.runner import Demo
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.attach.wire.command_log import CommandRecord
from hangtop_core.capture import Facts, Redaction, load, save, target_names
from hangtop_core.capture.take import take
from hangtop_core.judging.rejudging import rejudge
from hangtop_core.model.updates import Options, Update
from hangtop_core.session.session import Session
from hangtop_core.state.history import History
from support.cluster import Cluster
from support.launch import free_port
from support.record import path_of
from support.remote_jobs import torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.snapshot import Job, Node, Rank

HANG_AFTER = 10.0
LIMIT_S = 90.0
HEALTHY_S = 20.0
SHOWN_S = 3.0
"""Seconds that are recorded of a hang once it is one."""
HOME = str(Path.home())
REPOSITORY = Path(__file__).parents[2]
SMALL = 1000
"""Below this, as in a container, process ids are stable, and like other numbers."""
STARTED = 1_767_225_600.0
"""The moment a recording is moved to: 2026-01-01 00:00:00 UTC."""
MOUNTS = frozenset({"/", "/dev", "/dev/shm", "/home", "/proc", "/run", "/sys", "/tmp"})
"""Points that every machine has."""
TRAIN = REPOSITORY / "screenshots/train.py"

DEMOS = ("skip", "dataloader-worker", "stopped", "lock", "recorder", "progressing")
LOGS, CLUSTER = "logs", "cluster"
NAMES = (*DEMOS, LOGS, CLUSTER)


class Recorded(msgspec.Struct, frozen=True):
    """What was observed: at least one picture, oldest first."""

    pictures: tuple[Update, ...]
    commands: tuple[CommandRecord, ...]


def record(name: str) -> Path:
    """Record a capture, in place of the one there is."""
    if name == LOGS:
        with logging_job() as pids:
            found = observed(Options(hang_after=HANG_AFTER, pids=pids), LIMIT_S)
    elif name == CLUSTER:
        with TemporaryDirectory() as root, half_lost_cluster(Path(root)) as (session, history):
            found = Recorded(history.pictures, tuple(session.commands))
    else:
        with Demo(BY_NAME[name]) as demo:
            demo.wait_until_hung()
            limit = LIMIT_S if BY_NAME[name].hangs else HEALTHY_S
            found = observed(Options(hang_after=HANG_AFTER, pids=demo.members), limit)
    return write(name, normalised(found))


def keep(path: Path, name: str) -> Path:
    """Keep a capture that was taken on this machine, in place of the one there is."""
    seen = load(str(path))
    return write(name, normalised(Recorded(seen.pictures, seen.commands)))


def write(name: str, found: Recorded) -> Path:
    """Write a capture, as `hangtop capture` does."""
    path = path_of(name)
    path.unlink(missing_ok=True)
    newest = found.pictures[-1]
    facts = Facts("hangtop capture", target_names(newest), newest.snapshot.jobs[0].key, HANG_AFTER)
    redaction = Redaction(hosts=name == CLUSTER)
    save(path, found.pictures, facts, redaction, found.commands)
    path.chmod(0o644)
    return path


def observed(options: Options, limit_s: float) -> Recorded:
    """Observe until a hang is called, and ask for what a capture holds beside that."""
    history = History()
    with Session(options, diagnose) as session:
        session.subscribe(history.add)
        session.wait(lambda update: bool(update.snapshot.jobs), limit_s)
        session.wait(_hangs, limit_s)
        latest = session.latest
        assert latest is not None, "nothing has answered"
        (job,) = latest.snapshot.jobs
        for rank in job.ranks:
            mine = [rank.process.pid, *(child.pid for child in rank.children)]
            session.descriptors(rank.node, mine).result(10)
        take(session, job, pids_by_node(job))
        session.wait(lambda update: update.snapshot.at > latest.snapshot.at + SHOWN_S, 10)
        return Recorded(history.pictures, tuple(session.commands))


def _hangs(update: Update) -> bool:
    return any(one.state == "hung" and one.verdicts for one in update.diagnoses.values())


@contextmanager
def logging_job() -> Iterator[tuple[int, ...]]:
    """A job whose rank 2 catches an error and goes on without the others."""
    with TemporaryDirectory(prefix="hangtop-demo-") as root:
        shutil.copy(TRAIN, root)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
        command += [f"--master-port={free_port()}", "--redirects=3", "--log-dir=logs", TRAIN.name]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, cwd=root, stdout=quiet, stderr=quiet) as job:
            try:
                yield (job.pid,)
            finally:
                job.terminate()


@contextmanager
def half_lost_cluster(root: Path) -> Iterator[tuple[Session, History]]:
    """A session on a job over three nodes, some time after one of them froze; and a fourth."""
    history = History()
    with (
        Cluster(root / "c", 4) as cluster,
        cluster.on_path(),
        torchrun(cluster, {1: 2, 2: 2, 3: 2}, "steps"),
    ):
        cluster.node(2).sh(
            "echo 'echo Welcome to node-2, do not store data here' >/run/home/root/.bashrc"
        )
        cluster.node(4).stop_sshd()
        launchers = [SshLauncher(node.name, Login(connect_timeout=2)) for node in cluster.nodes]
        with Session(Options(hang_after=HANG_AFTER), diagnose, launchers) as session:
            session.subscribe(history.add)
            runs = session.wait(_steps, 60)
            assert runs is not None, session.latest
            take(session, runs.snapshot.jobs[0], pids_by_node(runs.snapshot.jobs[0]))
            cluster.node(3).freeze()
            try:
                wait_for_loss(session)
                yield session, history
            finally:
                cluster.node(3).thaw()


def _steps(update: Update) -> bool:
    """Whether all six ranks are in their steps."""
    stacks = update.snapshot.stacks
    mains = [
        stacks.get(rank.sample.threads[0].stack, ())
        for job in update.snapshot.jobs
        for rank in job.ranks
        if rank.sample is not None and rank.sample.threads
    ]
    steps = sum(any(frame.name == "steps" for frame in main) for main in mains)
    return steps == 6 and len(update.snapshot.jobs) == 1


def wait_for_loss(session: Session) -> None:
    """Wait until a node is lost, blamed and not reached again."""

    def blamed(update: Update) -> bool:
        found = [one for diagnosis in update.diagnoses.values() for one in diagnosis.verdicts]
        state = update.snapshot.nodes[2].state
        return any(one.cause == "node-unreachable" for one in found) and state == "lost"

    update = session.wait(blamed, 60)
    assert update is not None, session.latest
    session.wait(lambda u: u.snapshot.at > update.snapshot.at + 10, 20)


# Without what only this machine has


def normalised(found: Recorded) -> Recorded:
    """The same with other names, numbers and times; judged anew, as verdicts name them."""
    newest = found.pictures[-1]
    plain = Recorded(tuple(map(_plain, found.pictures)), found.commands)
    text = _renamed(msgspec.json.encode(plain).decode(), newest)
    again = msgspec.json.decode(text, type=Recorded)
    return Recorded(tuple(rejudge(again.pictures, HANG_AFTER)), again.commands)


def _plain(update: Update) -> Update:
    """Without what else runs and is mounted on this machine, and judgements, which are texts.

    The times in recorders' columns, which are no numbers in the text, are moved here.
    """
    ahead = int((STARTED - update.snapshot.observed_since) * 1e9)

    def later(rank: Rank) -> Rank:
        trace = rank.recorder.trace if rank.recorder is not None else None
        if trace is None or rank.recorder is None:
            return rank
        created = array("q", [at and at + ahead for at in trace.created]).tobytes()
        moved = replace(trace, raw_created=created, newest_ns=trace.newest_ns + ahead)
        return replace(rank, recorder=replace(rank.recorder, trace=moved))

    def alone(node: Node) -> Node:
        return replace(
            node,
            python_processes=(),
            other_users={},
            kernel_lines=(),
            boot_id="5f1c2b1e-6a0d-4d7c-9a52-0c3e8f7b6a11",
            mounts=tuple(one for one in node.mounts if one.point in MOUNTS),
            full_mounts=(),
            system=" ".join((node.system or "Linux").split("-")[0].split()[:2]),
        )

    def moved(job: Job) -> Job:
        return replace(job, ranks=tuple(map(later, job.ranks)))

    snapshot = update.snapshot
    jobs = tuple(map(moved, snapshot.jobs))
    nodes = tuple(map(alone, snapshot.nodes))
    return Update(replace(snapshot, jobs=jobs, nodes=nodes), {})


def _renamed(text: str, newest: Update) -> str:
    offset = STARTED - newest.snapshot.observed_since
    text = _moved(text, newest.snapshot.at, offset)
    text = _stable_pids(text, newest)
    text = re.sub(r"/[^\"\s:]*/(?=site-packages/|python3\.\d+/)", "/usr/lib/python3/", text)
    text = re.sub(r"/tmp/hangtop-demo-\w+", "/home/ada/demo", text)
    text = re.sub(r"/tmp/(hangtop-)?rec[\w-]*/[\w-]+", "/home/ada/run", text)
    text = re.sub(r"/tmp/torchelastic_\w+/none_\w+", "/home/ada/logs/none", text)
    text = re.sub(r"demo-[0-9a-f]{12}(_\w{8})?", "demo", text)
    text = text.replace(str(REPOSITORY), "/opt/hangtop")
    text = re.sub(r"/opt/[^\"\s:]*(?=/bin/(python|py-spy))", "/opt/venv", text)
    text = re.sub(r"/sys/fs/cgroup/[^\"\s:]+", "/sys/fs/cgroup/user.slice", text)
    for folder, name in ((sys.prefix, "/opt/venv"), (sys.base_prefix, "/usr"), (HOME, "/home/ada")):
        text = text.replace(folder, name)
    text = re.sub(r'"uuid":"GPU-[^"]*"', '"uuid":"GPU-00000000-0000-0000-0000-000000000000"', text)
    text = re.sub(r'"serial":"\d+"', '"serial":"0000000000000"', text)
    text = re.sub(r'"cgroup":"[^"]*"', '"cgroup":"/user.slice/session-1.scope"', text)
    nodes = newest.snapshot.nodes
    if len(nodes) == 1:
        text = re.sub(rf"\b{re.escape(nodes[0].name)}\b", "node1", text)
        for number, address in enumerate(nodes[0].addresses, 2):
            other = f"fd00::{number}" if ":" in address else f"192.0.2.{number}"
            text = text.replace(address, other)
    return re.sub(rf'"user":"{re.escape(getpass.getuser())}"', '"user":"ada"', text)


def _moved(text: str, at: float, offset: float) -> str:
    """With all times of these days moved: seconds since the epoch, and those in lines of logs."""
    low, high = at - 3 * 86400, at + 86400

    def number(match: re.Match[str]) -> str:
        value = float(match[0])
        return f"{value + offset:.3f}" if low < value < high else match[0]

    def date(match: re.Match[str]) -> str:
        then = datetime.fromisoformat(match[0]).replace(tzinfo=UTC)
        if not low < then.timestamp() < high:
            return match[0]
        shown = (then + timedelta(seconds=round(offset))).replace(tzinfo=None)
        return shown.isoformat(match[1], "seconds")

    text = re.sub(r"(?<![\w.\"-])\d{10}\.\d+(?![\w.])", number, text)
    return re.sub(r"(?<!\d)\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d", date, text)


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
