"""Read the current environment of a process from its memory: /proc/PID/environ may differ.

That file shows the environment at the start of a program until the program overwrites it, as
`setproctitle` does; changes by `os.environ[...] =` never appear there. The C library's variable
`environ` points to what `putenv` maintains (environ(7), POSIX). Its address is in the dynamic
symbols of the program itself, where the linker has copied it there (R_COPY), else of libc (glibc
and musl, elf(5)). Memory is read as py-spy does, which stops nothing and takes the same right.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from ..proc import elf, procfs
from ..ranks.versions import MAX_MAPS

_LIBRARIES = ("libc.so.6", "libc-", "ld-musl-", "libc.musl-")
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

    A process that changes its environment meanwhile may yield fewer variables, never invented ones.
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
    """Yield the entries `NAME=value`, up to the limits."""
    total = 0
    for index in range(_MAX_ENTRIES if array else 0):
        entry = memory.pointer(array + index * _POINTER)
        if not entry or total > _MAX_BYTES:
            return
        value = memory.text(entry)
        total += len(value)
        yield value


def _addresses(pid: int) -> Iterator[int]:
    """Yield the possible addresses of `environ`: in the program, then in its libc."""
    for mapping in _mappings(pid):
        try:
            symbols = elf.symbols("/proc/%d/root%s" % (pid, mapping.path))
        except OSError:
            continue
        if symbols.environ is not None:
            yield symbols.environ if symbols.is_fixed else mapping.base + symbols.environ


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
