"""What goes wrong with nodes over real sshds once they are attached, each of it for real."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from concurrent.futures import wait as finished
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from hangtop_core.attach.connect.link import Timing
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.errors import NodeNotReadyError
from hangtop_core.session.session import Options, Session, Update
from support.cluster import SSH, Cluster, run, why_not
from support.judge import judge
from support.processes import (
    PATIENCE,
    Held,
    children,
    command_line,
    is_alive,
    parent,
    wait_until,
)
from support.terminals import say_yes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.snapshot import Node
    from support.cluster import Node as TestNode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

QUICK = Login(connect_timeout=2)
TIMING = Timing(
    ping=0.5, slow=0.5, lost=10.0, table=3.0, silence=5.0, retry_first=0.3, retry_last=2.0
)
FREEZE_S = 3.0
SPARE = 30.0
"""Seconds that a busy machine may add to what takes some tenths of one."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", 4) as cluster, cluster.on_path():
        yield cluster


def attached(*names: str, timing: Timing = TIMING) -> Session:
    return Session(Options(), judge, [SshLauncher(name, QUICK) for name in names], timing)


def node(update: Update, name: str) -> Node:
    return next(node for node in update.snapshot.nodes if node.name == name)


def generation(update: Update, name: str) -> int:
    return node(update, name).generation


def all_ready(update: Update) -> bool:
    return all(node.state == "ready" and node.last_seen for node in update.snapshot.nodes)


def probes(cluster: Cluster, number: int) -> list[int]:
    """Probes on a node, by their pids on this machine."""
    found = [pid for pid in cluster.node(number).pids() if " -I -S -u " in command_line(pid)]
    # What a probe is about to start looks like itself for a moment.
    return [pid for pid in found if parent(pid) not in found]


class Seen(NamedTuple):
    """A node in one update."""

    mono: float
    at: float
    node: Node


class Story:
    """What a session told of each node, over time."""

    def __init__(self, session: Session) -> None:
        self.seen: dict[str, list[Seen]] = {}
        session.subscribe(self._take)

    def _take(self, update: Update) -> None:
        now = time.monotonic()
        for one in update.snapshot.nodes:
            self.seen.setdefault(one.name, []).append(Seen(now, update.snapshot.at, one))

    def states(self, name: str) -> list[str]:
        """Its states in their order, each once in a row."""
        told = [seen.node.state for seen in self.seen[name]]
        return [state for i, state in enumerate(told) if i == 0 or told[i - 1] != state]

    def first(self, name: str, state: str, after: float) -> Seen:
        """The first time it was in this state after some moment."""
        return next(s for s in self.seen[name] if s.mono >= after and s.node.state == state)

    def oldest(self, name: str) -> float:
        """The greatest age of what was known of it, in seconds."""
        return max(seen.at - (seen.node.last_seen or seen.at) for seen in self.seen[name])


def unhurt(story: Story, name: str) -> bool:
    """Whether nothing was missed of a node; a busy machine may have made it answer late."""
    return set(story.states(name)) <= {"ready", "slow"} and story.oldest(name) < TIMING.lost


class Ordeal(NamedTuple):
    """node-1 was unplugged, node-2 frozen for 3 s, node-3 for longer; node-4 left alone."""

    story: Story
    before: Update
    began: float
    slept: float
    """Seconds that node-2 was frozen."""
    mended: float
    answered: bool
    """Whether a request to node-2 was answered that was made while it was frozen."""
    orphan_ended: float
    """Seconds after which the probe on the unplugged node had ended by itself."""
    back: Update


