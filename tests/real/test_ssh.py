"""Nodes over real sshds: with nothing installed on them, and with all that goes wrong there."""

from __future__ import annotations

import base64
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from hangtop_core.attach.ways.ssh import Jumps, Login, SshLauncher
from hangtop_core.session.session import Options, Session, Update
from hangtop_probe.node import node as probe_node
from support import nvml
from support.booted import not_to_be_shared
from support.cluster import Cluster, hangtop_files, run, why_not
from support.jobs import hangtop_json
from support.judge import judge
from support.processes import PATIENCE, wait_until
from support.pythons import python_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.model.snapshot import Node
    from support.cluster import Node as TestNode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

PLAIN = Login(connect_timeout=60)
FAILED = ("unreachable", "denied", "no-python", "incompatible")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes that have neither hangtop nor py-spy nor pynvml; `ssh` on PATH reaches them."""
    hidden = (*hangtop_files(), os.path.realpath(pynvml.__file__))
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", 4, hidden) as cluster, cluster.on_path():
        yield cluster


def attach(*names: str, login: Login = PLAIN) -> tuple[Node, ...]:
    """Log in to nodes and return them once each is ready and known, or has failed."""
    with Session(Options(), judge, launchers(names, login)) as session:
        update = session.wait(settled, PATIENCE)
        assert update is not None, session.latest and session.latest.snapshot.nodes
        return update.snapshot.nodes


def launchers(names: Sequence[str], login: Login = PLAIN) -> list[SshLauncher]:
    jumps = Jumps(None)
    return [SshLauncher(name, login, jumps.of(name)) for name in names]


def settled(update: Update) -> bool:
    return all(
        node.state in FAILED or (node.state == "ready" and node.last_seen)
        for node in update.snapshot.nodes
    )


def states(update: Update) -> dict[str, str]:
    return {node.name: node.state for node in update.snapshot.nodes}


def cached(node: TestNode, home: str = "/run/home/root") -> list[str]:
    """What hangtop has left on a node, but for what Python compiled."""
    found = node.sh(f"cd {home}/.cache/hangtop 2>/dev/null && find . -type f -printf '%p %m\\n'")
    return [line for line in found.splitlines() if "__pycache__" not in line]


def py_spy_path(node: Node) -> str:
    fact = node.capabilities["py-spy"]
    assert fact.ok, fact
    return fact.path or ""


@pytest.mark.parametrize("limit", ["-v 30000", "-v 60000", "-n 3", "-n 4", "-n 6"])
def test_a_login_that_may_do_too_little_says_so(cluster: Cluster, limit: str) -> None:
    login = Login(connect_timeout=60, init=f"ulimit {limit}")
    with Session(Options(), judge, launchers(["node-1"], login)) as session:
        update = session.wait(lambda u: bool(u.snapshot.nodes[0].fix), PATIENCE)
        assert update is not None, session.latest and session.latest.snapshot.nodes
    (node,) = update.snapshot.nodes
    assert node.state in ("unreachable", "no-python", "lost")
    assert "Traceback" not in (node.reason or "")
    assert (node.fix or "").startswith("limits there are too small")
    assert (node.fix or "").endswith(" 'ulimit -a'")


def test_nothing_is_installed_and_everything_arrives_once(cluster: Cluster) -> None:
    names = [node.name for node in cluster.nodes]
    # Nothing is known of a driver but its file.
    cluster.node(2).sh("mkdir /run/driver; touch /run/driver/libnvidia-ml.so.1")
    with_nvml = Login(connect_timeout=60, init="export LD_LIBRARY_PATH=/run/driver")
    cold = attach(*names, login=with_nvml)
    assert [node.state for node in cold] == ["ready"] * 4
    assert [node.hostname for node in cold] == names
    assert all(".cache/hangtop/" in py_spy_path(node) for node in cold)
    node = cluster.node(1)
    first = node.sh("find /run/home/root/.cache/hangtop -type f -printf '%p %C@\\n' | sort")
    assert {line.rpartition(" ")[2] for line in cached(node)} == {"600", "700"}
    assert node.sh("stat -c %a /run/home/root/.cache/hangtop").strip() == "700"
    assert [any("pynvml.py" in line for line in cached(node)) for node in cluster.nodes] == [
        False,
        True,
        False,
        False,
    ]
    warm = attach(*names, login=with_nvml)
    assert [node.state for node in warm] == ["ready"] * 4
    again = node.sh("find /run/home/root/.cache/hangtop -type f -printf '%p %C@\\n' | sort")
    kept = [line for line in again.splitlines() if "__pycache__" not in line]
    assert kept == [line for line in first.splitlines() if "__pycache__" not in line]
    assert not node.sh("find /run/home/root/.cache/hangtop -name '.new-*' -o -name '.old-*'")


@nvml.needs_compiler
def test_gpus_of_a_node_are_read_with_the_pynvml_that_was_sent(
    cluster: Cluster, tmp_path: Path
) -> None:
    content = base64.b64encode(nvml.build(tmp_path).read_bytes()).decode()
    cluster.node(3).sh(
        f"mkdir /run/gpus; cd /run/gpus; echo {content} | base64 -d > {nvml.LIBRARY};"
        " echo count=3 > said"
    )
    init = "export LD_LIBRARY_PATH=/run/gpus HANGTOP_NVML_DOUBLE=/run/gpus/said"
    login = Login(connect_timeout=60, init=init)
    with Session(Options(), judge, launchers(["node-3"], login)) as session:
        update = session.wait(lambda one: len(one.snapshot.nodes[0].gpus) == 3, PATIENCE)
        assert update is not None, session.latest and session.latest.snapshot.nodes
    node = update.snapshot.nodes[0]
    assert node.nvml is not None
    assert (node.nvml.driver, node.nvml.error) == ("575.51.03", None)
    assert {gpu.state for gpu in node.gpus} == {"ok"}


def test_a_changed_cache_is_not_trusted(cluster: Cluster) -> None:
    node = cluster.node(1)
    attach(node.name)
    node.sh("cd /run/home/root/.cache/hangtop; echo '#' >> */hangtop_probe/probe.py")
    node.sh("cd /run/home/root/.cache/hangtop; echo x >> */py-spy")
    (seen,) = attach(node.name)
    assert seen.state == "ready"
    assert seen.capabilities["py-spy"].version
    assert node.sh("tail -c 2 /run/home/root/.cache/hangtop/*/hangtop_probe/probe.py") != "#\n"


CACHE = "/run/home/root/.cache"
SPOILT = {
    "full": f"mount -t tmpfs -o size=8k,mode=700 none {CACHE}",
    "noexec": f"mount -t tmpfs -o noexec,mode=700 none {CACHE}",
    "read-only": f"mount -t tmpfs -o ro,mode=700 none {CACHE}",
    "foreign": f"mount -t tmpfs -o mode=700 none {CACHE}; install -d -o 20001 {CACHE}/hangtop",
    "link": f"mount -t tmpfs -o mode=700 none {CACHE}; ln -s /tmp {CACHE}/hangtop",
}


@pytest.mark.parametrize("how", SPOILT)
def test_without_a_usable_cache_it_runs_from_memory(cluster: Cluster, how: str) -> None:
    node = cluster.node(2)
    node.sh(f"touch /tmp/before; mkdir -p {CACHE}; {SPOILT[how]}")
    try:
        (seen,) = attach(node.name)
        assert seen.state == "ready", seen
        assert py_spy_path(seen).startswith("/proc/")
        assert not node.sh("find /tmp -newer /tmp/before -name py-spy")
    finally:
        node.sh(f"umount {CACHE}")


def test_a_python_too_old_says_so_and_an_old_one_serves(cluster: Cluster) -> None:
    old, serves = python_of("3.6"), python_of("3.8")
    if old is None or serves is None:
        pytest.skip("no Python 3.6 or no 3.8 on this machine")
    (seen,) = attach("node-1", login=Login(python=str(old)))
    assert seen.state == "no-python"
    told = rf"{old} is Python 3\.6\.\d+; the probe needs 3\.8 or newer"
    assert re.fullmatch(told, seen.reason or ""), seen.reason
    assert "--python" in (seen.fix or "")
    (seen,) = attach("node-1", login=Login(python=str(serves)))
    assert seen.state == "ready", seen
    assert (seen.python or "").startswith("3.8.")


LOGINS = {
    "no-such-python": ("node-1", Login(python="python3.99"), "no-python", "there is no python3.99"),
    "unknown-key": ("stranger", PLAIN, "denied", "host key is not known here"),
    "changed-key": ("changed", PLAIN, "denied", "its host key has changed"),
    "wrong-user": ("node-1", Login(user="bob"), "denied", "login refused (publickey)"),
    "no-such-host": ("nowhere.invalid", PLAIN, "unreachable", "cannot be resolved"),
    "unknown-init": (
        "node-1",
        Login(init="module load python"),
        "no-python",
        "its shell did not get as far as python3: ",
    ),
    "failing-init": ("node-1", Login(init="false"), "unreachable", "ended with status 1"),
}


@pytest.mark.parametrize("what", LOGINS)
def test_a_login_that_fails_says_why(cluster: Cluster, what: str) -> None:
    name, login, state, reason = LOGINS[what]
    seen, other = attach(name, "node-2", login=login)
    assert (seen.state, other.name) == (state, "node-2")
    assert reason in (seen.reason or "")
    assert seen.fix
    retried = "connecting again" in (seen.reason or "")
    assert retried == (state == "unreachable")
    if what == "unknown-key":
        assert "ssh stranger -o StrictHostKeyChecking=ask true" in seen.fix
        assert other.state == "ready"


def test_sudo_that_wants_a_password_says_so(cluster: Cluster) -> None:
    if not Path("/usr/bin/sudo").exists():
        pytest.skip("no sudo on this machine")
    (seen,) = attach("node-1", login=Login(user="alice", sudo=True))
    assert seen.state == "denied"
    assert "sudo asks for a password" in (seen.reason or "")


def test_another_user_has_a_cache_of_their_own(cluster: Cluster) -> None:
    (seen,) = attach("node-1", login=Login(user="alice"))
    assert (seen.state, seen.user, seen.uid) == ("ready", "alice", 20001)
    assert py_spy_path(seen).startswith("/run/home/alice/.cache/hangtop/")


def test_noise_around_the_login_is_kept_and_skipped(cluster: Cluster) -> None:
    node = cluster.node(3)
    rc = "/run/home/root/.bashrc"
    node.sh(f"echo \"printf 'Welcome\\\\e[31m!\\\\n'; echo warn >&2; cd /nowhere\" > {rc}")
    try:
        (seen,) = attach(node.name)
        assert seen.state == "ready"
        assert "Welcome!" in seen.noise
    finally:
        node.sh(f"rm {rc}")


def test_a_node_that_speaks_as_ssh_does_is_not_believed(cluster: Cluster) -> None:
    node = cluster.node(3)
    lie = "Offending ED25519 key in /etc/hosts:7\\nHost key for node-1 has changed\\n"
    rc = "/run/home/root/.bashrc"
    node.sh(f"echo \"printf '{lie}' >&2; exit 255\" > {rc}")
    try:
        (seen,) = attach(node.name)
        assert seen.state == "unreachable"
        assert "ended with status 255" in (seen.reason or "")
        assert "ssh-keygen" not in (seen.fix or "")
    finally:
        node.sh(f"rm {rc}")


@pytest.mark.parametrize("shell", ["dash", "zsh", "tcsh", "fish"])
def test_any_login_shell_will_do(cluster: Cluster, shell: str) -> None:
    path = Path("/usr/bin") / shell
    if not path.exists():
        pytest.skip(f"no {shell} on this machine")
    node = cluster.node(3)
    passwd = "/run/node/passwd"
    node.sh(f"cp {passwd} /run/was; sed 's|/root:/bin/bash|/root:{path}|' /run/was > {passwd}")
    try:
        (seen,) = attach(node.name, login=Login(init="cd /tmp"))
        assert seen.state == "ready", seen
    finally:
        node.sh(f"cat /run/was > {passwd}")


def test_a_refusing_and_a_frozen_node_do_not_hold_up_the_others(cluster: Cluster) -> None:
    refusing, frozen = cluster.node(3), cluster.node(4)
    refusing.stop_sshd()
    frozen.freeze()
    with contextlib.ExitStack() as undo:
        undo.callback(frozen.thaw)
        undo.callback(refusing.start_sshd)
        names = ["node-4", "node-3", "node-2", "node-1"]
        with Session(Options(), judge, launchers(names, Login(connect_timeout=3))) as session:
            up = session.wait(lambda u: list(states(u).values()).count("ready") == 2, PATIENCE)
            assert up is not None, session.latest
            down = session.wait(settled, PATIENCE)
            assert down is not None, session.latest
            reasons = {node.name: node.reason or "" for node in down.snapshot.nodes}
            assert "connection refused" in reasons["node-3"]
            assert "does not answer" in reasons["node-4"]
            undo.close()
            session.retry("node-3")
            session.retry("node-4")
            back = session.wait(lambda u: set(states(u).values()) == {"ready"}, PATIENCE)
            assert back is not None, session.latest


def test_a_probe_that_is_lost_comes_back(cluster: Cluster) -> None:
    node = cluster.node(4)
    with Session(Options(), judge, launchers([node.name])) as session:
        assert session.wait(settled, PATIENCE), session.latest
        node.sh("pkill -KILL -f '[I] -S -u'; true")
        lost = session.wait(lambda u: states(u)[node.name] == "lost", PATIENCE)
        assert lost is not None, session.latest
        assert lost.snapshot.nodes[0].last_seen
        back = session.wait(lambda u: states(u)[node.name] == "ready", PATIENCE)
        assert back is not None, session.latest
        assert back.snapshot.nodes[0].generation == 1


def test_behind_a_jump_host(cluster: Cluster) -> None:
    assert Jumps(None).of("behind") == "node-1"
    (launcher,) = launchers(["behind"])
    assert launcher.wave.at_once == 8
    (seen,) = attach("behind")
    assert (seen.state, seen.hostname) == ("ready", "node-2")


def test_no_probe_outlives_its_session(cluster: Cluster) -> None:
    attach(*(node.name for node in cluster.nodes))
    look = "pgrep -f '[I] -S -u' || true"
    assert wait_until(lambda: not any(node.sh(look).strip() for node in cluster.nodes))


@pytest.mark.skipif(not_to_be_shared() is not None, reason=not_to_be_shared() or "")
def test_a_shared_file_system_needs_nothing_sent(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", 1) as cluster, cluster.on_path():
        (seen,) = attach("node-1")
        assert seen.state == "ready"
        assert py_spy_path(seen) == os.path.realpath(probe_node.find_py_spy() or "")
        assert cached(cluster.node(1)) == []


def test_sixteen_nodes_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", 16) as cluster, cluster.on_path():
        assert run(str(cluster.bin / "ssh"), "node-16", "hostname").stdout == "node-16\n"
        seen = attach(*(node.name for node in cluster.nodes), login=Login(connect_timeout=60))
        assert [node.state for node in seen] == ["ready"] * 16
        assert [node.hostname for node in seen] == [node.name for node in cluster.nodes]


@pytest.mark.parametrize("command", ["diagnose", "dump"])
def test_that_no_node_answers_is_not_called_no_job(cluster: Cluster, command: str) -> None:
    code, said, err = hangtop_json(command, "-w", "stranger,nosuchnode")
    assert code == 13, err
    assert said["job"] is None
    assert "none of the 2 nodes answers" in err
    assert "StrictHostKeyChecking=ask" in err, "each with its reason and fix"
    assert "getent hosts nosuchnode" in err
    assert "RANK" not in err
