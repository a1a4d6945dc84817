"""Real processes that rest, run and rest again; what was read of them is used only meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.node import node, permission
from hangtop_probe.proc import procfs, rest
from hangtop_probe.stacks.stacks import Sampler
from hangtop_probe.table.table import Table
from hangtop_probe.wire.requests import Message, Request
from hangtop_probe.wire.tools import Tools
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAITS = """
import sys
def first(): return sys.stdin.readline()
def second(): return sys.stdin.readline()
print(flush=True); first(); second()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits in `first`, and after a line of input in `second`."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=pipe, stdout=pipe) as process:
        assert process.stdout
        process.stdout.readline()
        assert wait_until(lambda: rest.mark(process.pid) is not None)
        yield process
        process.kill()


def go_on(process: subprocess.Popen[bytes]) -> None:
    """Make it run, and wait until it rests again."""
    before = rest.mark(process.pid)
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert wait_until(lambda: rest.mark(process.pid) not in (None, before))


def test_what_rests_keeps_its_mark_and_what_ran_has_another(child: subprocess.Popen[bytes]) -> None:
    before = rest.mark(child.pid)
    assert before is not None
    assert rest.mark(child.pid) == before
    kept: rest.Rested[str] = rest.Rested()
    kept.keep((child.pid, 1), before, before, "first")
    assert kept.find((child.pid, 1), rest.mark(child.pid)) == "first"
    assert kept.find((child.pid, 2), before) is None
    go_on(child)
    assert kept.find((child.pid, 1), rest.mark(child.pid)) is None


def test_what_runs_or_is_gone_has_no_mark(child: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        assert wait_until(lambda: (s := procfs.read_stat(busy.pid)) and s.state == "R")
        assert wait_until(lambda: rest.mark(busy.pid) is None)
        busy.kill()
    assert rest.mark(busy.pid) is None
    kept: rest.Rested[str] = rest.Rested()
    kept.keep((1, 1), None, None, "ran")
    assert kept.find((1, 1), None) is None
    kept.keep((1, 1), ((1, b"1"),), ((1, b"2"),), "ran meanwhile")
    assert kept.find((1, 1), ((1, b"1"),)) is None
    assert kept.find((1, 1), ((1, b"2"),)) is None


def test_a_kernel_that_does_not_count_gives_no_mark(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = procfs.read

    def uncounted(path: str, limit: int = 1 << 20) -> bytes | None:
        return b"0 0 0\n" if path.endswith("/schedstat") else read(path, limit)

    monkeypatch.setattr(procfs, "read", uncounted)
    assert rest.mark(child.pid) is None


def test_a_new_edition_tells_all_stacks_again(child: subprocess.Popen[bytes]) -> None:
    sampler = Sampler(Tools(), Table(permission.rights()))

    def told(edition: int) -> list[str]:
        said: list[Message] = []
        request = Request(
            {"id": 1, "op": "stacks", "pids": [child.pid], "edition": edition},
            lambda message, urgent: said.append(message),
        )
        sampler.handle(request)
        [piece] = said
        assert piece["data"]["threads"]
        return list(piece["data"]["stacks"])

    first = told(0)
    assert len(first) == 1
    assert told(0) == []
    assert told(1) == first
    assert told(1) == []


def test_py_spy_runs_again_only_after_the_process_ran(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, runs = tmp_path / "py-spy", tmp_path / "runs"
    counting.write_text(f'#!/bin/sh\necho >> {runs}\nexec {node.find_py_spy()} "$@"\n')
    counting.chmod(0o755)
    monkeypatch.setenv("HANGTOP_PY_SPY", str(counting))
    sampler = Sampler(Tools(), Table(permission.rights()))

    def innermost(mode: str = "nonblocking", wants: bool = False) -> tuple[str, int]:
        piece, result = sampler.take(child.pid, mode, wants, 10.0, threading.Event())
        assert result.failure is None, piece
        rows = result.stacks[piece["threads"][0]["stack"]]
        return next(row[0] for row in rows if not row[1].startswith("<frozen")), len(
            runs.read_text()
        )

    assert innermost() == ("first", 1)
    assert innermost() == ("first", 1)
    assert innermost(wants=True) == ("first", 2)
    assert innermost() == ("first", 2)
    assert innermost("blocking") == ("first", 3)
    go_on(child)
    assert innermost()[0] == "second"


def test_a_pid_that_another_process_gets_meanwhile_has_no_stack(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, starts = Table(permission.rights()), iter((1, 2))
    monkeypatch.setattr(table, "identity", lambda pid: (pid, next(starts)))
    taken = Sampler(Tools(), table).take(child.pid, "nonblocking", False, 10.0, threading.Event())
    piece, result = taken
    assert (result.failure or {}).get("kind") == "gone"
    assert not result.stacks
    assert "threads" not in piece


def test_no_answer_refers_to_a_stack_that_another_one_has_yet_to_tell(
    child: subprocess.Popen[bytes],
) -> None:
    sampler = Sampler(Tools(), Table(permission.rights()))
    said: list[Message] = []
    telling, go_on_telling = threading.Event(), threading.Event()

    def slowly(message: Message, urgent: bool) -> None:
        telling.set()
        assert go_on_telling.wait(PATIENCE)
        said.append(message)

    def ask(number: int, send: Callable[[Message, bool], None]) -> threading.Thread:
        words = {"id": number, "op": "stacks", "pids": [child.pid], "edition": 0}
        thread = threading.Thread(target=sampler.handle, args=(Request(words, send),))
        thread.start()
        return thread

    first = ask(1, slowly)
    assert telling.wait(PATIENCE)
    second = ask(2, lambda message, urgent: said.append(message))
    second.join(0.5)  # as long as it has to overtake the first one, if it does
    go_on_telling.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert [(one["id"], len(one["data"]["stacks"])) for one in said] == [(1, 1), (2, 0)]
