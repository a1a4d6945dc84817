"""Starting the probe on this machine: the same process and the same wire as on any node."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import hangtop_probe
from hangtop_core.text import clean

if TYPE_CHECKING:
    from hangtop_core.attach.router import Channel
    from hangtop_core.model import NodeState

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


class Launcher(Protocol):
    """Knows how to start the probe on one node, and how to read why that failed."""

    @property
    def node(self) -> str:
        """Name of the node, as people know it."""

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

    def opening(self) -> bytes:
        """Return what is written to the command first, before the probe can say anything."""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Say what it means that the command ended with ``code`` and ``stderr``."""


class LocalLauncher:
    """The probe as a child of this process, under the same Python."""

    channel = None

    def __init__(self, node: str | None = None, python: str | None = None) -> None:
        self._node = node or socket.gethostname() or "localhost"
        self._python = python or sys.executable

    @property
    def node(self) -> str:
        """This machine's host name."""
        return self._node

    def argv(self) -> list[str]:
        """Return the command; -I keeps the user's PYTHON* settings and folder out of it."""
        return [self._python, "-I", "-c", _BOOT, str(Path(hangtop_probe.__file__).parents[1])]

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
        if code == 127 and not was_ready:
            return Ending("no-python", f"cannot start {self._python}: {last}", retry=False)
        how = _ended(code)
        reason = f"the probe {how}" + (f": {last}" if last else "")
        return Ending("lost" if was_ready else "unreachable", reason, retry=True)


def _ended(code: int | None) -> str:
    if code is None:
        return "does not end, not even when killed"
    if code >= 0:
        return f"exited with status {code}"
    return f"was killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 99`` when there is no such name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def boot_id() -> str | None:
    """Return the kernel's id of this boot: equal ids mean one machine and one clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None
