"""The content of a core file: signal, threads, command, environment, mapped files.

Only headers, notes and single pages are read, so a core of 40 GiB costs as much as a small one, and
every count in the file is limited before use. Formats: elf(5), core(5), and Linux's `struct
elf_prstatus`, `elf_prpsinfo` (include/linux/elfcore.h) and `fill_files_note` (fs/binfmt_elf.c), for
64-bit machines; offsets of the stack pointer for x86-64 and AArch64.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import BinaryIO

from msgspec import Struct

MAX_SEGMENTS = 400_000
MAX_NOTES = 256 << 20
"""Maximum number of bytes; a thread has about 12 KiB of notes."""
MAX_THREADS = 20_000
MAX_NUMBER_OF_NOTES = 16 * MAX_THREADS
"""The kernel writes about six per thread, and a few for all."""
MAX_MAPPED = 400_000
"""Maximum number of mapped files; the kernel's default for all mappings of a process is 65,530."""
MAX_ENVIRONMENT = 8 << 20
PAGE = 4096
HEADER_BYTES = 56
"""Size of the header of one segment; `Elf64_Phdr`."""
MAX_PIECES = 64
"""Maximum number of segments that one stretch of memory is joined from."""

_PT_LOAD, _PT_NOTE = 1, 4
_ET_CORE = 4
_MANY = 0xFFFF
"""PN_XNUM: the number of segments is in the first section header."""
_PRSTATUS, _PRPSINFO, _AUXV = 1, 3, 6
_SIGINFO, _FILE = 0x53494749, 0x46494C45
_AT_ENTRY, _AT_RANDOM, _AT_EXECFN = 9, 25, 31
_STACK_POINTER = {62: 112 + 19 * 8, 183: 112 + 31 * 8}
"""By e_machine; general registers begin at byte 112 of `elf_prstatus`."""
MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
"""By e_machine: the name in `uname -m`."""
FILE_HEADER = 64
"""Bytes of `Elf64_Ehdr`, which strip(1) changes; the rest of the first page stays."""
_NAMED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class NotACoreError(Exception):
    """The file is no readable core; the text says why."""


class Mapped(Struct, frozen=True):
    """A part of a file that was mapped into memory."""

    start: int
    end: int
    offset: int
    path: str


class Signal(Struct, frozen=True):
    """The signal that ended the process. `number` is 0 for a core of a live process."""

    number: int
    code: int | None = None
    """si_code; None if the core has none."""
    address: int | None = None
    """The address of a fault."""
    sender: int | None = None
    """The pid of the process that sent the signal."""
    sender_uid: int | None = None


class Header(Struct, frozen=True):
    """The content of a core's notes."""

    path: str
    size: int
    modified: float
    wanted: int
    """Bytes that the file should have; more than `size` if it was cut."""
    machine: int
    pid: int
    threads: tuple[int, ...]
    """Thread ids; the one that got the signal first."""
    signal: Signal
    comm: str
    command: str
    """The command line, at most 79 characters."""
    arguments: tuple[str, ...]
    environment: dict[str, str]
    executable: str | None
    mapped: tuple[Mapped, ...]
    stack_pointer: int | None
    """Stack pointer of the first thread."""
    uid: int | None = None

    @property
    def cut(self) -> bool:
        """Whether its end is missing."""
        return self.size < self.wanted


class _Load(Struct, frozen=True):
    start: int
    end: int
    offset: int
    filled: int


def is_core(path: str) -> bool:
    """Whether a file has the header of a core; False for unreadable files."""
    try:
        with _open(path) as file:
            start = file.read(20)
    except (OSError, NotACoreError):
        return False
    return start[:4] == b"\x7fELF" and len(start) == 20 and _order_of(start, "H", 16) == _ET_CORE


def _open(path: str) -> BinaryIO:
    # A FIFO would wait for a writer: it is opened without waiting, and then refused.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotACoreError("is no regular file")
    return os.fdopen(fd, "rb")


def _order_of(data: bytes, form: str, at: int) -> int:
    value: int = struct.unpack_from((">" if data[5] == 2 else "<") + form, data, at)[0]
    return value


