"""Other ways than ssh to the same nodes, and other launchers than torchrun on them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.attach.ways.command import CommandLauncher, Template
from hangtop_core.attach.ways.pdsh import PdshChannel, PdshLauncher
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.errors import RefusedError
from hangtop_core.session.session import Options, Session, Update
from support.cluster import Cluster, Node, hangtop_files, why_not
from support.jobs import hangtop_json
from support.judge import judge
from support.processes import PATIENCE, wait_until
from support.remote_jobs import mpirun, torchrun
from support.standing import stand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

RANKS = 3
NODES = "node-[1-2]"
SOON = ("--hang-after", "4", "--observe", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes without hangtop and py-spy; `enter NODE COMMAND...` runs something there."""
    root = tmp_path_factory.mktemp("cluster") / "c"
    with Cluster(root, 2, hangtop_files()) as cluster, cluster.on_path():
        cases = "".join(
            f'{n.name}) shift; exec {" ".join(n.argv())} "$@";;\n' for n in cluster.nodes
        )
        enter = cluster.bin / "enter"
        enter.write_text(f'#!/bin/sh\ncase $1 in\n{cases}esac\necho "no node $1" >&2; exit 1\n')
        enter.chmod(0o755)
        yield cluster


@pytest.fixture(scope="module")
def hostfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mpirun and hangtop are both given."""
    path = tmp_path_factory.mktemp("hosts") / "hosts"
    path.write_text("# by rank\nnode-1 slots=2 max-slots=4\nnode-2 slots=1\n")
    return path


@pytest.fixture(scope="module")
def job(cluster: Cluster, hostfile: Path) -> Iterator[str]:
    """A hung job on both nodes and its launcher; rank 2 sleeps on node-2, and 0 and 1 wait."""
    launcher = "mpirun" if shutil.which("mpirun") else "torchrun"
    run = (
        mpirun(cluster, hostfile, f"{cluster.node(1).address}:29600", RANKS)
        if launcher == "mpirun"
        else torchrun(cluster, {1: 2, 2: 1}, "collective")
    )
    entering = Template("enter %h")
    launchers = [CommandLauncher(node.name, Login(), entering) for node in cluster.nodes]
    with run:
        with Session(Options(), judge, launchers) as session:
            found = session.wait(stands, PATIENCE)
            assert found is not None, session.latest and session.latest.snapshot.jobs
        yield launcher


def stands(update: Update) -> bool:
    """Whether the job hangs."""
    return any(stand(update, job.ranks, RANKS) for job in update.snapshot.jobs)


def assert_explained(said: Any, launcher: str) -> None:
    assert said["job"]["ranks_seen"] == [0, 1, 2]
    assert said["job"]["world_size"] == RANKS
    assert said["job"]["nodes"] == ["node-1", "node-2"]
    assert said["job"]["launcher"] == launcher
    first = said["verdicts"][0]
    assert first["cause"] == "missing-collective"
    assert [(one["rank"], one["node"]) for one in first["culprits"]] == [(2, "node-2")]
    assert first["victims"] == [0, 1]


def assert_stacks(said: Any) -> None:
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 2]
    for rank in said["ranks"]:
        names = [frame["name"] for frame in rank["threads"][0]["frames"]]
        assert "hang_in_collective" in names, rank


# A command of the user's own


def test_a_command_that_executes_its_words(job: str, cluster: Cluster) -> None:
    code, said, err = hangtop_json("diagnose", "-w", NODES, "--command", "enter %h", *SOON)
    assert code == 10, (said, err)
    assert_explained(said, job)
    kept = cluster.node(1).sh("find /run/home/root/.cache/hangtop -name py-spy")
    assert kept.strip(), "py-spy was sent, as over ssh"


def test_a_command_that_hands_its_words_to_a_shell(job: str) -> None:
    shell = ("--command", "enter %h bash -c %c", "--init", "cd / && echo Welcome")
    code, said, err = hangtop_json("dump", "-w", NODES, *shell)
    assert code == 0, err
    assert_stacks(said)


def test_a_command_that_fails_says_why(job: str) -> None:
    code, said, err = hangtop_json("dump", "-w", f"{NODES},other", "--command", "enter %h")
    assert (code, len(said["ranks"])) == (0, RANKS)
    assert "other unreachable: the connection ended with status 1: no node other" in err
    assert "see what happens: enter other python3 -V" in err


# Open MPI


def test_a_job_of_mpirun_is_found_by_its_host_file(job: str, hostfile: Path) -> None:
    if job != "mpirun":
        pytest.skip("no mpirun on this machine")
    code, said, err = hangtop_json("diagnose", "--hostfile", str(hostfile), *SOON)
    assert code == 10, (said, err)
    assert_explained(said, "mpirun")


# pdsh


@pytest.fixture
def pdsh(job: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pdsh that goes by ssh, as sites set it up."""
    if shutil.which("pdsh") is None:
        pytest.skip("no pdsh on this machine")
    monkeypatch.setenv("PDSH_RCMD_TYPE", "ssh")


