"""What a launcher is: who starts the probe on one node, and says why that failed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Step, shown, stored

if TYPE_CHECKING:
    from hangtop_core.attach.connect.channel import Channel
    from hangtop_core.attach.connect.engine import Closed
    from hangtop_core.model.snapshot import NodeState


class Ending(NamedTuple):
    """What the end of a connection means."""

    state: NodeState
    reason: str
    retry: bool
    fix: Step | None = None

    @property
    def fix_text(self) -> str | None:
        """The fix as it is shown."""
        return None if self.fix is None else shown(self.fix).text


class Wave(NamedTuple):
    """A limit that connections share: as many log in at the same time, the others wait."""

    name: str
    at_once: int
    hold_s: float
    """Seconds after which one that is still on its way does not hold up others any more."""


class ByHand(NamedTuple):
    """How a person gets to a node from here, for the commands that a verdict proposes."""

    shell: tuple[str, ...] | None = None
    """Runs a command there that is given as one more word; None: it is this machine."""
    options: tuple[str, ...] = ()
    """Options with which hangtop reaches that node alone."""

    def stored(self) -> dict[str, str | None]:
        """Return both as a node keeps them."""
        shell = None if self.shell is None else stored(self.shell)
        return {"shell": shell, "options": stored(self.options)}


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

    def late(self, stderr: str) -> None:
        """Take what an earlier command said at its end: it may tell why the present one fails."""

    def shell(self) -> list[str] | None:
        """Return the command that gives a person a shell on the node; None if none is known."""


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
_EXHAUSTED = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def ending_of(closed: Closed, launcher: Launcher, stderr: str, was_ready: bool) -> Ending:
    """Say what it means that a connection is over, or never began."""
    if closed.unstarted in _NOT_THERE and launcher.by_hand.shell is None:
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
        return Ending("unreachable", reason, False, Advice("install it here, or put it on PATH"))
    fix = None
    if number in _EXHAUSTED:
        fix = Advice(
            "give this shell more here: ulimit -u (processes), -n (open files), -v (memory)"
        )
    return Ending("lost" if was_ready else "unreachable", reason, True, fix)
