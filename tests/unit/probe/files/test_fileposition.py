"""How far a process is in a file, told of this process and a file of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.files.fileposition import Position
from hangtop_probe.proc.activity import ThreadRow
from hangtop_probe.wire.guard import Guard, Hanging

if TYPE_CHECKING:
    from pathlib import Path


def main_in(syscall: str | None, fd: int | None) -> ThreadRow:
    return ThreadRow(os.getpid(), "python", "S", None, syscall, fd, None)


@pytest.fixture
def position() -> Position:
    return Position(os.getpid(), Guard())


def test_it_is_followed_from_one_file_to_the_next(tmp_path: Path, position: Position) -> None:
    (tmp_path / "a").write_bytes(bytes(5000))
    with (tmp_path / "a").open("rb", 0) as file, (tmp_path / "b").open("wb", 0) as other:
        assert position.look(main_in("futex", None)) is None
        first = position.look(main_in("read", file.fileno()))
        assert first is not None
        assert (first["target"], first["position"], first["size"]) == (f"{tmp_path}/a", 0, 5000)
        assert (first["writes"], "fstype" in first, "mnt_id" in first) == (False, True, False)
        file.read(3000)
        # What it does in between does not matter, as long as the file is open.
        second = position.look(main_in(None, None))
        assert second is not None
        assert (first["position"], second["position"]) == (0, 3000)
        other.write(bytes(10))
        third = position.look(main_in("write", other.fileno()))
        assert third is not None
        assert (third["target"], third["position"], third["writes"]) == (f"{tmp_path}/b", 10, True)
    assert position.look(main_in(None, None)) is None


def test_what_moves_no_position_is_not_followed(tmp_path: Path, position: Position) -> None:
    """pread goes on without moving it: that it stays would say nothing."""
    read, write = os.pipe()
    os.mkfifo(tmp_path / "fifo")
    with (
        open(read, "rb", 0),
        open(write, "wb", 0),
        (tmp_path / "fifo").open("r+b", 0) as fifo,
        (tmp_path / "a").open("wb", 0) as file,
    ):
        assert position.look(main_in("read", read)) is None
        assert position.look(main_in("read", fifo.fileno())) is None
        assert position.look(main_in("pwrite64", file.fileno())) is None
        assert position.look(main_in("write", 1)) is None, "its log"
        assert position.look(main_in("write", file.fileno())) is not None
        assert position.look(main_in("pwrite64", file.fileno())) is None


def test_a_file_system_that_does_not_answer(tmp_path: Path) -> None:
    class Silent(Guard):
        def call(self, *_: object) -> None:  # type: ignore[override]
            raise Hanging("no answer")

    with (tmp_path / "a").open("wb", 0) as file:
        found = Position(os.getpid(), Silent()).look(main_in("write", file.fileno()))
        assert found is not None
        assert (found["position"], found["size"]) == (0, None)
