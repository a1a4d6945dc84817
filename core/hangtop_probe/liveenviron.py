"""The environment that a process has now, out of its memory: /proc/PID/environ shows another one.

That file shows what a program was started with, and only for as long as nobody has written over it:
`setproctitle` does, and what `os.environ[...] =` puts there never shows. The C library's variable
`environ` points to what `putenv` maintains (environ(7), POSIX). Its address is in the dynamic
symbols of the program itself, where the linker has copied it there (R_COPY), else of libc (glibc
and musl, elf(5)). Memory is read as py-spy does, which stops nothing and takes the same right.
"""

from __future__ import annotations

import os
import struct
from stat import S_ISREG
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import procfs
from .versions import MAX_MAPS

_NAMES = (b"environ", b"__environ", b"_environ")
_LIBRARIES = ("libc.so.6", "libc-", "ld-musl-", "libc.musl-")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_DYNSYM, _LOAD, _EXECUTABLE = 11, 1, 2
_MAX_TABLE = 4 << 20
"""Bytes of a table of symbols or of their names; libc and python3 have some 100 KiB."""
_MAX_ENTRIES = 4096
_MAX_BYTES = 128 << 10
_MAX_ENTRY = 8 << 10
_PAGE = 4096
_POINTER = 8


class _Mapping(NamedTuple):
    """Where a file is mapped from its beginning."""

    base: int
    path: str


def read(pid: int, wanted: Callable[[str], bool]) -> Optional[Dict[str, str]]:
    """Return the variables of a process whose name is ``wanted``; None where it cannot be read.

    A process that changes its environment meanwhile may give less, never anything made up by us.
    """
    try:
        fd = os.open("/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        memory = _Memory(fd)
        for address in _addresses(pid):
            entries = list(_entries(memory, memory.pointer(address)))
            if entries:
                return _pairs(entries, wanted)
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def _pairs(entries: List[bytes], wanted: Callable[[str], bool]) -> Dict[str, str]:
    pairs = procfs.parse_environ(b"\0".join(entries))
    return {name: value for name, value in pairs.items() if wanted(name)}


class _Memory:
    """Memory of a process by pages, each read once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pages: Dict[int, bytes] = {}

    def at(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes; raise OSError where there is no memory."""
        first, offset = address // _PAGE, address % _PAGE
        pages = range(first, (address + size - 1) // _PAGE + 1)
        return b"".join(map(self._page, pages))[offset : offset + size]

    def pointer(self, address: int) -> int:
        """Return the pointer at an address."""
        return int.from_bytes(self.at(address, _POINTER), "little")

    def text(self, address: int) -> bytes:
        """Return the bytes up to the next zero, `_MAX_ENTRY` at most."""
        found = b""
        while len(found) < _MAX_ENTRY:
            part, end, _ = self.at(address, _PAGE - address % _PAGE).partition(b"\0")
            found += part
            if end:
                break
            address += len(part)
        return found[:_MAX_ENTRY]

    def _page(self, number: int) -> bytes:
        if number not in self._pages:
            page = os.pread(self._fd, _PAGE, number * _PAGE)
            if len(page) < _PAGE:
                raise OSError("no memory there")
            self._pages[number] = page
        return self._pages[number]


def _entries(memory: _Memory, array: int) -> Iterator[bytes]:
    """Give `NAME=value` by `NAME=value`, up to the limits."""
    total = 0
    for index in range(_MAX_ENTRIES if array else 0):
        entry = memory.pointer(array + index * _POINTER)
        if not entry or total > _MAX_BYTES:
            return
        value = memory.text(entry)
        total += len(value)
        yield value


def _addresses(pid: int) -> Iterator[int]:
    """Give where `environ` may be: in the program, then in its libc."""
    for mapping in _mappings(pid):
        try:
            symbol = _symbol_of("/proc/%d/root%s" % (pid, mapping.path))
        except OSError:
            continue
        if symbol is not None:
            value, is_fixed = symbol
            yield value if is_fixed else mapping.base + value


def _mappings(pid: int) -> List[_Mapping]:
    program = procfs.link("/proc/%d/exe" % pid)
    found: Dict[str, _Mapping] = {}
    for line in (procfs.read_all("/proc/%d/maps" % pid, MAX_MAPS) or b"").splitlines():
        words = line.split(None, 5)
        if len(words) < 6 or words[2].strip(b"0"):
            continue
        path = procfs.text(words[5])
        if path == program or os.path.basename(path).startswith(_LIBRARIES):
            found.setdefault(path, _Mapping(int(words[0].partition(b"-")[0], 16), path))
    return sorted(found.values(), key=lambda mapping: mapping.path != program)


_known: Dict[Tuple[int, int, int], Optional[Tuple[int, bool]]] = {}
"""What `find` found, by device, inode and time of change of the file."""
_MAX_KNOWN = 256


def _symbol_of(path: str) -> Optional[Tuple[int, bool]]:
    """Return the value of `environ` in a file, and whether that is an address already."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        stat = os.fstat(fd)
        key = stat.st_dev, stat.st_ino, stat.st_mtime_ns
        if key not in _known:
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[key] = find(fd) if S_ISREG(stat.st_mode) else None
        return _known[key]
    finally:
        os.close(fd)


def find(fd: int) -> Optional[Tuple[int, bool]]:
    """Return what `_symbol_of` does, None for what is no 64-bit little-endian ELF file."""
    try:
        return _find(fd)
    except (ValueError, OverflowError, struct.error):
        return None


def _find(fd: int) -> Optional[Tuple[int, bool]]:
    header = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
    if header[0][:6] != b"\x7fELF\x02\x01" or header[11] != _SECTION.size:
        return None
    sections = _table(fd, header[6], header[12], _SECTION)
    for section in sections:
        if section[1] == _DYNSYM and section[6] < len(sections):
            names = _bytes(fd, sections[section[6]])
            for symbol in _SYMBOL.iter_unpack(_bytes(fd, section, _SYMBOL.size)):
                if symbol[3] and symbol[4] and _name(names, symbol[0]) in _NAMES:
                    return symbol[4] - _lowest(fd, header), header[1] == _EXECUTABLE
    return None


def _lowest(fd: int, header: Tuple[int, ...]) -> int:
    """Return where a file wants its beginning, which its mapping has moved; 0 where it is fixed."""
    if header[1] == _EXECUTABLE:
        return 0
    loads = [row[3] for row in _table(fd, header[5], header[10], _PROGRAM) if row[0] == _LOAD]
    return min(loads, default=0) // _PAGE * _PAGE


def _table(fd: int, offset: int, count: int, row: struct.Struct) -> List[Tuple[int, ...]]:
    data = os.pread(fd, count * row.size, offset)
    return list(row.iter_unpack(data[: len(data) // row.size * row.size]))


def _bytes(fd: int, section: Tuple[int, ...], row: int = 1) -> bytes:
    data = os.pread(fd, min(section[5], _MAX_TABLE), section[4])
    return data[: len(data) // row * row]


def _name(names: bytes, at: int) -> bytes:
    return names[at : names.find(b"\0", at)]
