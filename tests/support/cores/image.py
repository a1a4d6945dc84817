"""Makes small core files by hand, for what no real process does: a double of the kernel's writing.

x86-64, with the notes and the bit of stack that `hangtop_core.cores.elf` reads.
"""

from __future__ import annotations

import struct
from typing import Any

STACK = 0x7FFC0000
_HEADER = 64
_PROGRAM = 56


def note(kind: int, data: bytes) -> bytes:
    name = b"CORE\0\0\0\0"
    return struct.pack("<III", 5, len(data), kind) + name + data + b"\0" * (-len(data) % 4)


def status(tid: int, number: int = 0, pointer: int = STACK) -> bytes:
    """NT_PRSTATUS of one thread."""
    data = bytearray(336)
    struct.pack_into("<i", data, 0, number)
    struct.pack_into("<h", data, 12, number)
    struct.pack_into("<i", data, 32, tid)
    struct.pack_into("<Q", data, 112 + 19 * 8, pointer)
    return note(1, bytes(data))


def core(
    *,
    number: int = 11,
    code: int = 1,
    detail: bytes = struct.pack("<Q", 0),
    pid: int = 4711,
    threads: int = 2,
    arguments: tuple[str, ...] = ("python3", "train.py"),
    environment: dict[str, str] | None = None,
    files: tuple[tuple[int, int, int, str], ...] = (),
    comm: str = "python3",
    pointer: int = STACK,
    **replaced: Any,
) -> bytes:
    """A core; `replaced` are notes by name that take the place of the right ones."""
    process = bytearray(136)
    struct.pack_into("<I", process, 16, 1000)
    struct.pack_into("<i", process, 24, pid)
    process[40 : 40 + len(comm)] = comm.encode()
    command = " ".join(arguments).encode()[:79]
    process[56 : 56 + len(command)] = command
    values = [f"{name}={value}" for name, value in (environment or {}).items()]
    strings = b"".join(one.encode() + b"\0" for one in ("x86_64", *arguments, *values))
    strings = bytes(16) + strings
    stack = strings + b"/usr/bin/python3\0"
    vector = {25: STACK, 31: STACK + len(strings), 9: 0x1000}
    auxiliary = b"".join(struct.pack("<QQ", *one) for one in vector.items()) + bytes(16)
    table = struct.pack("<QQ", len(files), 1)
    table += b"".join(struct.pack("<QQQ", *one[:3]) for one in files)
    table += b"".join(one[3].encode() + b"\0" for one in files)
    info = struct.pack("<iiii", number, 0, code, 0) + detail + bytes(128 - 16 - len(detail))
    notes = {
        "status": status(pid, number, pointer),
        "process": note(3, bytes(process)),
        "signal": note(0x53494749, info),
        "auxiliary": note(6, auxiliary),
        "mapped": note(0x46494C45, table),
        "more": b"".join(status(pid + at) for at in range(1, threads)),
    }
    notes.update(replaced)
    body = b"".join(notes.values())
    begin = _HEADER + 2 * _PROGRAM
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 4, 62, 1, 0, _HEADER, 0, 0, 64, 56, 2, 64, 0, 0)
    programs = struct.pack("<IIQQQQQQ", 4, 0, begin, 0, 0, len(body), 0, 1)
    programs += struct.pack(
        "<IIQQQQQQ", 1, 6, begin + len(body), STACK, 0, len(stack), len(stack), 1
    )
    return header + programs + body + stack
