"""A gdb that would break ranks is found out on a process of the probe's own, and kept from them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.analysis.flight.ways import explain
from hangtop_core.model.recorder.recorder import RecorderWay
from hangtop_probe.node import permission
from hangtop_probe.ranks import rows
from hangtop_probe.recorder import gdbcalls
from hangtop_probe.recorder.rankrecorder import Reading
from hangtop_probe.recorder.recorderways import Facts
from hangtop_probe.stacks import stacks
from hangtop_probe.wire.tools import Tools
from support.processes import state, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeGdb = Callable[[str], Path]

LOGS = """#!/bin/sh
for word; do [ "$before" = -p ] && pid=$word; before=$word; done
echo $pid >> "${0%/*}/touched"
"""
WORKS = "echo '$1 = 0'"
XSTATE = 'echo "Couldn\'t write extended state status: Bad address." >&2'
DENIED = """echo "ptrace: Operation not permitted." >&2
echo 'No symbol table is loaded.  Use the "file" command.' >&2; exit 1"""
HANGS = "exec sleep 1000"


@pytest.fixture
def make_gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeGdb:
    """Puts a gdb on PATH that notes which processes it is led to, and does what it is told."""

    def make(does: str) -> Path:
        gdb = tmp_path / "gdb"
        gdb.write_text(f"{LOGS}{does}\n")
        gdb.chmod(0o700)
        return gdb

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return make


@pytest.fixture
def tools() -> Iterator[Tools]:
    tools = Tools()
    yield tools
    assert tools.pids() == set(), "nothing is left behind"
    tools.close()


@pytest.fixture
def rank() -> Iterator[int]:
    argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(argv) as process:
        assert wait_until(lambda: state(process.pid) == "S")
        yield process.pid
        alive = process.poll() is None
        process.kill()
    assert alive, "gdb has not touched it"


def touched(gdb: Path) -> list[int]:
    """The processes that gdb was led to."""
    return [int(line) for line in gdb.with_name("touched").read_text().split()]


def read(rank: int, tools: Tools) -> dict[str, Any]:
    """How the way through gdb stands once the recorder of a rank was read."""
    facts = Facts(rank, 0, os.getuid(), {}, frozenset(), loaded=True)
    reading = Reading(rank, 0, {"inject": True}, tools, threading.Event())
    assert reading._injected(facts, permission.rights()) is None
    [way] = reading.ways
    return way


@pytest.mark.parametrize(
    ("does", "code", "told"),
    [
        (f"{XSTATE}; kill -SEGV $pid; exit 1", "harmful",
         "own was killed by SIGSEGV, and gdb said: Couldn't write extended state status: Bad add"),
        (f"{WORKS}; kill -SEGV $pid", "harmful", "own was killed by SIGSEGV"),
        (f"{WORKS}; kill -INT $pid", "harmful", "own died of KeyboardInterrupt"),
        (f"{WORKS}; kill -STOP $pid", "harmful", "own did not go on within 0.5 s"),
        (XSTATE, "no-calls", "hangtop's own: Couldn't write extended state status: Bad address."),
        ("exit 1", "no-calls", "hangtop's own: nothing"),
        (HANGS, "untried", "gdb gave no answer in 0.5 s"),
        (DENIED, "no-attach", "hangtop's own: ptrace: Operation not permitted."),
    ],
)  # fmt: skip
def test_a_gdb_that_fails_on_a_process_of_ours_comes_to_no_rank(
    make_gdb: MakeGdb, tools: Tools, rank: int, monkeypatch: pytest.MonkeyPatch,
    does: str, code: str, told: str,
) -> None:  # fmt: skip
    limit = 0.5 if does == HANGS else 60.0
    monkeypatch.setattr(gdbcalls, "SECONDS", limit)
    monkeypatch.setattr(gdbcalls, "_GO_ON_S", 0.5 if "STOP" in does else 60.0)
    gdb = make_gdb(does)
    way = read(rank, tools)
    assert way["code"] == code
    why, fix = explain(RecorderWay(way["way"], way["code"], way["args"]))
    assert told in why
    assert fix
    [tried] = touched(gdb)
    assert tried != rank
    assert state(tried) == "X", "the process it was tried on has ended"


def test_a_gdb_that_does_no_harm_comes_to_the_rank(
    make_gdb: MakeGdb, tools: Tools, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gdb = make_gdb(WORKS)
    monkeypatch.setattr(stacks, "sample", lambda *_: rows.Sample([], {}))
    assert read(rank, tools)["code"] == "nothing-written"
    assert touched(gdb)[1:] == [rank]


def test_ranks_that_are_asked_at_the_same_time_share_one_trial(
    make_gdb: MakeGdb, tools: Tools
) -> None:
    gdb = make_gdb(f"sleep 0.5; {DENIED}")
    found: list[object] = []

    def ask() -> None:
        told = gdbcalls.tried(str(gdb), tools, threading.Event())
        found.append(told and told.message["code"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask()
    assert found == ["no-attach"] * 5
    assert len(touched(gdb)) == 1
    gdb.unlink()
    make_gdb(WORKS)  # another one was installed
    assert gdbcalls.tried(str(gdb), tools, threading.Event()) is None


def test_a_trial_that_was_given_up_is_made_again(make_gdb: MakeGdb, tools: Tools) -> None:
    gdb = make_gdb(f"[ -e ${{0%/*}}/again ] || {HANGS}\n{WORKS}")
    given_up = threading.Event()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(gdbcalls.tried(str(gdb), tools, given_up)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert wait_until(gdb.with_name("touched").exists)
    given_up.set()
    for thread in threads:
        thread.join()
    assert [one.message["args"]["why"] for one in found] == ["given up"] * 2
    gdb.with_name("again").touch()
    assert gdbcalls.tried(str(gdb), tools, threading.Event()) is None


def test_a_gdb_that_cannot_be_started_is_said(tmp_path: Path, tools: Tools) -> None:
    told = gdbcalls.attempt(str(tmp_path / "gdb"), tools, threading.Event())
    assert told is not None
    assert told.message["code"] in ("untried", "no-calls")  # without and with setpriv
