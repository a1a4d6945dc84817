"""What ranks have written about inf and nan, read by way of their descriptors."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

from hangtop_probe.node import permission
from hangtop_probe.output import numerics
from hangtop_probe.proc import procfs
from hangtop_probe.wire.guard import Guard

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_pipe_that_has_the_name_of_the_file_holds_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "numerics"
    folder.mkdir()
    path = folder / f"rank0-n1-{os.getpid()}.jsonl"
    os.mkfifo(path)
    writing = os.open(path, os.O_RDWR)
    try:
        told = numerics.piece(os.getpid(), permission.rights())
    finally:
        os.close(writing)
    assert told["failure"]["text"] == "the file is none of this version"


def test_a_number_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "numerics"
    folder.mkdir()
    path = folder / f"rank0-n1-{os.getpid()}.jsonl"
    header = '{"schema":"hangtop.numerics/1","rank":7}'
    path.write_text(f'{header}\n{{"type":"first","step":{"9" * 5000},"batch":-12}}\n')
    with path.open():
        told = numerics.piece(os.getpid(), permission.rights())
    assert told["header"]["rank"] == 7
    assert told["lines"] == [{"type": "first", "step": None, "batch": -12}]


def test_the_file_of_a_rank_in_a_container_has_the_pid_of_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "numerics"
    folder.mkdir()
    path = folder / "rank0-n1-17.jsonl"
    path.write_text('{"schema":"hangtop.numerics/1","rank":7}\n')
    real = procfs.read

    def read(name: str, limit: int = 1 << 20) -> bytes | None:
        data = real(name, limit)
        if data is not None and name.endswith("/status"):
            return data.replace(b"NSpid:\t%d" % os.getpid(), b"NSpid:\t%d\t17" % os.getpid())
        return data

    monkeypatch.setattr(procfs, "read", read)
    with path.open():
        told = numerics.piece(os.getpid(), permission.rights())
    assert told["header"]["rank"] == 7


def test_a_file_system_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "numerics"
    folder.mkdir()
    given_back = threading.Event()
    monkeypatch.setattr(numerics, "_told", lambda _: given_back.wait())
    monkeypatch.setattr(numerics, "SECONDS", 0.1)
    monkeypatch.setattr(numerics, "_GUARD", Guard(1))
    with (folder / f"rank0-n1-{os.getpid()}.jsonl").open("w"):
        told = numerics.piece(os.getpid(), permission.rights())
    given_back.set()
    assert told["failure"]["kind"] == "timeout"


def test_lines_without_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "MAX_LINES_READ", 3)
    header = b'{"schema": "hangtop.numerics/1"}\n'
    read = numerics._told(io.BytesIO(header + b"\n" * 2))
    assert not read["cut"]
    endless = io.BytesIO(header + b"\n" * 100)
    assert numerics._told(endless)["cut"]
    assert endless.tell() == len(header) + 3
