"""A real job over two nodes between which packets get lost, while both can still be reached."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.session.session import Options, Session
from support.cluster import Cluster, why_not
from support.launch import SUPPORT
from support.middlebox import MARK
from support.processes import PATIENCE
from support.remote_jobs import SCRIPT, on_node
from support.standing import main_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.model.snapshot import Job
    from hangtop_core.model.updates import Update

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

BRIDGED = "29503"


def of(update: Update, port: str) -> Job | None:
    """The job under test; ranks of the one before may still be there."""
    jobs = update.snapshot.jobs
    return next((job for job in jobs if (job.master or "").endswith(f":{port}")), None)


def makes_steps(update: Update, port: str) -> bool:
    """Whether both ranks are in their steps, and get on: they have connected to one another."""
    job = of(update, port)
    if job is None or update.diagnoses[job.key].state != "progressing":
        return False
    return len(job.ranks) == 2 and all("steps" in main_stack(update, one) for one in job.ranks)


def verdicts(update: Update, port: str) -> tuple[Verdict, ...]:
    job = of(update, port)
    return update.diagnoses[job.key].verdicts if job is not None else ()


def causes(update: Update, port: str) -> list[str]:
    return [verdict.cause for verdict in verdicts(update, port)]


def blamed(update: Update, port: str) -> str | None:
    """The first cause, where somebody is to blame."""
    first = next(iter(verdicts(update, port)), None)
    return first.cause if first is not None and first.culprits else None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("c"), 2) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def bridged(cluster: Cluster) -> Iterator[str]:
    """The port of a job that starts beside all tests, over bridges as docker makes them."""
    for node in cluster.nodes:
        node.sh("ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0")
        node.sh("ip link set docker0 up")
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": cluster.node(1).address, "MASTER_PORT": BRIDGED}
    told["GLOO_SOCKET_IFNAME"] = "docker0"
    with (
        on_node(cluster, 1, str(SCRIPT), "steps", RANK="0", **told),
        on_node(cluster, 2, str(SCRIPT), "steps", RANK="1", **told),
    ):
        yield BRIDGED


@pytest.mark.parametrize(
    ("cause", "port", "opened"),
    [
        ("port-blocked", "29501", f"22,29501,{BRIDGED}"),
        ("store-unreachable", "29502", f"22,{BRIDGED}"),
    ],
)
def test_ports_that_nobody_answers_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, cause: str, port: str, opened: str
) -> None:
    monkeypatch.setenv("PATH", cluster.path)
    one, two = cluster.node(1), cluster.node(2)
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": one.address, "MASTER_PORT": port}
    launchers = [SshLauncher(node.name, Login()) for node in cluster.nodes]
    # GIVEN a firewall that lets ssh through, perhaps the store's port, and nothing else
    for node in (one, two):
        node.sh(f"iptables -A INPUT -p tcp --syn -m multiport ! --dports {opened} -j DROP")
    try:
        with (
            on_node(cluster, 1, str(SCRIPT), "steps", RANK="0", **told),
            on_node(cluster, 2, str(SCRIPT), "steps", RANK="1", **told),
            Session(Options(hang_after=3.0), diagnose, launchers) as session,
        ):
            found = session.wait(lambda now: blamed(now, port) == cause, PATIENCE)
            assert found is not None, session.latest and verdicts(session.latest, port)
            verdict = verdicts(found, port)[0]
            assert any("</dev/tcp/10.77." in step for step in verdict.next_steps), verdict
    finally:
        for node in (one, two):
            node.sh("iptables -F INPUT")


def test_tcp_that_does_not_get_through(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", cluster.path)
    one, two = cluster.node(1), cluster.node(2)
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": one.address, "MASTER_PORT": "29500"}
    for node in (one, two):
        # Only faster: the kernel waits 0.2 s before it sends anything again, then ever longer.
        node.sh("ip route change 10.77.0.0/16 dev eth0 rto_min 30ms")
    launchers = [SshLauncher(node.name, Login()) for node in cluster.nodes]
    with (
        on_node(cluster, 1, str(SCRIPT), "steps", RANK="0", **told),
        on_node(cluster, 2, str(SCRIPT), "steps", RANK="1", **told),
        Session(Options(hang_after=3.0), diagnose, launchers) as session,
        ExitStack() as undo,
    ):
        # GIVEN a job whose ranks have connected to one another
        assert session.wait(lambda now: makes_steps(now, "29500"), PATIENCE), session.latest
        # WHEN each node sends what is for the other one to nobody
        for node, other in ((one, two), (two, one)):
            nobody = f"{other.address} lladdr 02:00:00:00:00:99 nud permanent"
            undo.callback(node.sh, f"ip neigh del {other.address} dev eth0")
            node.sh(f"ip neigh replace {nobody} dev eth0")
        # THEN the way between them is named, and both ends of it
        found = session.wait(lambda now: causes(now, "29500") == ["tcp-peer-dead"], PATIENCE)
        assert found is not None, session.latest and verdicts(session.latest, "29500")
        verdict = verdicts(found, "29500")[0]
        assert "between node-1 and node-2 does not get through" in verdict.summary
        assert {one.rank for one in verdict.culprits} <= {0, 1}
        assert any("times in a row" in fact.text for fact in verdict.evidence)


def test_a_transport_that_stands_still_though_all_is_acknowledged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something between the nodes goes on taking what is sent, and passes nothing on."""
    monkeypatch.setenv("PATH", cluster.path)
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": cluster.node(1).address, "MASTER_PORT": "29504"}
    told["TORCH_FR_BUFFER_SIZE"] = "200"
    launchers = [SshLauncher(node.name, Login()) for node in cluster.nodes]
    box = (str(SUPPORT / "middlebox.py"), "4000", "/run/stuck")
    rule = f"OUTPUT -p tcp -d 10.77.0.0/16 -m multiport ! --dports 22,{BRIDGED},29504"
    rule += f" -m mark ! --mark {MARK} -j REDIRECT --to-ports 4000"
    with ExitStack() as stack:
        for number, node in enumerate(cluster.nodes, 1):
            stack.enter_context(on_node(cluster, number, *box))
            stack.callback(node.sh, "rm -f /run/stuck; iptables -t nat -F OUTPUT")
            node.sh(f"iptables -t nat -A {rule}")
            ready = "until (: < /dev/tcp/127.0.0.1/4000) 2>/dev/null; do sleep 0.1; done"
            node.sh(f"timeout 180 bash -c '{ready}'")
        # GIVEN a job that makes steps, whose recorders can be read
        for number, rank in ((1, "0"), (2, "1")):
            argv = (str(SCRIPT), "served", "/run")
            stack.enter_context(on_node(cluster, number, *argv, RANK=rank, **told))
        session = stack.enter_context(Session(Options(hang_after=3.0), diagnose, launchers))
        ready = session.wait(lambda now: makes_steps(now, "29504"), PATIENCE)
        assert ready, session.latest
        # WHEN what is between them is stuck
        for node in cluster.nodes:
            node.sh("touch /run/stuck")
        # THEN all have joined one operation, nobody is blamed, and it is said what it is not
        known = {"rank-exited", "mismatched-collective", "tcp-peer-dead", "node-unreachable"}

        def told_apart(now: Update) -> bool:
            job = of(now, "29504")
            diagnosis = now.diagnoses[job.key] if job is not None else None
            if diagnosis is None or causes(now, "29504") != ["all-joined-transport"]:
                return False
            out = {cause for one in diagnosis.ruled_out for cause in one.causes}
            nobody = (diagnosis.state, diagnosis.verdicts[0].culprits) == ("hung", ())
            return nobody and known <= out

        assert session.wait(told_apart, PATIENCE), f"{session.latest and session.latest.diagnoses}"


def test_an_interface_that_leads_to_no_other_node(
    cluster: Cluster, bridged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and not that a rank has given up over it."""
    monkeypatch.setenv("PATH", cluster.path)
    launchers = [SshLauncher(node.name, Login()) for node in cluster.nodes]
    with Session(Options(hang_after=2.0, interval=0.5), diagnose, launchers) as session:
        found = session.wait(lambda now: blamed(now, bridged) == "wrong-interface", PATIENCE)
        assert found is not None, session.latest and verdicts(session.latest, bridged)
        verdict = verdicts(found, bridged)[0]
        assert "GLOO_SOCKET_IFNAME is docker0" in verdict.summary
