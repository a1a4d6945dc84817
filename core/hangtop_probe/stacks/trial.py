"""Try ptrace and py-spy on this node, on a process of our own.

A sleeping Python is started and traced by a sibling process: no more related than py-spy is to a
rank, so that Yama, seccomp and capabilities decide as they would for a rank.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, Optional

from . import stacks

if TYPE_CHECKING:
    import subprocess
    import threading

    from ..wire.tools import Tools

FRAME = "waits_to_be_looked_at"
"""The function in which the process sleeps: a stack with it was read correctly."""
_SLEEPER = (
    "import sys, time\n"
    "def %s():\n"
    "    sys.stdout.write('ready\\n')\n"
    "    sys.stdout.flush()\n"
    "    time.sleep(60)\n"
    "%s()\n"
) % (FRAME, FRAME)
# PTRACE_SEIZE stops nothing, and the kernel detaches when the tracer exits (ptrace(2)).
_SEIZE = (
    "import ctypes, sys\n"
    "ptrace = ctypes.CDLL(None, use_errno=True).ptrace\n"
    "ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]\n"
    "ptrace.restype = ctypes.c_long\n"
    "failed = ptrace(0x4206, int(sys.argv[1]), None, None) < 0\n"
    "print(ctypes.get_errno() if failed else 0)\n"
)
_START_S = 10.0
_SECONDS = 10.0


def run(tools: Tools, cancel: threading.Event) -> Dict[str, Any]:
    """Return the results of ptrace and py-spy on a process of our own.

    ``ptrace`` is 0, an errno, or None where that could not be tried; ``py_spy`` holds seconds and
    frames, or the failure in the form of model.Failure.
    """
    try:
        sleeper = tools.start([sys.executable, "-I", "-S", "-c", _SLEEPER])
    except OSError as error:
        return {"why": "no process could be started: %s" % error}
    try:
        if not ready(sleeper, _START_S):
            return {"why": "a Python started on it did not get going in %g s" % _START_S}
        return {
            "ptrace": _seize(tools, sleeper.pid, cancel),
            "py_spy": _look(tools, sleeper.pid, cancel),
        }
    finally:
        tools.end(sleeper)


def ready(sleeper: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Whether a process of our own printed `ready` within ``seconds``."""
    assert sleeper.stdout is not None  # noqa: S101  # it was opened as a pipe
    readable, _, _ = select.select([sleeper.stdout], [], [], seconds)
    return bool(readable) and os.read(sleeper.stdout.fileno(), 16).startswith(b"ready")


def _seize(tools: Tools, pid: int, cancel: threading.Event) -> Optional[int]:
    argv = [sys.executable, "-I", "-S", "-c", _SEIZE, str(pid)]
    try:
        done = tools.run(argv, _SECONDS, cancel)
        return int(done.out) if done.code == 0 else None
    except (OSError, ValueError):
        return None


def _look(tools: Tools, pid: int, cancel: threading.Event) -> Dict[str, Any]:
    began = time.monotonic()
    seen = stacks.sample(tools, pid, "nonblocking", False, _SECONDS, cancel)
    if seen.failure is not None:
        return {"failure": seen.failure}
    names = [row[0] for rows in seen.stacks.values() for row in rows]
    if FRAME not in names:
        text = "py-spy gave a stack that is not the one of the process: %s" % ", ".join(names[:5])
        return {"failure": {"kind": "error", "text": text, "fix": None}}
    return {"took": round(time.monotonic() - began, 3), "frames": len(names)}
