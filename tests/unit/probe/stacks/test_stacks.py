"""What py-spy prints becomes stacks, and source lines are added to them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.attach.wire.messages import StackPiece, decode
from hangtop_probe.node import node, permission
from hangtop_probe.proc import procfs, rest
from hangtop_probe.stacks import sources, stacks, tracing
from hangtop_probe.stacks.tracing import halted, refusal
from hangtop_probe.table.table import Table
from hangtop_probe.wire.tools import Done, Tools
from support.spied import dump, frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hangtop_probe.ranks import rows as stacks_rows

C10D = "/site/torch/distributed/distributed_c10d.py"


def test_a_dump_becomes_rows_and_threads() -> None:
    native = {**frame("read", ""), "module": "/lib/libc.so.6", "short_filename": None}
    result = stacks.parse(dump(native, frame("f", "/a/b.py", 3, x="1")))
    [thread] = result.threads
    assert result.stacks[thread["stack"]] == [
        ["read", "/lib/libc.so.6", "", 1, True, None, None, None],
        ["f", "/a/b.py", "b.py", 3, False, None, None, None],
    ]
    assert (thread["tid"], thread["active"], thread["gil"]) == (7, True, False)
    assert thread["locals"] == [[], [{"name": "x", "value": "1", "argument": True}]]


def test_a_line_that_no_file_has_does_not_spoil_the_sample() -> None:
    result = stacks.parse(dump(frame("f", "/a.py", -2_000_000_000), frame("g", "/a.py", 2**40)))
    [rows] = result.stacks.values()
    assert [row[3] for row in rows] == [0, 2**31 - 1]
    decode({"pid": 7, "at": 1.0, "stacks": result.stacks, "threads": result.threads}, StackPiece)


def test_equal_stacks_have_equal_keys_and_lines_tell_them_apart() -> None:
    first, same, other = (
        stacks.parse(dump(frame("f", "/a.py", line))).threads[0]["stack"] for line in (1, 1, 2)
    )
    assert first == same != other


def test_c_frames_without_a_name_are_equal_wherever_their_library_lies() -> None:
    """py-spy names them by their address, which is another one in every process."""
    first, same = (
        stacks.parse(dump({**frame(name, "libc.so.6", 0), "module": "/lib/libc.so.6"}))
        for name in ("0x7fa6ee04524a", "0x7f9b7624524a")
    )
    assert first.stacks == same.stacks
    assert next(iter(first.stacks.values()))[0][0] == "??"


def test_what_a_rank_joins_with_is_looked_at_each_time_it_comes_to_wait_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Table(permission.rights())
    sampler, me = stacks.Sampler(Tools(), processes), os.getpid()
    monkeypatch.setattr(rest, "mark", lambda pid: None)
    asked: list[bool] = []

    def spy(*options: Any) -> stacks_rows.Sample:
        asked.append(options[3])
        return stacks.parse(dump(*frames))

    monkeypatch.setattr(stacks, "sample", spy)
    identity = processes.identity(me)
    assert identity is not None

    def take() -> list[bool]:
        asked.clear()
        sampler.take(me, "nonblocking", False, 1.0, threading.Event())
        return list(asked)

    call = frame("init_process_group", C10D, rank="1", world_size="4")
    frames = [frame("_new_process_group_helper", C10D), call]
    assert take() == [False]  # no rank, as far as is known
    monkeypatch.setattr(processes, "is_rank", lambda identity: True)
    assert take() == [False, True]
    assert processes._learned[identity].told == (1, 4, None)
    assert take() == [False]
    frames = [frame("step", "/train.py")]
    assert take() == [False]
    frames = [frame("f", "/train.py"), call]  # not there yet
    assert take() == [False]
    frames = [frame("_store_based_barrier", C10D), frame(call["name"], C10D, world_size="3")]
    assert take() == [False, True]
    assert processes._learned[identity].told == (None, 3, None)


def test_for_whom_a_rank_waits_in_a_recv_is_read_once_it_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Table(permission.rights())
    sampler, me = stacks.Sampler(Tools(), processes), os.getpid()
    mark: tuple[int, ...] | None = (1,)
    monkeypatch.setattr(rest, "mark", lambda pid: mark)
    asked: list[bool] = []

    def spy(*options: Any) -> stacks_rows.Sample:
        asked.append(options[3])
        return stacks.parse(dump(*frames)) if options[3] else plain

    monkeypatch.setattr(stacks, "sample", spy)

    def take() -> tuple[list[bool], list[Any]]:
        asked.clear()
        piece, _ = sampler.take(me, "nonblocking", False, 1.0, threading.Event())
        return list(asked), piece["threads"][0]["locals"]

    frames = [frame("recv", C10D, src="2", tag="7", group="<G>"), frame("f", "/train.py", src="1")]
    plain = stacks.parse(dump(frame("recv", C10D), frame("f", "/train.py")))
    assert take() == ([False], [[], []])  # no rank, as far as is known
    monkeypatch.setattr(processes, "is_rank", lambda identity: True)
    told = [[{"name": "src", "value": "2", "argument": True}], []]
    assert take() == ([True], told)
    assert take() == ([], told)
    mark = None  # it runs
    assert take() == ([False], [[], []])
    monkeypatch.setattr(rest, "main_mark", lambda pid: b"1")  # but its main thread does not
    assert take() == ([False, True], told)
    mark, frames = (2,), [frame("send", C10D, dst="None"), frame("f", "/train.py")]
    assert take() == ([False, True], [[], []])
    mark, plain = (3,), stacks.parse(dump(frame("recv", "/mine/socket.py", src="2")))
    assert take() == ([False], [])


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Error: Failed to find python version from target process", "not-python"),
        ("Error: Unsupported version of Python: 3.99.0", "unsupported"),
        ("Error: Failed to get stack: bad\n\nStack backtrace:\n 0: x", "error"),
        ("", "error"),
    ],
)
def test_py_spy_messages(said: str, kind: str) -> None:
    failure = stacks.explain(os.getpid(), Done(1, b"", said.encode()), 5)
    assert failure["kind"] == kind
    assert "backtrace" not in failure["text"]


def test_other_reasons() -> None:
    assert stacks.explain(2**22 + 1, Done(1, b"", b"x"), 5)["kind"] == "gone"
    timeout = stacks.explain(os.getpid(), Done(None, b"", b"", timed_out=True), 5)
    assert timeout["kind"] == "timeout"
    assert stacks.explain(os.getpid(), Done(1, b"", b"Permission Denied: Try"), 5)["fix"]


def test_halted_states() -> None:
    assert halted({1: "S", 2: "R"}) == (False, False)
    assert halted({1: "S", 2: "D"}) == (False, True)
    assert halted({1: "t"}) == (True, True)
    refused = refusal({5: "S", 6: "D"})
    assert refused["kind"] == "stopped"
    assert "thread 6 waits for a disk" in refused["text"]


def mount(point: str, fstype: str) -> procfs.Mount:
    return procfs.Mount(1, "0:1", point, fstype, "x")


def test_source_lines_come_from_local_files_only(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import x\n    loss = f(  y )\n" + "z" * 500 + "\n")
    local = [mount("/", "ext4")]
    me, later = os.getpid(), time.time() + 60.0
    os.utime(file, (later, later))
    assert sources.line(me, str(file), 2, local) == "loss = f(  y )" + sources.NEWER
    os.utime(file, (0, 0))
    assert sources.line(me, str(file), 2, local) == "loss = f(  y )"
    assert sources.line(me, str(file), 3, local) == "z" * 200
    assert sources.line(me, str(file), 99, local) is None
    for fstype in ("nfs4", "lustre", "fuse.sshfs", "ceph", "9p"):
        assert sources.line(me, str(file), 2, [*local, mount(str(tmp_path), fstype)]) is None
    fifo = tmp_path / "fifo.py"
    os.mkfifo(fifo)
    assert sources.line(me, str(fifo), 1, local) is None


def test_a_link_to_a_network_mount_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "a.py").write_text("x = 1\n")
    (tmp_path / "link").symlink_to(real)
    mounts = [mount("/", "ext4"), mount(str(real), "nfs")]
    assert sources.line(os.getpid(), str(tmp_path / "link" / "a.py"), 1, mounts) is None


def test_only_the_innermost_and_the_innermost_own_frame_get_a_line(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("a\nb\nc\n")
    library = tmp_path / "site-packages" / "lib.py"
    library.parent.mkdir()
    library.write_text("d\n")
    for old in (own, library):
        os.utime(old, (0, 0))
    rows: list[list[Any]] = [
        ["x", "libc.so", "", 0, True, None, None, None],
        ["g", str(library), "", 1, False, None, None, None],
        ["f", str(own), "", 2, False, None, None, None],
        ["main", str(own), "", 3, False, None, None, None],
    ]
    sources.add(os.getpid(), rows)
    assert [row[5] for row in rows] == [None, "d", "b", None]
    assert [row[6] for row in rows] == [None, None, [], []]


def test_callers_get_a_line_in_which_one_call_is_in_another(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("barrier()\nend(epoch, train(epoch))\nfit()\nx(y())\n")
    os.utime(own, (0, 0))
    rows: list[list[Any]] = [
        ["f", str(own), "", number, False, None, None, None] for number in (1, 2, 3, 4)
    ]
    sources.add(os.getpid(), rows)
    assert [row[5] for row in rows] == ["barrier()", "end(epoch, train(epoch))", None, None]


def test_lines_of_code_are_kept_one_by_one_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_CACHED_LINES", 10)
    monkeypatch.setattr(sources, "_cache", {})
    file = tmp_path / "long.py"
    file.write_text("".join(f"line {n} {'x' * 1000}\n" for n in range(1, 101)))
    shown = [sources._line(str(file), number) for number in range(1, 103)]
    texts = [found[0] for found in shown[:100] if found is not None]
    assert [text.split()[1] for text in texts] == [str(n) for n in range(1, 101)]
    assert shown[100:] == [None, None]
    assert len(sources._cache) == 10
    assert all(len(text or "") <= sources.MAX_LINE for text in sources._cache.values())


@pytest.fixture
def asleep() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child.pid
        child.kill()


def spy(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script in the place of py-spy; $0.calls counts its calls."""
    path = folder / "py-spy"
    path.write_text(f'#!/bin/sh\necho . >>"$0.calls"\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setattr(node, "find_py_spy", lambda: str(path))


STOPS = (
    "for pid; do case $before in --pid) kill -STOP $pid;; esac; before=$pid; done; exec sleep 600"
)


@pytest.mark.parametrize("mode", ["native", "blocking"])
def test_a_process_is_stopped_for_its_stacks_no_longer_than_is_said(
    asleep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    spy(tmp_path, STOPS, monkeypatch)
    monkeypatch.setattr(tracing, "MAX_PAUSE_S", 0.3)
    sampler = stacks.Sampler(Tools(), Table(permission.rights()))
    began = time.monotonic()
    piece, _ = sampler.take(asleep, mode, False, 600.0, threading.Event())
    assert time.monotonic() - began < 60.0
    assert piece["failure"]["kind"] == "timeout"
    assert "it had stopped the process for 0.3 s" in piece["failure"]["text"]
    assert piece["resumed"] is True
    assert procfs.states(asleep)[asleep] == "S"


def test_a_process_that_has_to_be_stopped_is_stopped_once(
    asleep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "py-spy.calls"
    spy(tmp_path, "exit 1", monkeypatch)
    sampler = stacks.Sampler(Tools(), Table(permission.rights()))
    for mode, count in (("native", 1), ("blocking", 1), ("nonblocking", 2)):
        sampler.take(asleep, mode, False, 60.0, threading.Event())
        assert len(calls.read_text().split()) == count, mode
        calls.unlink()
