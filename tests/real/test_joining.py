"""Several jobs at once over real nodes: which ranks are one job, who is missing, what differs."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.commands.opening import opened
from hangtop_core.analysis.peers import peers
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.capture import Facts, Redaction, save
from hangtop_core.session.session import Options, Session
from support.cluster import Cluster, why_not
from support.processes import PATIENCE
from support.remote_jobs import SCRIPT, on_node
from support.terminals import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.analysis.peers import Peer
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot
    from hangtop_core.model.updates import Update

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

NODES = ("node-1", "node-2", "node-3")
RESTARTING = SCRIPT.with_name("restarting.py")
LACKING, ALONE, HUNG, STATIC, RESTARTED = "29501", "29502", "29503", "29504", "29505"
"""The ports of the jobs, by which they are told apart."""
HANGTOP = [sys.executable, "-m", "hangtop"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes; `ssh` on PATH reaches them."""
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", 4) as cluster, cluster.on_path():
        yield cluster


def rank(number: int, size: int, address: str, port: str) -> dict[str, str]:
    """What a launcher tells the only rank of a node."""
    return {
        "RANK": str(number),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(number),
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> Iterator[None]:
    """Five jobs on three nodes, all started at once."""
    import torch

    version = Path(torch.__file__).with_name("version.py")
    cluster.node(2).sh(
        f"sed 's/^__version__ = .*/__version__ = \"2.0.7\"/' {version} > /run/version.py; "
        f"mount --bind /run/version.py {version}"
    )
    ip = cluster.node(1).address
    run = ("-m", "torch.distributed.run", "--nproc-per-node=1")
    both = ("--nnodes=2", "--node-rank=0", "--master-addr=node-1", f"--master-port={STATIC}")
    elastic = ("--nnodes=1", "--max-restarts=1", f"--master-port={RESTARTED}")
    with contextlib.ExitStack() as stack:

        def start(number: int, *argv: str, **environ: str) -> None:
            stack.enter_context(on_node(cluster, number, *argv, **environ))

        # Of three ranks two were started, and they spell their store differently.
        start(1, str(SCRIPT), "collective", **rank(0, 3, "localhost", LACKING))
        start(2, str(SCRIPT), "collective", **rank(1, 3, "node-1", LACKING))
        # Each node waits at a store of its own.
        start(1, str(SCRIPT), "steps", **rank(0, 2, "127.0.0.1", ALONE))
        start(2, str(SCRIPT), "steps", **rank(1, 2, "127.0.0.1", ALONE))
        # A whole job: rank 2 sleeps, the others wait for it.
        start(1, str(SCRIPT), "collective", **rank(0, 3, "localhost", HUNG))
        start(2, str(SCRIPT), "collective", **rank(1, 3, ip, HUNG))
        start(3, str(SCRIPT), "collective", **rank(2, 3, "node-1", HUNG))
        # Two launchers with one node rank.
        start(1, *run, *both, str(SCRIPT), "collective")
        # What node 2 compiles of its torch is not to be kept where that of the others is.
        start(2, *run, *both, str(SCRIPT), "collective", PYTHONDONTWRITEBYTECODE="1")
        # Ranks that torchrun started again.
        start(3, *run, *elastic, str(RESTARTING))
        yield


@pytest.fixture(scope="module")
def seen(cluster: Cluster, jobs: None) -> Iterator[Update]:
    """What one session concludes about all of them, with the descriptors of the hung job read."""
    launchers = [SshLauncher(name, Login()) for name in NODES]
    with Session(Options(hang_after=6.0), diagnose, launchers) as session:
        whole = session.wait(all_told, PATIENCE)
        assert whole is not None, told(session.latest)
        # The session may have read them by itself while the ranks were still connecting.
        asked = time.time()
        for one in job_at(whole, HUNG).ranks:
            session.descriptors(one.node, [one.process.pid]).result(PATIENCE)

        def read(update: Update) -> bool:
            tables = [one.descriptors for one in job_at(update, HUNG).ranks]
            return all(table is not None and table.at >= asked for table in tables)

        update = session.wait(lambda one: all_told(one) and read(one), PATIENCE)
        assert update is not None, told(session.latest)
        yield update


TOLD = {
    LACKING: [("rank-never-joined", [2]), ("version-mismatch", [])],
    ALONE: [("launch-misconfigured", [1])],
    HUNG: [("missing-collective", [2])],
    STATIC: [("launch-misconfigured", None)],
}
"""What is concluded about each job first, and whom it blames, once all of them are where they stay.

Until then ranks that are late may be called missing.
"""


def all_told(update: Update) -> bool:
    """Whether all jobs are where they stay."""
    jobs = update.snapshot.jobs
    for port, wanted in TOLD.items():
        some = [job for job in jobs if job.key.endswith(f":{port}")]
        if len(some) != 1:
            return False
        verdicts = update.diagnoses[some[0].key].verdicts
        for (cause, culprits), found in zip_longest(wanted, verdicts[: len(wanted)]):
            if found is None or found.cause != cause:
                return False
            if culprits is not None and [one.rank for one in found.culprits] != culprits:
                return False
    again = [job for job in jobs if job.name == RESTARTING.name]
    return len(again) == 1 and restarts(again[0]) == {"1"}


def told(update: Update | None) -> object:
    """What is concluded about each job, for the message of a failing test."""
    return update and [
        (job.key, d.state, [(v.cause, v.culprits, v.summary) for v in d.verdicts])
        for job in update.snapshot.jobs
        for d in [update.diagnoses[job.key]]
    ]


def job_at(update: Update, port: str) -> Job:
    """The job whose store has this port; there must be but one."""
    (job,) = (job for job in update.snapshot.jobs if job.key.endswith(f":{port}"))
    return job


def diagnosis(update: Update, port: str) -> Diagnosis:
    return update.diagnoses[job_at(update, port).key]


def restarts(job: Job) -> set[str]:
    return {one.process.env["TORCHELASTIC_RESTART_COUNT"] for one in job.ranks}


def placed(job: Job) -> list[tuple[int, str]]:
    return [(one.rank, one.node) for one in job.ranks]


def test_ranks_that_spell_their_store_differently_are_one_job(seen: Update) -> None:
    job = job_at(seen, HUNG)
    assert placed(job) == [(0, "node-1"), (1, "node-2"), (2, "node-3")]
    assert job.key == f"node-1:{HUNG}"
    assert {node.name: node.addresses for node in seen.snapshot.nodes} == {
        f"node-{n}": (f"10.77.0.{n + 1}",) for n in (1, 2, 3)
    }


def test_a_missing_rank_is_named_with_the_node_it_should_be_on(seen: Update) -> None:
    assert placed(job_at(seen, LACKING)) == [(0, "node-1"), (1, "node-2")]
    verdict = diagnosis(seen, LACKING).verdicts[0]
    assert verdict.cause == "rank-never-joined"
    assert [(c.rank, c.node, c.local_rank) for c in verdict.culprits] == [(2, "node-3", 0)]
    assert "rank 2 (local rank 0 of node-3) never joined" in verdict.summary


def test_another_torch_on_one_node_is_told(seen: Update) -> None:
    import torch

    versions = {one.node: one.process.versions for one in job_at(seen, LACKING).ranks}
    assert {node: one.get("torch") for node, one in versions.items()} == {
        "node-1": torch.__version__,
        "node-2": "2.0.7",
    }, versions
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert {one["python"] for one in versions.values()} == {python}
    second = diagnosis(seen, LACKING).verdicts[1]
    assert second.cause == "version-mismatch"
    # The missing rank explains the wait: the other software is told, and nobody is blamed for it.
    assert (second.culprits, second.confidence < 0.5) == ((), True)
    assert "torch 2.0.7 on node-2 (rank 1)" in second.summary


def test_localhost_on_every_node_is_one_job_told_wrong(seen: Update) -> None:
    assert placed(job_at(seen, ALONE)) == [(0, "node-1"), (1, "node-2")]
    verdict = diagnosis(seen, ALONE).verdicts[0]
    assert verdict.cause == "launch-misconfigured"
    assert "MASTER_ADDR is 127.0.0.1 on node-[1-2]" in verdict.summary
    assert [c.node for c in verdict.culprits] == ["node-2"]


def test_launchers_with_one_node_rank(seen: Update) -> None:
    job = job_at(seen, STATIC)
    assert [(one.node, one.label) for one in job.launchers] == [
        ("node-1", "torchrun"),
        ("node-2", "torchrun"),
    ]
    verdict = diagnosis(seen, STATIC).verdicts[0]
    assert verdict.cause == "launch-misconfigured"
    assert "node-1 and node-2 both have node rank 0" in verdict.summary


def test_ranks_of_an_earlier_attempt_are_forgotten(seen: Update) -> None:
    (job,) = (job for job in seen.snapshot.jobs if job.name == RESTARTING.name)
    assert (placed(job), restarts(job)) == ([(0, "node-3")], {"1"})
    assert [one.label for one in job.launchers] == ["torchrun"]


def test_commands_lead_to_the_node_of_the_culprit(seen: Update) -> None:
    verdict = diagnosis(seen, HUNG).verdicts[0]
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.node) == (2, "node-3")
    assert verdict.next_steps[-2:] == (
        f"hangtop dump -w node-3 --pid {culprit.pid} --native",
        f"ssh node-3 'timeout 10 strace -f -p {culprit.pid}'",
    )


