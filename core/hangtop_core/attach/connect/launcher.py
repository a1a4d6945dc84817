"""The protocol of launchers: how the probe is started on one node, and why that failed."""

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
    """The meaning of the end of a connection."""

    state: NodeState
    reason: str
    retry: bool
    fix: Step | None = None

    @property
    def fix_text(self) -> str | None:
        """Return the fix as it is shown."""
        return None if self.fix is None else shown(self.fix).text


class Wave(NamedTuple):
    """A limit that connections share: this many log in at the same time, the others wait."""

    name: str
    at_once: int
    hold_s: float
    """Seconds after which a connection that is still logging in does not delay others any more."""


class ByHand(NamedTuple):
    """How a person reaches a node from here, for the commands that a verdict proposes."""

    shell: tuple[str, ...] | None = None
    """Command that runs a command there, given as one more word; None on this machine."""
    options: tuple[str, ...] = ()
    """Options with which hangtop reaches that node alone."""

    def stored(self) -> dict[str, str | None]:
        """Return both as a node keeps them."""
        shell = None if self.shell is None else stored(self.shell)
        return {"shell": shell, "options": stored(self.options)}


class Launcher(Protocol):
    """Starts the probe on one node, and explains failures."""

    @property
    def node(self) -> str:
        """Return the name of the node, as people know it."""

    @property
    def by_hand(self) -> ByHand:
        """Return how a person reaches the node."""

    def argv(self) -> list[str]:
        """Return the command that runs the probe on its own standard input and output."""

    @property
    def channel(self) -> Channel | None:
        """Return the command that serves several nodes, with this one; None when `argv` is its own.

        This is called before every connection: after a failure the node may get a command of its
        own.
        """

    @property
    def wave(self) -> Wave:
        """Return the limit of simultaneous logins that it shares with others."""

    @property
    def via(self) -> str:
        """Return how the node is reached at present, in a word or two."""

    @property
    def patience(self) -> float:
        """Return the seconds that its command may take to fail, where that is longer than usual."""

    def opening(self) -> bytes:
        """Return the data written to the command first, before the probe can send anything."""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return the meaning of the command's end with ``code`` and ``stderr``."""

    def late(self, stderr: str) -> None:
        """Handle the late output of an earlier command, which may explain the present failure."""

    def shell(self) -> list[str] | None:
        """Return the command that gives a person a shell on the node; None if unknown."""


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
_EXHAUSTED = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def ending_of(closed: Closed, launcher: Launcher, stderr: str, was_ready: bool) -> Ending:
    """Return the meaning of the end of a connection, or of a failed start."""
    if closed.unstarted in _NOT_THERE and launcher.by_hand.shell is None:
        return Ending("no-python", f"cannot start {clean(stderr, 200)}", retry=False)
    if closed.unstarted is not None:
        return _not_started(closed.unstarted, stderr, was_ready)
    return launcher.explain(closed.code, stderr, was_ready)


def _not_started(number: int, text: str, was_ready: bool) -> Ending:
    """Return the meaning of a command that could not be started on this machine.

    A missing program will still be missing in a moment; too many processes, too little memory or
    other refusals of the kernel may pass. ``number`` is an errno, ``text`` names the program and
    the error.
    """
    reason = f"this machine cannot start {clean(text, 200)}"
    if number in _NOT_THERE:
        return Ending("unreachable", reason, False, Advice("install it here, or put it on PATH"))
    fix = None
    if number in _EXHAUSTED:
        fix = Advice(
            "give this shell more here: ulimit -u (processes), -n (open files), -v (memory)"
        )
    return Ending("lost" if was_ready else "unreachable", reason, True, fix)
