"""Whoever is killed, and when: no target stays stopped or traced, no tool and no probe is left."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.errors import RefusedError
from hangtop_core.session.session import Options, Session
from hangtop_probe.node import permission
from support.cores import image
from support.probe_client import ProbeClient
from support.processes import (
    PATIENCE,
    children,
    command_line,
    environment,
    is_alive,
    wait_until,
    with_variable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

TARGET = """
import threading, time
def turn():
    while True: time.sleep(0.005)
for _ in range(4): threading.Thread(target=turn, daemon=True).start()
print(flush=True); turn()
"""
HEAD = """
import sys
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from hangtop_probe.node import permission
pid = int(sys.argv[1])
with Session(Options(pids=(pid,)), diagnose) as session:
    update = session.wait(lambda update: bool(update.snapshot.jobs), 120)
    node = update.snapshot.nodes[0].name
    if sys.argv[2] == "strace":
        asked = [session.strace(node, pid, 30, lambda lines: print("traced", flush=True))]
    else:
        print("asked", flush=True)
        while True:  # until it is killed, however fast this machine is
            asked = [session.sample({node: [pid]}, mode=sys.argv[2]) for _ in range(10)]
            for future in asked: future.result(120)
    for future in asked: future.result(120)
"""
OWN = "HANGTOP_TEST_HARM"


@pytest.fixture
def target() -> Iterator[int]:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}
    with subprocess.Popen(
        [sys.executable, "-c", TARGET],
        stdout=subprocess.PIPE,
        env={**os.environ, **rank, "MASTER_PORT": "1"},
    ) as child:
        assert child.stdout
        child.stdout.readline()
        yield child.pid
        child.kill()


def held(pid: int) -> list[str]:
    """Threads that are stopped or traced."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields["State"][0] in "Tt" or fields["TracerPid"] != "0":
            found.append(f"{task.name} {fields['State']} traced by {fields['TracerPid']}")
    return found


def probe_of(head: int) -> int:
    return next(pid for pid in children(head) if OWN in environment(pid))


@pytest.mark.parametrize("after", [0.0, 0.12, 0.3])
@pytest.mark.parametrize("what", ["strace", "blocking", "native"])
@pytest.mark.parametrize("victim", ["head", "probe and head"])
def test_a_kill_at_any_moment_leaves_the_target_free(
    target: int, victim: str, what: str, after: float
) -> None:
    if what == "strace" and not any(Path(p, "strace").exists() for p in os.get_exec_path()):
        pytest.skip("strace is not installed")
    mark = str(time.monotonic_ns())
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(target), what],
        stdout=subprocess.PIPE,
        env={**os.environ, OWN: mark},
    )
    assert head.stdout
    assert head.stdout.readline()
    time.sleep(after)
    if victim == "probe and head":
        os.kill(probe_of(head.pid), signal.SIGKILL)
    head.kill()
    head.wait()
    head.stdout.close()
    gone = wait_until(lambda: not with_variable(OWN, mark))
    assert gone, with_variable(OWN, mark)
    assert wait_until(lambda: not held(target)), held(target)
    assert is_alive(target)


