"""Unpack cores as systemd-coredump stores them: by zstd, lz4 and xz, and by gzip.

Magic numbers are those of the formats: RFC 8878 (zstd), lz4_Frame_format.md, xz-file-format.txt and
RFC 1952 (gzip). Programs unpack them, since Python reads neither zstd (before 3.14) nor lz4.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hangtop_core.cores import elf
from hangtop_core.text.clean import clean, size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from hangtop_probe.wire.tools import Tools

_PROGRAMS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\x00": "xz",
    b"\x1f\x8b": "gzip",
}
PIECE = 1 << 20
ZEROS = bytes(PIECE)
MAX_UNPACKED = 128 << 30
"""Maximum number of unpacked bytes, including zeros."""
MAX_RATIO = 10_000
"""Maximum number of unpacked bytes for each byte of the file, and for each of `PIECE`.

A file of some KiB may stand for any number of zeros."""
SPARED = 256 << 20
"""Bytes of disk space that an unpacked core leaves free."""


def program(path: str) -> str | None:
    """Return the program that unpacks a file, by its magic number; None if it is not packed."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            start = file.read(6)
    except OSError:
        return None
    return next((name for magic, name in _PROGRAMS.items() if start.startswith(magic)), None)


@contextmanager
def whole(path: str, tools: Tools) -> Iterator[str]:
    """Yield the path of an unpacked core; for a packed one that of an anonymous copy.

    Raises:
        elf.NotACoreError: it cannot be unpacked, or holds no core; the text says why.
        OSError: nothing can be written where temporary files go.
    """
    name = program(path)
    if name is None:
        yield path
        return
    unpacker = shutil.which(name)
    if unpacker is None:
        raise elf.NotACoreError(
            f"is packed, and {name} is not here to unpack it: install it, or use coredumpctl dump"
        )
    with tempfile.TemporaryFile(prefix="hangtop-core-") as file:
        # This name works in child processes, too; the file has no other, so that nothing is
        # left whatever ends this process.
        copy = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        process = tools.start([unpacker, "-dc", "--", path], stderr=subprocess.DEVNULL)
        try:
            _copy(process, file, min(MAX_UNPACKED, MAX_RATIO * (os.stat(path).st_size + PIECE)))
        finally:
            tools.end(process)
        if process.returncode != 0 and not elf.is_core(copy):
            raise elf.NotACoreError(f"is damaged: {name} cannot unpack it")
        yield copy


def _copy(process: subprocess.Popen[bytes], file: BinaryIO, limit: int) -> None:
    """Write a program's output, with holes for zeros, within the disk space."""
    assert process.stdout is not None  # noqa: S101  # it was opened as a pipe
    disk = os.fstatvfs(file.fileno())
    room = disk.f_bavail * disk.f_frsize - SPARED
    while data := process.stdout.read(PIECE):
        if not file.tell() and not data.startswith(b"\x7fELF"):
            raise elf.NotACoreError("is packed, and holds no core file")
        if file.tell() + len(data) > limit:
            raise elf.NotACoreError(
                f"has more than {size(limit)} when it is unpacked, the limit: unpack it yourself"
            )
        if data == ZEROS[: len(data)]:
            file.seek(len(data), os.SEEK_CUR)
            continue
        room -= len(data)
        if room < 0:
            raise elf.NotACoreError(
                f"takes more room than there is in {clean(tempfile.gettempdir(), 200)} when it is "
                f"unpacked ({size(file.tell())} of it fit): set TMPDIR to a directory with more"
            )
        file.write(data)
    file.truncate()
    file.flush()
    process.wait()
