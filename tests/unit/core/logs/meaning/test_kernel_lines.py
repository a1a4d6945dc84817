"""Known lines of the kernel log; their wording is that of kernels, their numbers are not."""

from __future__ import annotations

import pytest

from hangtop_core.logs.meaning.kernel_lines import Known, read
from hangtop_core.model.node.facts import KernelLine


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (
            "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:2kB",
            Known("oom", 4711, "python3"),
        ),
        (
            "Memory cgroup out of memory: Killed process 12 (pt main) total-vm:1kB",
            Known("oom", 12, "pt main"),
        ),
        (
            "python3[99]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6[1+2]",
            Known("fault", 99, "python3"),
        ),
        (
            "traps: python3[98] general protection fault ip:7f sp:7f error:0 in a.so[1+2]",
            Known("fault", 98, "python3"),
        ),
        (
            "traps: python[97] trap invalid opcode ip:7f sp:7f error:0 in a.so[1+2]",
            Known("fault", 97, "python"),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
            Known("xid", None, "<unknown>", "0000:3b:00", 79),
        ),
        (
            "NVRM: Xid (PCI:0000:18:00): 31, pid=1234, name=python3, Ch 00000008",
            Known("xid", 1234, "python3", "0000:18:00", 31),
        ),
        (
            "INFO: task python3:551 blocked for more than 120 seconds.",
            Known("hung-task", 551, "python3"),
        ),
        ("usb 1-1: new device", None),
        ("", None),
    ],
)
def test_lines(text: str, known: Known | None) -> None:
    assert read(KernelLine(1.0, text)) == known