def read(path: str) -> Header:
    """Read the headers and notes of a core.

    Raises:
        NotACoreError: it is no core, of 32 bits, or its headers are damaged.
        OSError: it cannot be opened.
    """
    with _open(path) as file:
        try:
            return _Reader(file, path).header()
        except (struct.error, OverflowError) as error:
            raise NotACoreError("ends within its own headers: it is cut or damaged") from error


class _Reader:
    """An open core."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        status = os.fstat(file.fileno())
        self._size, self._modified = status.st_size, status.st_mtime
        self._loads: list[_Load] = []
        self._notes: list[tuple[int, int]] = []
        start = file.read(64)
        if start[:4] != b"\x7fELF":
            raise NotACoreError(_what_else(start, self._size))
        if len(start) < 64:
            raise NotACoreError("ends within its own headers: it is cut or damaged")
        if start[4] != 2:
            raise NotACoreError("is of a 32-bit program, which hangtop does not read")
        self._order = ">" if start[5] == 2 else "<"
        kind, self._machine = self._unpack("HH", start, 16)
        if kind != _ET_CORE:
            raise NotACoreError("is a program or library, no core")
        self._segments(start)

    def _unpack(self, form: str, data: bytes, at: int = 0) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, data, at)

    def _at(self, offset: int, count: int) -> bytes:
        self._file.seek(min(offset, self._size))
        return self._file.read(count)

    def _segments(self, start: bytes) -> None:
        place, sections = self._unpack("QQ", start, 32)
        size, count = self._unpack("HH", start, 54)
        if count == _MANY:
            count = self._unpack("I", self._at(sections, 64), 44)[0]
        if size != HEADER_BYTES or count > MAX_SEGMENTS:
            raise NotACoreError("has a header that makes no sense")
        table = self._at(place, size * count)
        self.wanted = place + size * count
        for number in range(len(table) // size):
            kind, _ = self._unpack("II", table, number * size)
            offset, address, _, filled, memory = self._unpack("QQQQQ", table, number * size + 8)
            self.wanted = max(self.wanted, min(offset + filled, 1 << 62))
            if kind == _PT_LOAD:
                self._loads.append(_Load(address, address + memory, offset, filled))
            elif kind == _PT_NOTE:
                self._notes.append((offset, filled))

    def memory(self, address: int, count: int) -> bytes:
        """Return memory; less, or nothing, if the core is missing it."""
        data = b""
        for _ in range(MAX_PIECES):
            at = address + len(data)
            load = next((x for x in self._loads if x.start <= at < x.start + x.filled), None)
            if load is None:
                break
            room = min(count - len(data), load.start + load.filled - at)
            part = self._at(load.offset + at - load.start, room)
            data += part
            if len(part) < room or len(data) == count:
                break
        return data

    def header(self) -> Header:
        notes = self._all_notes()
        statuses = [data for kind, data in notes if kind == _PRSTATUS][:MAX_THREADS]
        if not statuses:
            why = "its notes are missing" if self._size < self.wanted else "it names no thread"
            raise NotACoreError(f"tells nothing: {why}")
        # The thread that got the signal comes first.
        first = {kind: data for kind, data in reversed(notes) if data}
        process = first.get(_PRPSINFO, b"")
        info = process if len(process) >= 136 else bytes(136)
        vector = self._vector(first.get(_AUXV, b""))
        mapped = self._files(first.get(_FILE, b""))
        arguments, environment = _arguments_and_environment(self._strings(vector))
        threads = tuple(self._unpack("i", status, 32)[0] for status in statuses)
        pointer = _STACK_POINTER.get(self._machine)
        return Header(
            path=self._path,
            size=self._size,
            modified=self._modified,
            wanted=self.wanted,
            machine=self._machine,
            pid=self._unpack("i", info, 24)[0] or threads[0],
            threads=threads,
            signal=self._signal(statuses[0], first.get(_SIGINFO, b"")),
            comm=_text(info[40:56]),
            command=_text(info[56:136]).strip(),
            arguments=arguments,
            environment=environment,
            executable=self._executable(vector, mapped),
            mapped=mapped,
            stack_pointer=self._unpack("Q", statuses[0], pointer)[0] if pointer else None,
            uid=self._unpack("I", info, 16)[0] if process else None,
        )

    def _all_notes(self) -> list[tuple[int, bytes]]:
        notes: list[tuple[int, bytes]] = []
        left = MAX_NOTES
        for place, size in self._notes:
            data = self._at(place, min(size, left))
            left -= len(data)
            at = 0
            while at + 12 <= len(data):
                name, length, kind = self._unpack("III", data, at)
                start = at + 12 + (name + 3 & ~3)
                if start + length > len(data):
                    break
                if len(notes) >= MAX_NUMBER_OF_NOTES:
                    raise NotACoreError(f"has more than {MAX_NUMBER_OF_NOTES:,} notes, the limit")
                notes.append((kind, data[start : start + length]))
                at = start + (length + 3 & ~3)
        return notes

    def _vector(self, data: bytes) -> dict[int, int]:
        numbers = self._unpack(f"{len(data) // 16 * 2}Q", data)
        return dict(zip(numbers[::2], numbers[1::2], strict=True))

    def _files(self, data: bytes) -> tuple[Mapped, ...]:
        if len(data) < 16:
            return ()
        count, unit = self._unpack("QQ", data)
        if count > (len(data) - 16) // 24:
            return ()
        if count > MAX_MAPPED:
            raise NotACoreError(f"names more than {MAX_MAPPED:,} mapped files, the limit")
        names = data[16 + 24 * count :].split(b"\0", count)
        return tuple(
            Mapped(start, end, offset * unit, os.fsdecode(name))
            for (start, end, offset), name in zip(
                (self._unpack("QQQ", data, 16 + 24 * at) for at in range(count)),
                names,
                strict=False,
            )
        )

    def _signal(self, status: bytes, info: bytes) -> Signal:
        number = self._unpack("i", status)[0] or self._unpack("h", status, 12)[0]
        if len(info) < 24 or self._unpack("i", info)[0] != number:
            return Signal(number)
        code = self._unpack("i", info, 8)[0]
        if code > 0:
            return Signal(number, code, address=self._unpack("Q", info, 16)[0])
        sender, uid = self._unpack("iI", info, 16)
        return Signal(number, code, sender=sender, sender_uid=uid)

    def _strings(self, vector: dict[int, int]) -> list[str]:
        """Return arguments, then environment, as the kernel laid them out above the stack."""
        low, high = vector.get(_AT_RANDOM, 0) + 16, vector.get(_AT_EXECFN, 0)
        if not 16 < low < high <= low + MAX_ENVIRONMENT:
            return []
        data = self.memory(low, high - low)
        # Padding and the platform's name come before the arguments.
        strings = [_text(piece) for piece in data.split(b"\0") if piece]
        return strings[1:] if strings and strings[0] in _PLATFORMS else strings

    def _executable(self, vector: dict[int, int], mapped: tuple[Mapped, ...]) -> str | None:
        """Return the executable by its real name: a link to it may have moved on since."""
        entry = vector.get(_AT_ENTRY, 0)
        for file in mapped:
            if file.start <= entry < file.end:
                return file.path
        name = self.memory(vector.get(_AT_EXECFN, 0), PAGE).split(b"\0")[0]
        return os.fsdecode(name) if name.startswith(b"/") else None


_PLATFORMS = frozenset({"x86_64", "aarch64", "haswell", "xeon_phi"})


def first_page(path: str, start: int) -> bytes:
    """Return a page of the memory of a core from an address on; less if some is missing."""
    with _open(path) as file:
        return _Reader(file, path).memory(start, PAGE)


def _arguments_and_environment(strings: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Split arguments from the environment, which begins at the first NAME=VALUE."""
    start = next((n for n, text in enumerate(strings) if _NAMED.match(text)), len(strings))
    environment: dict[str, str] = {}
    for text in strings[start:]:
        name, separator, value = text.partition("=")
        if separator:
            environment.setdefault(name, value)
    return tuple(strings[:start]), environment


def _text(data: bytes) -> str:
    return os.fsdecode(data.split(b"\0")[0])


def _what_else(start: bytes, size: int) -> str:
    if not size:
        return "is empty: nothing of the core was written (a full disk, or ulimit -c)"
    if start.startswith(b"ProblemType:"):
        return "is a report of apport: take the core out of it with apport-unpack FILE DIRECTORY"
    return "is no core file"