@pytest.fixture(scope="module")
def ordeal(cluster: Cluster) -> Ordeal:
    names = [node.name for node in cluster.nodes]
    with attached(*names) as session, contextlib.ExitStack() as undo:
        before = session.wait(all_ready, PATIENCE)
        assert before is not None, session.latest
        story = Story(session)
        (orphan,) = probes(cluster, 1)
        undo.callback(cluster.plug, 1)
        undo.callback(cluster.node(2).thaw)
        undo.callback(cluster.node(3).thaw)
        began = time.monotonic()
        cluster.unplug(1)
        cluster.node(2).freeze()
        cluster.node(3).freeze()
        asked = session.descriptors("node-2", [cluster.node(2).init])
        time.sleep(FREEZE_S - (time.monotonic() - began))
        cluster.node(2).thaw()
        slept = time.monotonic() - began
        answered = bool(finished([asked], PATIENCE).done) and asked.exception() is None
        assert wait_until(lambda: not is_alive(orphan)), "the orphaned probe lives on"
        orphan_ended = time.monotonic() - began
        lost = session.wait(
            lambda u: {node(u, n).state for n in ("node-1", "node-3")} == {"lost"}, PATIENCE
        )
        assert lost is not None, session.latest
        mended = time.monotonic()
        undo.close()
        back = session.wait(lambda u: all_ready(u) and node(u, "node-1").generation > 0, PATIENCE)
        assert back is not None, session.latest
        return Ordeal(story, before, began, slept, mended, answered, orphan_ended, back)


def test_a_node_that_freezes_for_a_moment_is_slow_and_nothing_is_lost(ordeal: Ordeal) -> None:
    if ordeal.slept >= TIMING.lost - 2:
        pytest.skip(f"this machine was too busy to tell: it slept {ordeal.slept:.1f} s, not 3")
    told = ordeal.story.states("node-2")
    assert "lost" not in told
    assert told.count("slow") > 0, told
    slow = ordeal.story.first("node-2", "slow", ordeal.began)
    assert slow.mono - ordeal.began < TIMING.ping + TIMING.slow + SPARE
    assert "no answer" in (slow.node.reason or "")
    assert ordeal.answered
    assert generation(ordeal.back, "node-2") == generation(ordeal.before, "node-2")


def test_a_node_that_stays_frozen_is_lost_keeps_its_age_and_comes_back(ordeal: Ordeal) -> None:
    lost = ordeal.story.first("node-3", "lost", ordeal.began)
    assert lost.mono - ordeal.began < TIMING.ping + TIMING.lost + SPARE
    assert lost.node.last_seen is not None
    assert lost.at - lost.node.last_seen > TIMING.lost - 2
    assert re.match("no answer for .*; connecting again", lost.node.reason or ""), lost.node.reason
    later = [s.node for s in ordeal.story.seen["node-3"] if lost.mono <= s.mono < ordeal.mended]
    assert {one.last_seen for one in later} == {lost.node.last_seen}
    assert generation(ordeal.back, "node-3") > generation(ordeal.before, "node-3")


def test_a_half_open_connection_is_found_out_and_replaced(ordeal: Ordeal) -> None:
    told = [state for state in ordeal.story.states("node-1") if state != "ready"]
    assert told[: told.index("lost") + 1][-2:] == ["slow", "lost"], told
    slow = ordeal.story.first("node-1", "slow", ordeal.began)
    assert slow.mono - ordeal.began < TIMING.ping + TIMING.slow + SPARE
    lost = ordeal.story.first("node-1", "lost", ordeal.began)
    assert lost.mono - ordeal.began < TIMING.ping + TIMING.lost + SPARE
    assert "no answer for" in (lost.node.reason or "")
    again = ordeal.story.first("node-1", "ready", ordeal.mended)
    assert again.mono - ordeal.mended < 15 + SPARE
    assert TIMING.silence - 1 < ordeal.orphan_ended < TIMING.silence + 6 + SPARE


def test_the_others_notice_nothing_of_it(ordeal: Ordeal) -> None:
    assert unhurt(ordeal.story, "node-4")
    assert generation(ordeal.back, "node-4") == generation(ordeal.before, "node-4")


RANK = """
import os, secrets, time
os.makedirs("/run/many", exist_ok=True)
files = [open("/run/many/" + secrets.token_urlsafe(180), "w") for _ in range(4200)]
open("/run/many/ready", "w"); time.sleep(100000)
"""
"""A rank whose descriptors make an answer of a megabyte, however it is compressed."""


