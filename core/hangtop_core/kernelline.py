"""Lines of a node's kernel log, and what the known ones say.

Their wording is that of Linux 4.18 to 6.18: mm/oom_kill.c, arch/*/mm/fault.c,
arch/x86/kernel/traps.c, kernel/hung_task.c; and of NVIDIA's driver (`NVRM: Xid`).
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from hangtop_core.text import Text

Kind = Literal["oom", "fault", "xid", "hung-task"]

_KNOWN: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "oom",
        re.compile(r"[Oo]ut of memory.*Killed process (?P<pid>\d{1,10}) \((?P<comm>[^)]*)\)"),
    ),
    (
        "fault",
        re.compile(
            r"^(?:traps: )?(?P<comm>.{1,16})\[(?P<pid>\d{1,10})\]:? "
            r"(?:segfault at|general protection|trap |unhandled |bad frame)"
        ),
    ),
    (
        "xid",
        re.compile(
            r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]{4,20})\): (?P<number>\d{1,4})"
            r"(?:, pid='?(?P<pid>\d{1,10}))?(?:.*?name=(?P<comm>[^,]{1,32}))?"
        ),
    ),
    (
        "hung-task",
        re.compile(r"task (?P<comm>.{1,32}):(?P<pid>\d{1,10}) blocked for more than \d+ seconds"),
    ),
)


class KernelLine(Struct, frozen=True, gc=False, array_like=True):
    """One line, and when it was written."""

    at: float
    text: Text


class Known(Struct, frozen=True, gc=False):
    """What a known line says."""

    kind: Kind
    pid: int | None
    """As the kernel counts, outside of all containers."""
    comm: str
    device: str = ""
    """PCI address of a GPU."""
    number: int | None = None
    """Of an Xid."""


def read(line: KernelLine) -> Known | None:
    """What a line says, if it is one that we know."""
    for kind, pattern in _KNOWN:
        met = pattern.search(line.text)
        if met is not None:
            told = met.groupdict()
            pid, number = told.get("pid"), told.get("number")
            return Known(
                kind,
                int(pid) if pid else None,
                told.get("comm") or "",
                told.get("device") or "",
                int(number) if number else None,
            )
    return None