def test_sockets_name_the_ranks_on_other_nodes(seen: Update) -> None:
    found = peers(seen.snapshot)
    for one in job_at(seen, HUNG).ranks:
        others = {
            (peer.rank, peer.node)
            for end, peer in found.items()
            if (end.node, end.pid) == (one.node, one.process.pid) and peer.rank is not None
        }
        everybody = {(0, "node-1"), (1, "node-2"), (2, "node-3")}
        assert others >= everybody - {(one.rank, one.node)}, found


@pytest.mark.parametrize("redaction", [Redaction(), Redaction(paths=True, hosts=True)], ids=repr)
def test_a_capture_of_several_nodes_says_the_same(
    seen: Update, redaction: Redaction, tmp_path: Path
) -> None:
    key = job_at(seen, HUNG).key
    saved = save(tmp_path / "nodes", [seen], Facts(job=key, hang_after=6.0), redaction)
    found, notices = opened(saved.path)
    assert (found.cut, notices) == (None, [])
    assert found.header.holds["nodes"] == 3
    then, now = seen.snapshot, found.newest.snapshot
    hidden = [node.addresses == () or node.addresses[0].startswith("198.18.") for node in now.nodes]
    assert all(hidden) == redaction.hosts
    assert [(node.name, node.state) for node in now.nodes] == [
        (node.name, node.state) for node in then.nodes
    ], "node-1 is the first name that a node gets instead, too"
    job = job_at(found.newest, HUNG)
    assert placed(job) == placed(job_at(seen, HUNG))
    for port, wanted in TOLD.items():
        causes = [one.cause for one in diagnosis(found.newest, port).verdicts[: len(wanted)]]
        assert causes == [cause for cause, _ in wanted], port
    (culprit,) = diagnosis(found.newest, HUNG).verdicts[0].culprits
    assert (culprit.rank, culprit.node) == (2, "node-3")
    for one in job.ranks:
        assert one.sample is not None
        names = [frame.name for frame in now.stacks[one.sample.threads[0].stack]]
        assert "hang_in_collective" in names
    assert {(end, peer.rank, peer.node) for end, peer in ends_of(now)} == {
        (end, peer.rank, peer.node) for end, peer in ends_of(then)
    }


