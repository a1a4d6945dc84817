"""Read the symbols of a program or library (elf(5)), cached by file.

Only 64-bit little-endian files are read, where torch runs.
"""

from __future__ import annotations

import os
import re
import struct
from stat import S_ISREG
from typing import Dict, List, NamedTuple, Optional, Tuple

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SYMTAB, _DYNSYM, _LOAD, _EXECUTABLE = 2, 11, 1, 2
_MAX_TABLE = 4 << 20
"""Most bytes of a table of symbols or of their names; libc and python3 have some 100 KiB."""
_PAGE = 4096
_MAX_KNOWN = 1024
_ENVIRON = re.compile(rb"(?:(_)?(_))?environ\0")
"""Names of one variable. A linker may let the short ones be ends of the long one (ld -O2)."""
_INTERPRETER = (b"\0Py_BytesMain\0", b"\0Py_RunMain\0")
"""Symbols of a Python interpreter, whatever its file name; programs that embed Python for scripts
(gdb, vim) call `Py_Initialize`."""


class Symbols(NamedTuple):
    """The relevant dynamic symbols of a file."""

    environ: Optional[int] = None
    """Offset of the C library's `environ` from the base of the mapping."""
    is_fixed: bool = False
    """Whether the file is mapped at a fixed place, so that `environ` is an address."""
    is_python: bool = False


_known: Dict[Tuple[int, int, int], Symbols] = {}


def symbols(path: str) -> Symbols:
    """Return the symbols of a file, none if it is no ELF file; raise OSError if unreadable."""
    stat = os.stat(path)
    key = stat.st_dev, stat.st_ino, stat.st_mtime_ns
    if key not in _known:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = _read(path) if S_ISREG(stat.st_mode) else Symbols()
    return _known[key]


def _read(path: str) -> Symbols:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _find(fd)
    except (ValueError, OverflowError, struct.error):
        return Symbols()
    finally:
        os.close(fd)


def _find(fd: int) -> Symbols:
    header = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
    if header[0][:6] != b"\x7fELF\x02\x01" or header[11] != _SECTION.size:
        return Symbols()
    sections = _table(fd, header[6], header[12], _SECTION)
    # A program that is linked statically has no dynamic symbols, and may have the others.
    for section in sorted(sections, key=lambda one: one[1] != _DYNSYM):
        if section[1] in (_DYNSYM, _SYMTAB) and section[6] < len(sections):
            names = _bytes(fd, sections[section[6]])
            value = _environ(_bytes(fd, section, _SYMBOL.size), names)
            value = None if value is None else value - _lowest(fd, header)
            is_python = any(name in names for name in _INTERPRETER)
            return Symbols(value, header[1] == _EXECUTABLE, is_python)
    return Symbols()


def _environ(table: bytes, names: bytes) -> Optional[int]:
    """Return the value of `environ` where the file has it, not where it asks another for it."""
    places = {at for match in _ENVIRON.finditer(names) for at in _starts(match)}
    for name, _, _, section, value, _ in _SYMBOL.iter_unpack(table) if places else ():
        if name in places and section and value:
            return int(value)
    return None


def _starts(match: "re.Match[bytes]") -> Tuple[int, int, int]:
    """Return where a name begins, with and without what may stand before `environ`."""
    plain = match.end() - len(b"environ\0")
    return plain, max(plain - 1, match.start()), match.start()


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
