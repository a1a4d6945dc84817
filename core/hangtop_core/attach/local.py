"""Starting the probe on this machine: the same process and the same wire as on any node."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import hangtop_probe
from hangtop_core.text import clean, how_ended

if TYPE_CHECKING:
    from hangtop_core.attach.channel import Channel
    from hangtop_core.attach.engine import Closed
    from hangtop_core.model import NodeState

RANK_VARIABLES = ("SLURM_PROCID", "RANK", "WORLD_SIZE", "LOCAL_RANK")
"""Taken from the probe and its children: Python with them would be taken for a rank elsewhere."""
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from hangtop_probe.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


class Ending(NamedTuple):
    """What the end of a connection means."""

    state: NodeState
    reason: str
    retry: bool
    fix: str | None = None


class Wave(NamedTuple):
    """A limit that connections share: as many log in at the same time, the others wait."""

    name: str
    at_once: int
    hold_s: float
    """Seconds after which one that is still on its way does not hold up others any more."""


LOCAL = Wave("this machine", 64, 5.0)


class ByHand(NamedTuple):
    """How a person gets to a node from here, for the commands that a verdict proposes."""

    shell: str | None = None
    """Runs a command there that is given as one quoted word; None: it is this machine."""
    options: str = ""
    """Options with which hangtop reaches that node alone."""


class Launcher(Protocol):
    """Knows how to start the probe on one node, and how to read why that failed."""

    @property
    def node(self) -> str:
        """Name of the node, as people know it."""

    @property
    def by_hand(self) -> ByHand:
        """How a person gets there."""

    def argv(self) -> list[str]:
        """Return the command that runs the probe on its own standard input and output."""

    @property
    def channel(self) -> Channel | None:
        """With whom it shares one command that serves them all; None when `argv` is its own.

        Asked before every connection: one that failed may go by itself the next time.
        """

    @property
    def wave(self) -> Wave:
        """With which others it shares a limit of connections that may be opened at once."""

    @property
    def via(self) -> str:
        """What the node is reached by at present, in a word or two."""

    @property
    def patience(self) -> float:
        """Seconds that its command may take to fail, where that is longer than usual."""

    def opening(self) -> bytes:
        """Return what is written to the command first, before the probe can say anything."""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Say what it means that the command ended with ``code`` and ``stderr``."""

    def shell(self) -> list[str] | None:
        """Return the command that gives a person a shell on the node; None if none is known."""


class LocalLauncher:
    """The probe as a child of this process, under the same Python."""

    channel = None
    via = "this machine"
    patience = 0.0

    def __init__(self, node: str | None = None, python: str | None = None) -> None:
        self._node = node or socket.gethostname() or "localhost"
        self._python = python or sys.executable

    @property
    def node(self) -> str:
        """This machine's host name."""
        return self._node

    @property
    def by_hand(self) -> ByHand:
        """Nothing is needed."""
        return ByHand()

    def argv(self) -> list[str]:
        """Return the command; -I keeps the user's PYTHON* settings and folder out of it."""
        # In a batch script of Slurm's, or below mpirun, this process has a rank's variables.
        rank = [word for name in RANK_VARIABLES if name in os.environ for word in ("-u", name)]
        probe = [self._python, "-I", "-c", _BOOT, str(Path(hangtop_probe.__file__).parents[1])]
        return ["env", *rank, *probe] if rank else probe

    @property
    def wave(self) -> Wave:
        """Nothing is logged in to."""
        return LOCAL

    def opening(self) -> bytes:
        """Return nothing: the probe is imported from where hangtop is installed."""
        return b""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Read an exit status of the local probe."""
        last = clean(stderr.strip().rpartition("\n")[2], 300)
        how = "does not end, not even when killed" if code is None else how_ended(code)
        reason = f"the probe {how}" + (f": {last}" if last else "")
        return Ending("lost" if was_ready else "unreachable", reason, retry=True)

    def shell(self) -> list[str]:
        """Return the user's own shell."""
        return [os.environ.get("SHELL") or "/bin/sh"]


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
_EXHAUSTED = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def ending_of(closed: Closed, launcher: Launcher, stderr: str, was_ready: bool) -> Ending:
    """Say what it means that a connection is over, or never began."""
    if closed.unstarted in _NOT_THERE and isinstance(launcher, LocalLauncher):
        return Ending("no-python", f"cannot start {clean(stderr, 200)}", retry=False)
    if closed.unstarted is not None:
        return _not_started(closed.unstarted, stderr, was_ready)
    return launcher.explain(closed.code, stderr, was_ready)


def _not_started(number: int, said: str, was_ready: bool) -> Ending:
    """Say what it means that the command of a connection could not be started on this machine.

    A program that is not there will not be in a moment; too many processes, too little memory or
    whatever else the kernel refuses may well pass. ``number`` is an errno, ``said`` names the
    program and the error.
    """
    reason = f"this machine cannot start {clean(said, 200)}"
    if number in _NOT_THERE:
        return Ending("unreachable", reason, False, "install it here, or put it on PATH")
    fix = None
    if number in _EXHAUSTED:
        fix = "give this shell more here: ulimit -u (processes), -n (open files), -v (memory)"
    return Ending("lost" if was_ready else "unreachable", reason, True, fix)


def is_here(name: str) -> bool:
    """Whether a node is this machine, going by its name."""
    own = socket.gethostname()
    return name in ("localhost", own, own.partition(".")[0])


def boot_id() -> str | None:
    """Return the kernel's id of this boot: equal ids mean one machine and one clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None
