"""Names of fixes for data that cannot be read here. The head has their texts.

A node must not choose a command that people are shown: the probe sends one of these names, with at
most one argument after a blank. See `hangtop_core.text.fixes`.
"""

from __future__ import annotations

SUDO = "sudo"
AS_USER = "as-user"
"""With the name of the user the process belongs to."""
CONTAINER = "container-ptrace"
OUTSIDE = "outside-container"
YAMA = "yama"
YAMA_RESTART = "yama-restart"
PY_SPY = "py-spy"
PY_SPY_NEWER = "py-spy-newer"
STRACE = "strace"
GDB = "gdb"
NONBLOCKING = "nonblocking"
TRACED = "traced"
VIA_SSH = "via-ssh"
DMESG = "dmesg"
INSIDE = "inside-container"
RAS_SAFE = "ras-safe"
RAS_ENABLE = "ras-enable"
RAS_ADDR = "ras-addr"
RAS_LOG = "ras-log"

ALL = frozenset(
    {SUDO, AS_USER, CONTAINER, OUTSIDE, YAMA, YAMA_RESTART, PY_SPY, PY_SPY_NEWER, STRACE, GDB}
    | {NONBLOCKING, TRACED, VIA_SSH, DMESG, INSIDE, RAS_SAFE, RAS_ENABLE, RAS_ADDR, RAS_LOG}
)


def as_user(name: str) -> str:
    """Return the fix for what belongs to another user."""
    return "%s %s" % (AS_USER, name)
