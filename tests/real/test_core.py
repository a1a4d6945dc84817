"""Cores that real processes leave: found, explained, their stacks shown; and of live ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.cores import find, native, python
from hangtop_core.cores.packed import whole as unpacked
from hangtop_core.cores.read import read as read_core
from hangtop_core.model.node.core_pattern import understand
from hangtop_probe.wire.tools import Tools
from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
LIMITED = ["sh", "-c", 'ulimit -c unlimited && exec "$@"', "sh"]
PATTERN = find.read_pattern()
PLAIN = PATTERN is not None and bool(PATTERN) and not PATTERN.startswith(("|", "/"))
WRITES_HERE = pytest.mark.skipif(
    not PLAIN, reason=f"this machine writes cores elsewhere: core_pattern is {PATTERN}"
)
HAS_GDB = pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")
HOWS = (
    "watchdog",
    "heartbeat-monitor",
    "out-of-memory",
    "assertion",
    "stack-overflow",
)


def read(*arguments: str) -> dict[str, Any]:
    done = run_hangtop("core", "--json", *arguments)
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout), code=done.returncode, stderr=done.stderr)


def core_in(directory: Path) -> Path:
    """The one core that lies there."""
    assert PATTERN is not None
    (found,) = find.present(understand(PATTERN), [str(directory)])
    return Path(found)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    target = tmp_path_factory.mktemp("program") / "crash"
    source = SUPPORT / "cores/crash.cpp"
    subprocess.run(["g++", "-O0", "-pthread", "-o", target, source], check=True)
    return target


def crash(program: Path, directory: Path, *how: str) -> Path:
    directory.mkdir(exist_ok=True)
    environment = {**os.environ, "RANK": "3", "WORLD_SIZE": "8", "HOSTNAME": "gpu07"}
    subprocess.run(
        [*LIMITED, str(program), *how],
        cwd=directory,
        env=environment,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return core_in(directory)


@WRITES_HERE
@HAS_GDB
def test_what_ended_a_process_is_explained(program: Path, tmp_path: Path) -> None:
    cores = {how: crash(program, tmp_path / how, how) for how in HOWS}
    shm = f"/dev/shm/hangtop-test-{os.getpid()}"
    cores["shared-memory-full"] = crash(program, tmp_path / "bus", "shared-memory-full", shm)
    found = read(*map(str, cores.values()))
    assert found["code"] == 0
    for (how, path), core in zip(cores.items(), found["cores"], strict=True):
        assert core["path"] == str(path)
        codes = [one["code"] for one in core["explanations"]]
        assert codes[0] == how, (how, core["explanations"], core["threads"])
        assert (core["rank"], core["world_size"], core["node"]) == (3, 8, "gpu07")
        assert core["threads"][0]["got_signal"]
        assert core["threads"][0]["frames"][0]["native"]
    by_how = dict(zip(cores, found["cores"], strict=True))
    assert "on purpose" in by_how["watchdog"]["explanations"][0]["text"]
    assert "seven" in by_how["assertion"]["explanations"][0]["text"]
    assert shm in by_how["shared-memory-full"]["explanations"][0]["text"]


@WRITES_HERE
@HAS_GDB
def test_who_sent_the_signal_is_told(program: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*LIMITED, str(program), "wait"], cwd=tmp_path, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGABRT)
    left = str(core_in(tmp_path))
    (core,) = read(left)["cores"]
    assert core["explanations"][0]["code"] == "sent-by-process"
    assert f"process {os.getpid()} " in core["explanations"][0]["text"]
    assert core["problems"] == []

    stripped = tmp_path / "stripped"
    shutil.copy(program, stripped)
    subprocess.run(["strip", stripped], check=True)
    (core,) = read(left, str(stripped), "--no-native")["cores"]
    assert core["problems"] == [], "it is what crashed, without its symbols"
    (core,) = read(left, shutil.which("sh") or "sh", "--no-native")["cores"]
    assert f"is not what crashed, which was {program}" in core["problems"][0]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two ranks of a real job that have left their cores."""
    pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("crashed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    job = [f"--master-port={free_port()}", str(SUPPORT / "cores/crash_job.py"), str(directory)]
    output = directory / "output.txt"
    with Started(*LIMITED, *torchrun, *job, output=output) as started:
        assert wait_until(lambda: started.process.poll() is not None), output.read_text()
    yield directory
    for path in directory.glob("rank*/core*"):
        path.unlink()


@WRITES_HERE
def test_cores_of_ranks_are_merged(crashed: Path) -> None:
    pytest.importorskip("pystack")
    for rank in (0, 1):
        core_in(crashed / f"rank{rank}")
    done = run_hangtop("core", "--no-native", str(crashed))
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout
    assert "2 ranks of 2 gave a stack, 2 classes" in done.stdout
    frames = [line.split("%", 1)[1].split(maxsplit=1)[1] for line in tree(done.stdout)]
    assert [re.sub(r":\d+\)", ")", frame) for frame in frames] == [
        "<module> (crash_job.py)  [0-1]",
        "├ train (crash_job.py)  [0]",
        "└ train (crash_job.py)  [1]",
        "string_at (ctypes/__init__.py)",
    ]


def tree(told: str) -> list[str]:
    """The lines of merged stacks."""
    return told.partition(" FRAME\n")[2].rstrip().splitlines()


@WRITES_HERE
@HAS_GDB
def test_a_rank_that_crashed(crashed: Path) -> None:
    """Without a name the newest core is taken; a link to its Python is followed."""
    pytest.importorskip("pystack")
    done = subprocess.run(
        [sys.executable, "-m", "hangtop", "core"],
        cwd=crashed / "rank1",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "rank 1 of 2" in text
    assert "SIGSEGV" in text
    assert "null pointer" in text
    first, beside = text.index("<- got the signal"), text.index("rest (crash_job.py")
    frames = ["strlen", "string_at (_ctypes.c", "string_at (", "train (crash_job.py:", "<module>"]
    places = [text.index(name, first) for name in frames]
    assert places == sorted(places)
    assert first < places[-1] < beside


@WRITES_HERE
@HAS_GDB
@pytest.mark.skipif(not shutil.which("gzip"), reason="gzip is not installed")
@pytest.mark.parametrize("by", ["pystack", "py-spy"])
def test_a_packed_core_is_read_as_what_was_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By all who read cores: the copy has no name of its own for them."""
    pytest.importorskip("pystack")
    if by == "py-spy":
        monkeypatch.setattr(python, "_CODE", "print('{{}}')")
    python_that_crashes = [*LIMITED, sys.executable, "-c", "import ctypes; ctypes.string_at(0)"]
    subprocess.run(python_that_crashes, cwd=tmp_path, check=False)
    whole, packed = core_in(tmp_path), tmp_path / "core.gz"
    with packed.open("wb") as file:
        subprocess.run(["gzip", "-1c", str(whole)], stdout=file, check=True)
    tools = Tools()
    before, after = (read_core(str(path), tools, with_native=False) for path in (whole, packed))
    assert (after.read_by, after.path) == (by, str(packed))
    assert (after.threads, after.problems) == (before.threads, before.problems)
    with unpacked(str(packed), tools) as copy:
        by_gdb = native.read(tools, copy, after.executable or "")
    assert (by_gdb.problem, set(by_gdb.threads)) == (None, {one.tid for one in after.threads})


@WRITES_HERE
def test_a_core_that_was_cut(crashed: Path, tmp_path: Path) -> None:
    cut = tmp_path / "core.cut"
    with core_in(crashed / "rank1").open("rb") as whole:
        cut.write_bytes(whole.read(40 << 20))
    found = read("--no-native", str(cut))
    (core,) = found["cores"]
    assert (core["signal"], found["code"]) == (signal.SIGSEGV, 13)
    assert "40.0 MiB of" in core["problems"][0]
    assert any("pystack" in one for one in core["problems"])