def test_a_diagnosis_over_pdsh(job: str, pdsh: None, cluster: Cluster) -> None:
    where = ("-w", f"{NODES},nowhere.invalid", "--via", "pdsh")
    code, said, err = hangtop_json("diagnose", *where, *SOON)
    assert code == 10, (said, err)
    assert_explained(said, job)
    spots = {spot["what"]: spot for spot in said["blind_spots"]}
    assert spots["node"]["nodes"] == ["nowhere.invalid"]
    assert "its name cannot be resolved" in spots["node"]["why"]
    assert "py-spy is not sent along" in err
    for node in cluster.nodes:
        assert wait_until(lambda n=node: not probes(n)), "no probe outlives its head"


def test_stacks_over_pdsh(job: str, pdsh: None) -> None:
    code, said, err = hangtop_json("dump", "-w", NODES, "--via", "pdsh")
    assert code == 0, err
    assert_stacks(said)


def test_what_pdsh_cannot_do_is_refused_and_the_rest_goes_on(job: str, pdsh: None) -> None:
    watch = {"interval": 0.5, "all_users": False, "pids": None}
    channel = PdshChannel(("node-1", "node-2"), Login(), watch)
    launchers = [PdshLauncher(node, channel) for node in ("node-1", "node-2")]
    with Session(Options(), judge, launchers) as session:
        found = session.wait(stands, PATIENCE)
        assert found is not None, session.latest
        rank = found.snapshot.jobs[0].ranks[2]
        with pytest.raises(RefusedError, match="pdsh could not end a trace"):
            session.strace(rank.node, rank.process.pid, 5.0, print).result(PATIENCE)
        table = session.descriptors(rank.node, [rank.process.pid]).result(PATIENCE)[
            rank.process.pid
        ]
        assert table is not None
        assert table.descriptors
        node = found.snapshot.nodes[0]
        assert (node.state, node.via) == ("ready", "pdsh one-way")
        seen = node.last_seen or 0.0
        assert session.wait(lambda u: (u.snapshot.nodes[0].last_seen or 0.0) > seen + 1, PATIENCE)


def test_no_probe_outlives_a_head_that_is_killed(job: str, pdsh: None, cluster: Cluster) -> None:
    argv = [sys.executable, "-m", "hangtop", "diagnose", "-w", NODES, "--via", "pdsh"]
    head = subprocess.Popen(
        [*argv, "--observe", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_until(lambda: all(probes(node) for node in cluster.nodes))
    finally:
        head.kill()
        head.wait(PATIENCE)
    assert wait_until(lambda: not any(probes(node) for node in cluster.nodes))


def probes(node: Node) -> str:
    return node.sh("pgrep -f '[I] -S -u' || true")