def sshds(node: TestNode) -> set[int]:
    """The servers of sessions on a node; one of a connection that was broken stays for a while."""
    return {one for one in node.pids() if "sshd: root@notty" in command_line(one)}


def test_an_sshd_killed_in_the_middle_of_a_big_answer(cluster: Cluster) -> None:
    target = cluster.node(1)
    slow = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf"]
    slow += ["rate", "4mbit", "burst", "32kb", "latency", "5s"]
    shaped = run(*target.argv(*slow), check=False)
    if shaped.returncode:
        pytest.skip(f"no slow network can be made here: {shaped.stderr.strip()[:80]}")
    where = "MASTER_ADDR=h MASTER_PORT=1 WORLD_SIZE=1 RANK=0 LOCAL_RANK=0"
    target.sh(f"ulimit -n 20000; {where} setsid {sys.executable} -c '{RANK}' >/dev/null 2>&1 &")
    try:
        assert wait_until(lambda: not target.sh("ls /run/many/ready || echo no").startswith("no"))
        earlier = sshds(target)
        with attached("node-1", "node-2") as session:
            found = session.wait(lambda u: all_ready(u) and bool(u.snapshot.jobs), PATIENCE)
            assert found is not None, session.latest
            story = Story(session)
            pid = found.snapshot.jobs[0].ranks[0].process.pid
            mine = {pid: arguments(pid) for pid in children(os.getpid())}
            (ssh,) = (one for one, argv in mine.items() if argv[0] == SSH and "node-1" in argv)
            (sshd,) = sshds(target) - earlier
            before, seen = read_by(ssh), generation(found, "node-1")
            asked = session.descriptors("node-1", [pid])
            # A tenth of it: this machine may look away for a second before the rest is there, too.
            assert wait_until(lambda: read_by(ssh) > before + 100_000)
            os.kill(sshd, signal.SIGKILL)
            with pytest.raises(NodeNotReadyError):
                asked.result(PATIENCE)
            target.sh("tc qdisc del dev eth0 root")
            back = session.wait(lambda u: all_ready(u) and generation(u, "node-1") > seen, PATIENCE)
            assert back is not None, session.latest
            lost = story.first("node-1", "lost", 0.0).node
            # Which of the two ssh notices first is chance.
            told = ("its sshd ended the connection", "the connection broke")
            assert (lost.reason or "").startswith(told), lost
            table = session.descriptors("node-1", [pid]).result(PATIENCE)[pid]
            assert table is not None
            assert len(table.descriptors) == 4096
            assert unhurt(story, "node-2")
    finally:
        target.sh("tc qdisc del dev eth0 root 2>/dev/null; pkill -KILL -f '[s]ecrets.token'; true")


def arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def read_by(pid: int) -> int:
    """Bytes a process has read."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


@contextlib.contextmanager
def at_login(cluster: Cluster, number: int, script: str) -> Iterator[None]:
    """A node whose shell runs something at every login."""
    target = cluster.node(number)
    Path(f"/proc/{target.init}/root/run/home/root/.bashrc").write_text(script + "\n")
    try:
        yield
    finally:
        target.sh("rm /run/home/root/.bashrc; pkill -KILL -f '[n]oise-of-the-test'; true")


def test_garbage_and_chatter_around_and_between_messages(cluster: Cluster) -> None:
    chatter = "while :; do echo chatter noise-of-the-test; sleep 0.05; done"
    garbage = "head -c 3000 /dev/urandom; printf '\\e[2J\\036HT\\r'; printf 'no newline'"
    with (
        at_login(cluster, 2, f"{garbage}; bash -c '{chatter}' &"),
        attached("node-2") as session,
    ):
        assert session.wait(all_ready, PATIENCE), session.latest
        first = session.latest
        assert first is not None
        before = node(first, "node-2")
        later = session.wait(
            lambda u: (
                node(u, "node-2").noise_lines > before.noise_lines + 40
                and (node(u, "node-2").last_seen or 0) > (before.last_seen or 0) + 2
                and "chatter noise-of-the-test" in node(u, "node-2").noise
                and all_ready(u)
            ),
            PATIENCE,
        )
        assert later is not None, session.latest
        after = node(later, "node-2")
        assert after.generation == before.generation
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join((*before.noise, *after.noise)))


def test_a_flood_is_cut_off_and_the_others_do_not_feel_it(cluster: Cluster) -> None:
    with attached("node-2", "node-3") as session:
        with at_login(cluster, 2, "yes noise-of-the-test &"):
            story = Story(session)
            flooded = session.wait(lambda u: "floods" in (node(u, "node-2").reason or ""), PATIENCE)
            assert flooded is not None, session.latest
            told = node(flooded, "node-2")
            assert told.state in ("unreachable", "lost")
            assert ".bashrc" in (told.fix or "")
            ready = session.wait(lambda u: node(u, "node-3").state == "ready", PATIENCE)
            assert ready is not None, session.latest
            until = time.monotonic() + 4
            ready = session.wait(
                lambda u: time.monotonic() > until and node(u, "node-3").state == "ready", PATIENCE
            )
            assert ready is not None, session.latest
            assert "lost" not in story.states("node-3")
            assert story.oldest("node-3") < 2 * TIMING.lost
        session.retry("node-2")
        assert session.wait(all_ready, PATIENCE), session.latest


A_TABLE = 2000
"""Bytes that are read of /proc for a process table, and not with the requests of two seconds."""


def read_by_threads(pid: int) -> dict[int, int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name): int((task / "io").read_text().split()[1]) for task in tasks}


def test_a_table_that_hangs_is_told_although_the_probe_answers(cluster: Cluster) -> None:
    timing = Timing(ping=0.5, slow=1.0, lost=8.0, table=1.5)
    with attached("node-3", "node-4", timing=timing) as session:
        ready = session.wait(all_ready, PATIENCE)
        assert ready is not None, session.latest
        (probe,) = probes(cluster, 3)
        before = read_by_threads(probe)
        seen = node(ready, "node-3").last_seen or 0.0
        assert session.wait(lambda u: (node(u, "node-3").last_seen or 0.0) > seen + 2, PATIENCE)
        after = read_by_threads(probe)
        # One of its threads makes the table, one reads for it what may hang; others hardly read.
        grown = {tid: count - before.get(tid, 0) for tid, count in after.items()}
        with contextlib.ExitStack() as held:
            for tid in (tid for tid, count in grown.items() if count > A_TABLE):
                held.enter_context(Held(tid))
            slow = session.wait(
                lambda u: "process table stands still" in (node(u, "node-3").reason or ""), PATIENCE
            )
            assert slow is not None, session.latest
            assert node(slow, "node-3").state == "slow"
            later = session.wait(
                lambda u: (
                    u.snapshot.at - (node(u, "node-3").last_seen or 0) > timing.lost + 1
                    and node(u, "node-4").state == "ready"
                ),
                PATIENCE,
            )
            assert later is not None, session.latest
            assert node(later, "node-3").state == "slow", "it answers, so it is not lost"
        back = session.wait(all_ready, PATIENCE)
        assert back is not None, session.latest
        assert generation(back, "node-3") == generation(ready, "node-3")


@pytest.mark.parametrize("name", ["stranger", "changed"])
def test_the_command_shown_accepts_a_host_key(cluster: Cluster, name: str) -> None:
    known = cluster.root / "client" / f"{name}_hosts"
    before = known.read_text() if known.exists() else None
    try:
        with attached(name) as session:
            refused = session.wait(lambda u: node(u, name).state == "denied", PATIENCE)
            assert refused is not None, session.latest
            fix = node(refused, name).fix
            assert fix is not None
            say_yes(fix.rpartition(": ")[2])
            session.retry(name)
            assert session.wait(all_ready, PATIENCE), session.latest
    finally:
        known.unlink(missing_ok=True)
        if before is not None:
            known.write_text(before)
