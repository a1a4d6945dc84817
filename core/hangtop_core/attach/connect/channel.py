"""What a command looks like that serves many nodes at once, for the `router` that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.attach.connect.timing import Timing


class Part(NamedTuple):
    """What one line of a shared child is about."""

    node: str
    line: bytes | None = None
    """A line of this node; of standard error, a reason should its connection end."""
    over: bool = False
    """This node's part of the command has ended."""
    code: int | None = None
    """With which exit status, where that is known."""


class Shared(Protocol):
    """One run of a shared command: for some nodes, from its start to its end."""

    @property
    def argv(self) -> list[str]:
        """The command."""

    @property
    def opening(self) -> bytes:
        """What is written to the command before anything else, as it is."""

    def said(self, line: bytes) -> Part | None:
        """Say whose a line of standard output is; None for nobody's."""

    def complained(self, line: bytes) -> Part | None:
        """Say whom a line of standard error is about; None when about all of them."""

    def frame(self, nodes: Sequence[str], data: bytes | None) -> bytes:
        """Return what is written to the command so that ``data`` reaches these nodes only.

        None for ``data`` is the end of their input.
        """


class Order(NamedTuple):
    """A command of its own that takes requests to nodes, and brings the answers back."""

    argv: list[str]
    requests: Mapping[str, Sequence[int]]
    """Ids of the requests by node."""


class Orders(NamedTuple):
    """What becomes of what was written to nodes that nothing can be sent to."""

    commands: Sequence[Order]
    answers: Sequence[tuple[str, bytes]]
    """Lines that are answers already, with their nodes."""


@runtime_checkable
class Pushed(Shared, Protocol):
    """A shared command that has no input: what is written to nodes needs commands beside it.

    It ends in order on a SIGINT.
    """

    def orders(self, writes: Sequence[tuple[str, bytes | None]]) -> Orders:
        """Say how to get there what was written to nodes."""

    def refusal(self, request: int, code: int | None, reason: bytes) -> bytes:
        """Return the answer to a request whose command has ended, in case there was none."""


class Action(NamedTuple):
    """What is to be done for a shared command, beside what is written to its nodes."""

    write: bytes
    """To be written to the command at once, as it is."""
    argv: list[str] | None
    """A command to be started beside it."""
    seconds: float
    """How long that may take."""
    what: str
    """What it does, for the log of commands."""
    said: Sequence[str]
    """How it ended, or why it is not used, for that log."""


@runtime_checkable
class Carrying(Shared, Protocol):
    """A shared command that gets what is large to its nodes by another way than its input."""

    def waits(self, node: str, data: bytes | None) -> bool:
        """Whether ``data`` must not be framed for this node yet."""

    def act(self, mono: float) -> Action:
        """Return what is to be done at this time of the monotonic clock."""

    def acted(self, code: int | None, stderr: str) -> list[bytes]:
        """Take the end of the command that `act` returned.

        Return complaints for which this run is to be ended, about nodes that would hold it up.
        """


class Channel(Protocol):
    """A command that can serve many nodes. Launchers that name the same object share it."""

    @property
    def nodes(self) -> frozenset[str]:
        """Everyone who may ask for it: when all of them have, nobody else is waited for."""

    @property
    def timing(self) -> Timing | None:
        """Waits that are special to it; None for those of any connection."""

    def begin(self, nodes: Sequence[str]) -> Shared:
        """Prepare a run of it for these nodes."""
