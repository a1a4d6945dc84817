"""Jobs over nodes with real sshds: diagnosed, dumped and watched, while nodes go and come."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.connect.timing import Timing
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.session.session import Options, Session, Update
from support.cluster import Cluster, hangtop_files, why_not
from support.jobs import hangtop_json, run_hangtop
from support.judge import judge
from support.processes import PATIENCE
from support.remote_jobs import torchrun
from support.standing import main_stack, stand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.cluster import Node as TestNode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes that have neither hangtop nor py-spy; `ssh` on PATH reaches them."""
    root = tmp_path_factory.mktemp("cluster") / "c"
    with Cluster(root, 4, hangtop_files()) as cluster, cluster.on_path():
        yield cluster


def launchers(*names: str) -> list[SshLauncher]:
    return [SshLauncher(name, Login(connect_timeout=60)) for name in names]


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Iterator[None]:
    """Two nodes with two ranks each: 0, 1 and 3 wait in all_reduce, 2 on node-2 sleeps."""
    with torchrun(cluster, {1: 2, 2: 2}, "collective"):
        yield


@pytest.fixture(scope="module")
def hung(job: None) -> None:
    with Session(Options(), judge, launchers("node-1", "node-2")) as session:
        found = session.wait(
            lambda u: any(stand(u, job.ranks, 4) for job in u.snapshot.jobs), PATIENCE
        )
        assert found is not None, session.latest and session.latest.snapshot.jobs


def test_the_hung_rank_is_named_with_its_node(hung: None) -> None:
    options = ("--hang-after", "6", "--observe", "2")
    code, said, err = hangtop_json("diagnose", "-w", "node-[1-2]", *options)
    assert code == 10, (said, err)
    assert said["job"]["ranks_seen"] == [0, 1, 2, 3]
    assert said["job"]["nodes"] == ["node-1", "node-2"]
    first = said["verdicts"][0]
    assert [(c["rank"], c["node"]) for c in first["culprits"]] == [(2, "node-2")]
    assert first["victims"] == [0, 1, 3]
    assert "time.sleep" in first["summary"] or "hang_in_collective" in first["summary"], first


def test_ranks_on_a_node_that_was_not_named_are_missed(hung: None) -> None:
    options = ("-w", "node-[1-2]", "-x", "node-2", "--hang-after", "6", "--observe", "2")
    code, said, err = hangtop_json("diagnose", *options)
    assert code in (10, 11), err
    spots = [spot for spot in said["blind_spots"] if spot["what"] == "ranks"]
    assert [spot["ranks"] for spot in spots] == [[2, 3]]


def test_stacks_of_all_nodes_in_one_dump(hung: None) -> None:
    code, said, err = hangtop_json("dump", "-w", "node-[1-2]")
    assert code == 0, err
    assert [(r["rank"], r["node"]) for r in said["ranks"]] == [
        (0, "node-1"),
        (1, "node-1"),
        (2, "node-2"),
        (3, "node-2"),
    ]
    for rank in said["ranks"]:
        names = [frame["name"] for frame in rank["threads"][0]["frames"]]
        assert "hang_in_collective" in names


def test_a_dump_can_be_a_file_per_node(hung: None, tmp_path: Path) -> None:
    argv = ("dump", "-w", "node-[1-2],nowhere.invalid", "-o", str(tmp_path / "trace-%N.out"))
    done = run_hangtop(*argv)
    assert done.returncode == 0, done.stderr
    assert "nowhere.invalid unreachable: its name cannot be resolved" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "trace-node-1.out",
        "trace-node-2.out",
    ]
    assert "[2]" in (tmp_path / "trace-node-2.out").read_text()
    assert "[2]" not in (tmp_path / "trace-node-1.out").read_text()


def test_the_ranks_of_an_unreachable_node_are_a_blind_spot(hung: None, cluster: Cluster) -> None:
    cluster.node(2).stop_sshd()
    try:
        options = ("--hang-after", "6", "--observe", "2")
        code, said, err = hangtop_json("diagnose", "-w", "node-[1-2]", *options)
    finally:
        cluster.node(2).start_sshd()
    assert code in (10, 11), err
    spots = {spot["what"]: spot for spot in said["blind_spots"]}
    assert spots["node"]["nodes"] == ["node-2"]
    assert "connection refused" in spots["node"]["why"]
    assert spots["ranks"]["ranks"] == [2, 3]


WATCH = """
from hangtop.cli import main
from hangtop.cli.jobs import watchtext
watchtext.AWAY_S = 1.0
raise SystemExit(main.main(["watch", "--json", "--interval", "1", "-w", "node-[3-4]"]))
"""
"""What is told half a minute later otherwise: many nodes come back sooner."""


def watch_a_node_go_and_come(node: TestNode) -> None:
    """Real `hangtop watch` on a job, while nobody can log in to one of its nodes."""
    argv = [sys.executable, "-c", WATCH]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watch:
        try:
            assert watch.stdout is not None
            events = map(json.loads, watch.stdout)
            job = next(one for one in events if one["event"] == "job")
            node.stop_sshd()
            try:
                node.sh("pkill -KILL -f '[s]shd: '")
                away = next(one for one in events if node.name in one.get("nodes", ""))
            finally:
                node.start_sshd()
            back = next(one for one in events if node.name in one.get("nodes", ""))
            watch.send_signal(signal.SIGTERM)
            (last,) = [one for one in events if one["event"] != "nodes"]
        finally:
            watch.kill()
    assert job["job"]["world_size"] == 4
    assert (away["event"], away["state"] in ("unreachable", "lost")) == ("nodes", True), away
    assert away["reason"]
    assert (back["event"], back["state"]) == ("nodes", "ready"), back
    assert (last["event"], watch.returncode) == ("stopped", 0)


def test_a_node_that_dies_under_a_job_is_to_blame(cluster: Cluster) -> None:
    # As without options it is known to be lost long before its silence counts as a hang.
    timing = Timing(ping=0.5, slow=0.5, lost=2.5)
    options = Options(hang_after=5.0)
    node = cluster.node(4)
    with torchrun(cluster, {3: 2, 4: 2}, "steps"), contextlib.ExitStack() as stack:
        watch_a_node_go_and_come(node)
        session = stack.enter_context(
            Session(options, diagnose, launchers("node-3", "node-4"), timing)
        )
        running = session.wait(
            lambda u: any(
                len(job.ranks) == 4
                and u.diagnoses[job.key].state == "progressing"
                and all("steps" in main_stack(u, rank) for rank in job.ranks)
                for job in u.snapshot.jobs
            ),
            PATIENCE,
        )
        assert running is not None, session.latest
        node.freeze()
        try:
            hung = session.wait(dead_node_is_blamed, PATIENCE)
        finally:
            node.thaw()
        assert hung is not None, session.latest and session.latest.diagnoses


def dead_node_is_blamed(update: Update) -> bool:
    """Whether the ranks of node-4 are blamed, for which the others wait."""
    (found,) = update.diagnoses.values()
    told = [(v.cause, [c.rank for c in v.culprits], v.victims) for v in found.verdicts[:1]]
    return told == [("node-unreachable", [2, 3], (0, 1))]
