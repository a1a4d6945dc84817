"""Protocols of a command that serves many nodes at once, run by the `router`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.attach.connect.timing import Timing


class Part(NamedTuple):
    """The meaning of one line of a shared child."""

    node: str
    line: bytes | None = None
    """A line of this node; from standard error, a reason should its connection end."""
    over: bool = False
    """Whether this node's part of the command has ended."""
    code: int | None = None
    """Its exit status, where known."""


class Shared(Protocol):
    """One run of a shared command: for some nodes, from its start to its end."""

    @property
    def argv(self) -> list[str]:
        """Return the command."""

    @property
    def opening(self) -> bytes:
        """Return the data that are written to the command first, as they are."""

    def output_part(self, line: bytes) -> Part | None:
        """Return the node's part in a line of standard output; None for no node."""

    def error_part(self, line: bytes) -> Part | None:
        """Return the node's part in a line of standard error; None for all nodes."""

    def frame(self, nodes: Sequence[str], data: bytes | None) -> bytes:
        """Return the data to write to the command so that ``data`` reaches only these nodes.

        None for ``data`` is the end of their input.
        """


class Order(NamedTuple):
    """A command of its own that takes requests to nodes, and returns the answers."""

    argv: list[str]
    requests: Mapping[str, Sequence[int]]
    """Ids of the requests by node."""


class Orders(NamedTuple):
    """How data written to nodes without an input are delivered."""

    commands: Sequence[Order]
    answers: Sequence[tuple[str, bytes]]
    """Lines that are answers already, with their nodes."""


@runtime_checkable
class Pushed(Shared, Protocol):
    """A shared command without input: data written to nodes need further commands.

    It ends in order on a SIGINT.
    """

    def orders(self, writes: Sequence[tuple[str, bytes | None]]) -> Orders:
        """Return how data written to nodes are delivered."""

    def refusal(self, request: int, code: int | None, reason: bytes) -> bytes:
        """Return the answer to a request whose command has ended, in case there was none."""


class Action(NamedTuple):
    """Work for a shared command, beside the data written to its nodes."""

    write: bytes
    """Data to write to the command at once, as they are."""
    argv: list[str] | None
    """A command to start beside it."""
    seconds: float
    """Seconds that the command may take."""
    what: str
    """Description of the command, for the log of commands."""
    outcomes: Sequence[str]
    """How it ended, or why it is not used, for the log of commands."""


@runtime_checkable
class Carrying(Shared, Protocol):
    """A shared command that transfers large data to its nodes outside its input."""

    def waits(self, node: str, data: bytes | None) -> bool:
        """Return whether ``data`` must not be framed for this node yet."""

    def act(self, mono: float) -> Action:
        """Return the work that is due at this time of the monotonic clock."""

    def acted(self, code: int | None, stderr: str) -> list[bytes]:
        """Handle the end of the command that `act` returned.

        Return complaints about nodes that would block this run, which is to be ended then.
        """


class Channel(Protocol):
    """A command that can serve many nodes. Launchers that return the same object share it."""

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes that may use it: once all of them have, the run begins."""

    @property
    def timing(self) -> Timing | None:
        """Return special waits of it; None for those of any connection."""

    def begin(self, nodes: Sequence[str]) -> Shared:
        """Prepare a run of it for these nodes."""
