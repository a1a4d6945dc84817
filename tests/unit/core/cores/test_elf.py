"""What a core says by itself; and files that are none, are cut, or were made to harm."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path

import pytest

from hangtop_core.cores import elf, find
from support.cores.image import STACK, core, note

ENVIRONMENT = {"RANK": "3", "WORLD_SIZE": "8", "EMPTY": "", "LR": "a=b"}


def test_everything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "core"
    files = ((0x1000, 0x2000, 0, "/opt/python3.11"), (0x9000, 0xA000, 4096, "/dev/shm/torch_1"))
    path.write_bytes(core(environment=ENVIRONMENT, files=files, threads=3))
    found = elf.read(str(path))
    assert found.threads == (4711, 4712, 4713)
    assert (found.pid, found.comm, found.command) == (4711, "python3", "python3 train.py")
    assert found.arguments == ("python3", "train.py")
    assert found.environment == ENVIRONMENT
    assert found.executable == "/opt/python3.11"
    assert found.signal == elf.Signal(signal.SIGSEGV, 1, address=0)
    assert (found.uid, found.cut) == (1000, False)
    assert elf.is_core(str(path))


def test_the_sender_of_a_signal_is_told(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(core(number=6, code=0, detail=struct.pack("<iI", 99, 1000)))
    assert elf.read(str(path)).signal == elf.Signal(6, 0, sender=99, sender_uid=1000)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"hello", "no core"),
        (b"\x7fELF", "headers"),
        (b"\x7fELF\x01" + bytes(100), "32-bit"),
        (b"ProblemType: Crash\n", "apport"),
        (core()[:16] + b"\x03\x00" + core()[18:], "no core"),
        (core()[:60], "cut"),
        (core()[:180], "notes are missing"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_no_core_says_so(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "core"
    path.write_bytes(data)
    with pytest.raises(elf.NotACoreError, match=why):
        elf.read(str(path))


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "core")
    assert not elf.is_core(str(tmp_path / "core"))
    with pytest.raises(elf.NotACoreError, match="regular"):
        elf.read(str(tmp_path / "core"))


def test_counts_are_not_believed(tmp_path: Path) -> None:
    """Billions of segments, files and bytes of notes that the file does not have."""
    path = tmp_path / "core"
    whole = bytearray(core())
    struct.pack_into("<Q", whole, 64 + 32, 1 << 60)
    path.write_bytes(whole)
    assert elf.read(str(path)).cut
    path.write_bytes(core(mapped=note(0x46494C45, struct.pack("<QQ", 1 << 60, 1))))
    assert elf.read(str(path)).mapped == ()
    struct.pack_into("<HQ", whole, 56, 0xFFFF, 0)
    struct.pack_into("<Q", whole, 40, 0)
    path.write_bytes(whole)
    with pytest.raises(elf.NotACoreError):
        elf.read(str(path))


def test_segments_that_stand_many_times_are_read_once(tmp_path: Path) -> None:
    """The same bytes as notes of 20,000 segments, and memory in 100,000 pieces of a byte."""
    path = tmp_path / "core"
    whole = core(environment=ENVIRONMENT)
    _, _, place, _, _, size = struct.unpack_from("<IIQQQQ", whole, 64)
    notes = struct.pack("<IIQQQQQQ", 4, 0, 0, 0, 0, 4 << 20, 0, 1) * 20_000
    real = struct.pack("<IIQQQQQQ", 4, 0, place, 0, 0, size, 0, 1)
    pieces = b"".join(
        struct.pack("<IIQQQQQQ", 1, 6, place, STACK + at, 0, 1, 1, 1) for at in range(100_000)
    )
    table = real + notes + pieces
    head = bytearray(whole[:64])
    struct.pack_into("<Q", head, 32, len(whole))
    struct.pack_into("<Q", head, 40, len(whole) + len(table))
    struct.pack_into("<HH", head, 54, 56, 0xFFFF)
    section = bytearray(64)
    struct.pack_into("<I", section, 44, 1 + 20_000 + 100_000)
    path.write_bytes(bytes(head) + whole[64:] + table + section + bytes(4 << 20))
    began = time.process_time()
    assert elf.read(str(path)).pid == 4711
    assert time.process_time() - began < 10.0
    struct.pack_into("<H", head, 54, 0xFFFF)  # a table of 8 GiB, were it believed
    path.write_bytes(bytes(head) + whole[64:] + table + section)
    with pytest.raises(elf.NotACoreError, match="makes no sense"):
        elf.read(str(path))


def test_a_working_directory_that_was_removed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("os.getcwd", gone)
    assert "" not in find.own_directories()


def test_a_process_of_any_name_is_looked_at() -> None:
    own = Path("/proc/self/comm")
    before = own.read_bytes()
    own.write_bytes("ä".encode() * 8)  # cut by the kernel within a letter
    try:
        assert find.own_directories()
    finally:
        own.write_bytes(before)


def test_more_notes_than_any_core_has_are_refused_by_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "core"
    path.write_bytes(core(threads=40))
    assert len(elf.read(str(path)).threads) == 40
    monkeypatch.setattr(elf, "MAX_NUMBER_OF_NOTES", 20)
    with pytest.raises(elf.NotACoreError, match="more than 20 notes, the limit"):
        elf.read(str(path))


def test_more_mapped_files_than_any_process_has_are_refused_by_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "core"
    files = tuple((n << 12, (n + 1) << 12, 0, "/a") for n in range(8))
    path.write_bytes(core(files=files))
    assert len(elf.read(str(path)).mapped) == 8
    monkeypatch.setattr(elf, "MAX_MAPPED", 7)
    with pytest.raises(elf.NotACoreError, match="more than 7 mapped files, the limit"):
        elf.read(str(path))
