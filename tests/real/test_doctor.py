"""`hangtop doctor` on nodes that differ: each has its ladder, and equal ones are told together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster import Cluster, hangtop_files, why_not
from support.documents import misfits
from support.processes import PATIENCE, wait_until
from support.pythons import python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cluster import Node as TestNode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

CACHE = "/run/home/root/.cache"
OLD_PYTHON = python_of("3.8")
ALL = "node-[1-7]"
PATIENT = ("--connect-timeout", str(PATIENCE))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """1 and 2 as nodes are, 3 without Python, 4 with a noexec cache, 5 refuses, 6 is frozen,
    and the cache of 7 has room for the probe and not for py-spy."""
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", 7, hangtop_files()) as cluster:
        cluster.node(3).sh("echo PATH=/run > /run/home/root/.bashrc")
        for number, option in ((4, "noexec"), (7, "size=3m")):
            mount = f"mount -t tmpfs -o {option},mode=700 none {CACHE}"
            cluster.node(number).sh(f"mkdir {CACHE}; {mount}")
        cluster.node(5).stop_sshd()
        cluster.node(6).freeze()
        yield cluster
        cluster.node(6).thaw()


def doctor(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """Run the command as on a head node: in the cluster's network, where its ports are."""
    argv = cluster.at_head(sys.executable, "-m", "hangtop", "doctor", *arguments)
    path = cluster.path
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def ladders(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run it with --json; return the exit status and, by node, the rungs by name."""
    code, out = doctor(cluster, *arguments, "--json")
    said = json.loads(out)
    assert said["schema"] == "hangtop.doctor/1"
    assert misfits(said) == []
    assert said["exit_status"] == code
    assert said["ok"] == (code == 0)
    return code, {
        node["node"]: {rung["name"]: rung for rung in node["rungs"]} for node in said["nodes"]
    }


def states(rungs: dict[str, Any], state: str) -> list[str]:
    return [name for name, rung in rungs.items() if rung["state"] == state]


def text(rung: dict[str, Any]) -> str:
    return f"{rung['text']} ({rung['detail']}) {rung['fix']}"


@pytest.fixture(scope="module")
def found(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The ladders of all nodes, which saw hangtop for the first time.

    For the one that is frozen nobody waits long, and for the others as long as it takes them.
    """
    with ThreadPoolExecutor() as both:
        frozen = both.submit(ladders, cluster, "-w", "node-6", "--connect-timeout", "2")
        others = both.submit(ladders, cluster, "-w", ALL, "-x", "node-6", *PATIENT)
        (code, found), (other_code, last) = others.result(), frozen.result()
    assert (code, other_code) == (4, 4)
    assert list(found) == [node.name for node in cluster.nodes if node.name != "node-6"]
    return {**found, **last}


def test_a_plain_node_lacks_nothing(found: dict[str, dict[str, Any]]) -> None:
    for name in ("node-1", "node-2"):
        rungs = found[name]
        assert states(rungs, "missing") == states(rungs, "not-reached") == []
        assert states(rungs, "warning") == []
        assert states(rungs, "not-applicable") == ["nvml", "flight recorder"]
        assert rungs["resolve"]["detail"].startswith("10.77.0.")
        assert "sent just now" in text(rungs["probe"])
        assert "a stack in" in text(rungs["py-spy"])


@pytest.mark.parametrize(
    ("name", "fails", "why"),
    [
        ("node-3", "python", "there is no python3 on it"),
        ("node-5", "reach", "port 22: Connection refused"),
        ("node-6", "login", "takes connections but does not answer"),
    ],
)
def test_a_rung_that_fails_is_named_and_those_above_are_not_reached(
    found: dict[str, dict[str, Any]], name: str, fails: str, why: str
) -> None:
    rungs = found[name]
    assert states(rungs, "missing") == [fails]
    assert why in rungs[fails]["text"]
    assert rungs[fails]["fix"]
    names = list(rungs)
    assert states(rungs, "not-reached") == names[names.index(fails) + 1 :]


@pytest.mark.parametrize(
    ("name", "why"), [("node-4", "is mounted noexec"), ("node-7", "No space left")]
)
def test_a_cache_that_cannot_hold_py_spy_costs_nothing_but_sending_it(
    found: dict[str, dict[str, Any]], name: str, why: str
) -> None:
    rungs = found[name]
    assert states(rungs, "warning") == ["cache"]
    assert why in rungs["cache"]["text"]
    assert "XDG_CACHE_HOME" in rungs["cache"]["fix"]
    assert "cache" in rungs["probe"]["text"]
    assert "sent, in memory" in rungs["py-spy"]["detail"]


def test_equal_nodes_are_told_together_within_80_columns(
    cluster: Cluster, found: dict[str, dict[str, Any]]
) -> None:
    code, out = doctor(cluster, "-w", "node-[1-5],nowhere.invalid", *PATIENT)
    assert code == 4
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "6 nodes: 3 can be observed, 3 cannot be observed at all"
    assert "node-[1-2]: all that matters is there" in lines
    assert "node-5: cannot be observed (reach)" in lines
    assert "nowhere.invalid: cannot be observed (resolve)" in lines
    fourth = out.partition("node-4: all that matters is there\n")[2].partition("\n\n")[0]
    assert fourth.lstrip().startswith("warning  cache")
    assert fourth.endswith("  the rest as on node-[1-2]")


def test_what_refuses_ptrace_is_told_apart(cluster: Cluster) -> None:
    """A seccomp filter, as a container's, refuses the calls themselves; root without
    CAP_SYS_PTRACE may look into nothing that has more rights than it."""
    node = cluster.node(1)
    node.sh("mkdir -p /run/bin")
    filtered = textwrap.dedent(_FILTER)
    node.sh(f"cat > /run/bin/filtered <<'END'\n{filtered}END\nchmod 755 /run/bin/filtered")
    code, found = ladders(cluster, "-w", "node-1", "--python", "/run/bin/filtered")
    rungs = found["node-1"]
    assert code == 0, rungs  # py-spy reads /proc/PID/mem where process_vm_readv fails
    assert states(rungs, "warning") == ["ptrace"]
    assert "a seccomp filter refuses it" in rungs["ptrace"]["text"]
    assert "--cap-add=SYS_PTRACE" in rungs["ptrace"]["fix"]
    assert rungs["py-spy"]["state"] == "ok"
    plain = '#!/bin/sh\nexec setpriv --bounding-set -sys_ptrace /usr/bin/python3 "$@"\n'
    node.sh(f"cat > /run/bin/plain <<'END'\n{plain}END\nchmod 755 /run/bin/plain")
    code, found = ladders(cluster, "-w", "node-1", "--python", "/run/bin/plain")
    rungs = found["node-1"]
    assert code == 0, rungs
    assert "root without CAP_SYS_PTRACE" in text(rungs["ptrace"])
    assert rungs["py-spy"]["state"] == "ok"


# process_vm_readv is 310 and ptrace 101 on x86-64 (asm/unistd_64.h): both fail with EPERM. The
# filter is classic BPF: load the number, compare, return (seccomp(2)).
_FILTER = """\
    #!/usr/bin/python3
    import ctypes, os, struct, sys
    def op(code, k, jt=0, jf=0):
        return struct.pack("HBBI", code, jt, jf, k)
    program = b"".join(
        (op(0x20, 0), op(0x15, 101, 2), op(0x15, 310, 1), op(6, 0x7FFF0000), op(6, 0x00050001))
    )
    class Prog(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Prog(len(program) // 8, program)), 0, 0) == 0
    os.execv("/usr/bin/python3", ["python3", *sys.argv[1:]])
"""


def test_ranks_are_looked_at_by_the_kernel_s_own_check_and_never_touched(
    cluster: Cluster,
) -> None:
    node = cluster.node(2)
    pipe = "/run/fr_0.pipe"
    environment = (
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-2 MASTER_PORT=1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/run/fr_ TORCH_NCCL_TRACE_BUFFER_SIZE=9",
    )
    start = "setsid env {0} python3 -c 'import time; time.sleep(1e6)' </dev/null >/dev/null 2>&1 &"
    node.sh(f"mkfifo {pipe}; {start.format(' '.join(environment))}")
    try:
        code, found = ladders(cluster, "-w", "node-2")
        rungs = found["node-2"]
        assert code == 0, rungs
        assert "1 rank there" in text(rungs["ptrace"])
        assert rungs["flight recorder"]["text"] == "readable by a pipe"
        node.sh(f"rm {pipe}")
        code, found = ladders(cluster, "-w", "node-2")
        rungs = found["node-2"]
        assert code == 0
        # Whether ranks would leave cores depends on how this machine is set up.
        assert set(states(rungs, "warning")) - {"cores"} == {"flight recorder"}
        assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in rungs["flight recorder"]["fix"]
    finally:
        node.sh("pkill -KILL -f '[t]ime.sleep.1e6'")


def test_a_user_without_home_and_sight_is_served_from_memory(cluster: Cluster) -> None:
    node = cluster.node(2)
    node.sh("mv /run/home/alice /run/home/was; mount -o remount,hidepid=2 /proc")
    try:
        code, found = ladders(cluster, "-w", "node-2", "-l", "alice")
    finally:
        node.sh("mv /run/home/was /run/home/alice; mount -o remount,hidepid=0 /proc")
    rungs = found["node-2"]
    assert code == 0, rungs
    assert "no home directory: there is no /run/home/alice" in rungs["cache"]["text"]
    assert "from memory" in rungs["probe"]["text"]
    assert "only those of alice are seen" in rungs["processes"]["text"]
    assert rungs["py-spy"]["state"] == "ok"


@pytest.mark.skipif(OLD_PYTHON is None, reason="no Python 3.8 on this machine")
def test_the_oldest_python_tries_all_of_it(cluster: Cluster) -> None:
    code, found = ladders(cluster, "-w", "node-1", "--python", str(OLD_PYTHON))
    rungs = found["node-1"]
    assert (code, states(rungs, "missing")) == (0, []), rungs
    assert rungs["python"]["text"].startswith("Python 3.8.")


def test_py_spy_needs_no_libc_of_the_node(
    cluster: Cluster, found: dict[str, dict[str, Any]]
) -> None:
    """So a node with musl can run it as well: here below a root with nothing but it and /proc."""
    node = cluster.node(2)
    node.sh(f"mkdir -p /run/bare/proc; cp {CACHE}/hangtop/*/py-spy /run/bare/")
    node.sh("mount --bind /proc /run/bare/proc")
    node.sh("setsid python3 -c 'import time; time.sleep(1e5)' </dev/null >/dev/null 2>&1 &")
    try:
        look = "chroot /run/bare /py-spy dump --nonblocking --pid $(pgrep -f '[t]ime.sleep.1e5')"
        assert wait_until(lambda: "<module> (<string>:1)" in node.sh(f"{look} 2>&1 || true"))
    finally:
        node.sh("pkill -KILL -f '[t]ime.sleep.1e5'; umount /run/bare/proc")


OLD = f"{CACHE}/hangtop/{'a' * 64}"
YOUNG = f"{CACHE}/hangtop/{'b' * 64}"


def fill(node: TestNode) -> None:
    """Leave two other versions, one of them old, and what is not hangtop's."""
    for path in (OLD, YOUNG):
        node.sh(f"mkdir -m 700 {path} {path}/hangtop_probe; echo 1 > {path}/hangtop_probe/x.py")
    node.sh(f"touch -d '8 days ago' {OLD}")
    node.sh(f"cd {CACHE}/hangtop; echo mine > notes.txt; mkdir /run/kept; echo 1 > /run/kept/x.py")
    node.sh(f"cd {CACHE}/hangtop; ln -s /run/kept {'c' * 64}; mkdir {'d' * 64}")
    node.sh(f"cd {CACHE}/hangtop; echo 1 > {'d' * 64}/y.py; ln -s /run/kept {'d' * 64}/link.py")


def test_cleaning_removes_what_is_hangtop_s_and_nothing_else(
    cluster: Cluster, found: dict[str, dict[str, Any]]
) -> None:
    node = cluster.node(1)
    fill(node)
    _, again = ladders(cluster, "-w", "node-1")
    assert "1 old version removed" in again["node-1"]["cache"]["detail"]
    assert "was there" in again["node-1"]["probe"]["detail"]
    assert node.sh(f"ls {OLD} 2>&1 || true").endswith("No such file or directory\n")
    assert node.sh(f"ls {YOUNG}/hangtop_probe") == "x.py\n"
    code, out = doctor(cluster, "-w", "node-[1-2],node-5", "--clean", *PATIENT)
    assert code == 4, out
    lines = out.splitlines()
    # py-spy is 8 MB of it, and what Python compiled comes on top, more where more was asked for.
    removed = dict(re.findall(r"(?m)^(node-\d): removed (\d+)\.\d MiB from ", out))
    assert {node: int(mib) in range(8, 12) for node, mib in removed.items()} == {
        "node-1": True,
        "node-2": True,
    }, out
    assert any(line.startswith("node-5: not reached:") for line in lines), out
    left = sorted(node.sh(f"ls {CACHE}/hangtop").split())
    assert left == ["c" * 64, "d" * 64, "notes.txt"]
    assert node.sh("ls /run/kept") == "x.py\n"
    node.sh(f"rm -r {CACHE}/hangtop/*")
    code, out = doctor(cluster, "-w", "node-[1-2]", "--clean")
    assert (code, out) == (0, "node-[1-2]: nothing to remove\n")
    assert node.sh(f"ls -A {CACHE}") == ""
