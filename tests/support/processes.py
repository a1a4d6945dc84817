"""Looking at processes the way /proc shows them, for tests that start real ones."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 180.0
"""Seconds within which even a machine with far too much to do gets there; never waited in vain."""


def environment(pid: int) -> dict[str, str]:
    """Environment at the start of a process; empty when it is gone, a zombie or not ours."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    return {}


def all_pids() -> list[int]:
    """Every process of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def state(pid: int) -> str:
    """The letter of a process's state; X when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return state(pid) not in "ZX"


def parent(pid: int) -> int:
    """The process that has started it, or has taken it on; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def children(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads has started them."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in lists for word in path.read_text().split()]


def sleeps_joined(pid: int) -> bool:
    """Whether a process sleeps and has a process group of gloo.

    Without one it may sleep between two tries to reach its store.
    """
    with contextlib.suppress(OSError):
        names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
        sleeps = Path(f"/proc/{pid}/wchan").read_text() == "hrtimer_nanosleep"
        return sleeps and any("gloo" in name for name in names)
    return False


def command_line(pid: int) -> str:
    """Command line, with blanks between its words."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace")
    return "(gone)"


def with_variable(name: str, value: str, without: str | None = None) -> list[int]:
    """Processes whose environment has this variable, except this one and those with another."""
    wanted, other = f"{name}={value}".encode(), f"{without}=".encode() if without else None
    found = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            spared = other is not None and any(entry.startswith(other) for entry in entries)
            if wanted in entries and not spared and pid != os.getpid():
                found.append(pid)
    return found


def wait_until(condition: Callable[[], bool], limit_s: float = PATIENCE) -> bool:
    """Wait for a condition; whether it came true in time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Held:
    """One thread of a process stopped by ptrace, as if it hung in the kernel; the rest runs."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _ptrace(self, what: int) -> None:
        call = self._libc.ptrace
        call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        assert call(what, self._tid, None, None) == 0, os.strerror(ctypes.get_errno())

    def __enter__(self) -> None:
        self._ptrace(0x4206)  # PTRACE_SEIZE
        self._ptrace(0x4207)  # PTRACE_INTERRUPT
        os.waitpid(self._tid, 0x40000000)  # __WALL

    def __exit__(self, *_: object) -> None:
        self._ptrace(17)  # PTRACE_DETACH