COUNTS = """
import itertools, os, sys
for number in itertools.count():
    os.pwrite(1, b"%020d" % number, 0)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_probe_that_is_stopped_does_not_hold_what_it_traces(tmp_path: Path) -> None:
    with (tmp_path / "count").open("w+b") as counter:
        target = subprocess.Popen([sys.executable, "-c", COUNTS], stdout=counter)
        client = ProbeClient()

        def count() -> int:
            return int(os.pread(counter.fileno(), 20, 0) or 0)

        try:
            ident = client.send(op="strace", pid=target.pid, seconds=60)
            assert "data" in client.receive(ident)
            os.kill(client.process.pid, signal.SIGSTOP)
            before = count()
            # Each call is a line of some hundred bytes: far more than a pipe would take.
            assert wait_until(lambda: count() > before + 3000), count() - before
            os.kill(client.process.pid, signal.SIGCONT)
            client.send(op="cancel", id=ident)
            while "end" not in (last := client.receive(ident)):
                assert "err" not in last, last
            assert wait_until(lambda: not held(target.pid)), held(target.pid)
        finally:
            client.process.send_signal(signal.SIGCONT)
            client.close()
            target.kill()
            target.wait()


def written_by_gdb(mark: str, folder: Path) -> int:
    """Bytes of what a gdb of ours has open for writing in a folder, with a name or without."""
    size = 0
    for pid in with_variable(OWN, mark):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() != "gdb":
                continue
            for one in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(one).startswith(f"{folder}/"):
                    size += one.stat().st_size
    return size


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.parametrize("victim", ["head", "probe and head"])
def test_a_kill_while_a_core_is_taken_leaves_neither_gdb_nor_a_part_of_it(
    target: int, tmp_path: Path, victim: str
) -> None:
    mark = str(time.monotonic_ns())
    take = ["core", "--take", "--yes", "--pid", str(target), "--to", str(tmp_path)]
    for _ in range(9):
        head = subprocess.Popen(
            [sys.executable, "-m", "hangtop", *take],
            stdout=subprocess.DEVNULL,
            env={**os.environ, OWN: mark},
        )

        def under_way() -> bool:
            return written_by_gdb(mark, tmp_path) > 0

        try:
            assert wait_until(lambda h=head: h.poll() is not None or under_way())
            in_time = head.poll() is None
            if in_time and victim == "probe and head":
                os.kill(probe_of(head.pid), signal.SIGKILL)
        finally:
            head.kill()
            head.wait()
        if in_time:
            break
        for core in tmp_path.iterdir():  # it was there before this test had looked
            core.unlink()
    else:
        pytest.skip("this machine was too busy to tell: no core was seen while it was written")
    assert wait_until(lambda: not with_variable(OWN, mark)), with_variable(OWN, mark)
    assert wait_until(lambda: not held(target)), held(target)
    assert not list(tmp_path.iterdir())
    assert is_alive(target)


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.parametrize("victim", ["head", "probe and head"])
def test_a_gdb_that_hangs_at_a_core_ends_with_who_is_killed(
    target: int, tmp_path: Path, victim: str
) -> None:
    """One that would never end by itself, and holds the rank meanwhile."""
    folder, begun, mark = tmp_path / "cores", tmp_path / "begun", str(time.monotonic_ns())
    folder.mkdir()
    script = tmp_path / "gdb"
    hangs = f"-ex 'shell : >{begun}; exec sleep 600'"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("gdb")} {hangs} "$@"\n')
    take = ["core", "--take", "--yes", "--pid", str(target), "--to", str(folder)]
    script.chmod(0o755)
    head = subprocess.Popen(
        [sys.executable, "-m", "hangtop", *take],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", OWN: mark},
    )
    try:
        assert wait_until(lambda: head.poll() is not None or begun.exists())
        assert head.poll() is None
        assert held(target)
        if victim == "probe and head":
            os.kill(probe_of(head.pid), signal.SIGKILL)
    finally:
        head.kill()
        head.wait()
    freed = wait_until(lambda: not held(target))
    for pid in with_variable(OWN, mark):  # what gdb itself has started
        os.kill(pid, signal.SIGKILL)
    assert freed
    assert is_alive(target)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("tool", ["gzip", "gdb"])
def test_a_kill_while_a_packed_core_is_read_leaves_no_copy_of_it(tmp_path: Path, tool: str) -> None:
    """While gzip unpacks it, or gdb reads the copy; neither comes to its end here."""
    if shutil.which("gzip") is None:
        pytest.skip("gzip is not installed")
    packed, begun = tmp_path / "core.gz", tmp_path / "begun"
    packed.write_bytes(gzip.compress(image.core() + os.urandom(4 << 20), 1))
    programs, copies = tmp_path / "programs", tmp_path / "copies"
    programs.mkdir()
    copies.mkdir()
    real = f'{shutil.which("gzip")} "$@"\n' if tool == "gzip" else ""
    script = programs / tool
    script.write_text(f"#!/bin/sh\n{real}: >'{begun}'\nexec sleep 600\n")
    script.chmod(0o755)
    mark = str(time.monotonic_ns())
    path = f"{programs}:{os.environ['PATH']}"
    head = subprocess.Popen(
        [sys.executable, "-m", "hangtop", "core", str(packed), sys.executable],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PATH": path, "TMPDIR": str(copies), OWN: mark},
    )
    try:
        assert wait_until(lambda: begun.exists() or head.poll() is not None)
        assert head.poll() is None
    finally:
        head.kill()
        head.wait()
    assert wait_until(lambda: not with_variable(OWN, mark)), with_variable(OWN, mark)
    assert not list(copies.iterdir())


def test_a_kill_of_whatever_else_looks_leaves_nothing(target: int, tmp_path: Path) -> None:
    """Of commands that are no different to nodes, all at once, in the middle of their work."""
    mark = str(time.monotonic_ns())
    pid, log = str(target), tmp_path / "train.log"
    log.write_text("step 1\n")
    looking = {
        "capture": ["capture", "--observe", "60", "-o", str(tmp_path / "x.hangtop"), "--pid", pid],
        "watch": ["watch", "--pid", pid],
        "logs": ["logs", "--follow", str(log)],
        "diagnose": ["diagnose", "--observe", "60", "--pid", pid],
    }
    heads = [
        subprocess.Popen(
            [sys.executable, "-m", "hangtop", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, OWN: mark, "OF": name},
        )
        for name, words in looking.items()
    ]
    try:
        for name in looking.keys() - {"logs"}:
            probes = partial(with_variable, "OF", name)
            assert wait_until(lambda: len(probes()) > 1), name  # noqa: B023
    finally:
        for head in heads:
            head.kill()
            head.wait()
    gone = wait_until(lambda: not with_variable(OWN, mark))
    assert gone, [(pid, command_line(pid)) for pid in with_variable(OWN, mark)]
    assert not held(target)
    assert is_alive(target)
    assert not (tmp_path / "x.hangtop").exists(), "half a capture has no name"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_two_hangtops_at_one_process_do_each_other_no_harm(target: int) -> None:
    """The one traces, the other wants to: it is told who does, and everything else works."""
    options = Options(pids=(target,))
    with Session(options, diagnose) as first, Session(options, diagnose) as second:
        update = second.wait(lambda u: bool(u.snapshot.jobs), PATIENCE)
        assert first.wait(lambda u: bool(u.snapshot.jobs), PATIENCE)
        assert update is not None
        name = update.snapshot.nodes[0].name
        begun = threading.Event()
        traces = first.strace(name, target, 60, lambda _: begun.set())
        assert begun.wait(PATIENCE)
        with pytest.raises(RefusedError, match="traced"):
            second.strace(name, target, 60, lambda _: None).result(PATIENCE)
        # Between two of its stops the refusal is the kernel's own, and this is what is told.
        assert "traced by process" in permission.why_denied(target, permission.rights())[0]
        ((*_, sample),) = second.sample({name: [target]}).result(PATIENCE)
        assert sample.failure is None, sample
        assert not traces.done(), "the first goes on"
    assert wait_until(lambda: not held(target)), held(target)
    assert is_alive(target)
