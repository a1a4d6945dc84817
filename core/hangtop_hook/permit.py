"""Letting the user's own tools look into a process, and stacks on a signal.

Where Linux's Yama is set to 1, only ancestors of a process may trace it, so that py-spy of the same
user may not. PR_SET_PTRACER with "any" (prctl(2)) lifts that rule for this process: what remains is
Linux's ordinary one, the same user or root. Nothing is done where Yama is off, and nothing can be
where it is set to 2 or 3.
"""

from __future__ import annotations

import os

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
SIGNAL_OFFSET = 7
"""SIGRTMIN+7: no known program uses it, unlike SIGUSR1 and SIGUSR2, which warn jobs."""
_PR_SET_PTRACER = 0x59616D61


def yama_scope(path: str) -> int:
    """Return Yama's setting, 0 where there is no Yama."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def let_own_tools_look(path: str = YAMA) -> bool:
    """Allow tracing by processes of the same user, here and in children that are forked."""
    if yama_scope(path) != 1:
        return False
    set_ptracer()
    os.register_at_fork(after_in_child=set_ptracer)
    return True


def set_ptracer() -> int:
    """Call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); return 0 when it worked."""
    import ctypes

    anybody = ctypes.c_ulong(-1)
    result: int = ctypes.CDLL(None).prctl(_PR_SET_PTRACER, anybody, 0, 0, 0)
    return result


def dump_on_signal(directory: str, number: int) -> bool:
    """Let SIGRTMIN+7 append the stacks of all threads to a file, also while the GIL is held.

    A program that uses this signal itself replaces this handler.
    """
    import faulthandler
    import signal

    wanted = signal.SIGRTMIN + SIGNAL_OFFSET
    stacks = os.path.join(directory, "stacks")
    if not os.path.isdir(stacks) or is_taken(wanted):
        return False
    name = "rank%d-%s-%d.txt" % (number, os.uname().nodename.split(".")[0], os.getpid())
    file = os.open(os.path.join(stacks, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(wanted, file, all_threads=True, chain=False)
    return True


def is_taken(number: int) -> bool:
    """Return whether this process catches or ignores a signal, in Python or in a library."""
    with open("/proc/self/status", errors="replace") as file:
        masks = dict(line.split(":\t", 1) for line in file if line.startswith(("SigCgt", "SigIgn")))
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())