def ends_of(snapshot: Snapshot) -> list[tuple[tuple[str, int], Peer]]:
    """Who is at the other end of the sockets of each process."""
    return [((end.node, end.pid), peer) for end, peer in peers(snapshot).items()]


def test_the_command_of_the_verdict_shows_that_rank(seen: Update) -> None:
    (one,) = diagnosis(seen, HUNG).verdicts[0].culprits
    argv = [*HANGTOP, "dump", "-w", "node-3", "--pid", str(one.pid), "--each"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"node-3:2  process {one.pid}: ")
    assert "hang_in_collective (support/gloo_job.py:" in done.stdout


def test_the_files_of_a_rank_name_ranks_on_other_nodes(seen: Update) -> None:
    """Tables of its peers are read, too: those of its own node do not tell."""
    argv = [*HANGTOP, "files", "0", "-w", "node-[1-4]", "--job-key", f"node-1:{HUNG}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "= rank 1 on node-2" in done.stdout
    assert "= rank 2 on node-3" in done.stdout


def test_ctrl_c_gives_what_has_arrived_and_says_what_is_missing(
    cluster: Cluster, seen: Update
) -> None:
    cluster.node(4).freeze()
    try:
        argv = [*HANGTOP, "dump", "-w", "node-[1-4]", "--job-key", f"node-1:{HUNG}"]
        argv += ["--connect-timeout", str(PATIENCE)]
        status, out, told = interrupted(argv, b"3 of 4 nodes answered")
    finally:
        cluster.node(4).thaw()
    assert status == 130
    assert b"Traceback" not in told
    assert b"hangtop: node-4 connecting" in told
    assert out.startswith("3 ranks of 3 gave a stack, 2 classes")
    assert re.search(r"gloo_job.py:\d+\)  \[2\] node-3", out), out
    assert "[0-1] node-[1-2]" in out
