"""The interface of a source of updates: a live session, or a recording.

`hangtop_core.session.session.Session` fits `Source` as it is; tests and recordings bring their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from hangtop_core.collect.requests import Ask
    from hangtop_core.model.updates import Update
    from hangtop_core.state.outputs import Wanted


class Source(Protocol):
    """A source of updates, which also handles requests.

    No method blocks: each request returns a future, and its data comes with a later update.
    """

    @property
    def latest(self) -> Update | None:
        """The newest update; None before the first."""

    @property
    def commands(self) -> Iterable[Any]:
        """Return records of the commands that ran on nodes."""

    def subscribe(
        self, callback: Callable[[Any], None], /, *, unjudged: bool = ...
    ) -> Callable[[], None]:
        """Call back with every update, on the source's own thread; return a function that stops it.

        With `unjudged` also call before a snapshot is diagnosed, where that takes long.
        """

    def sample(
        self, pids: Mapping[str, Sequence[int]] | None = None, *, mode: Any = ...
    ) -> Future[Any]:
        """Take stacks of these processes, or of all ranks."""

    def descriptors(self, node: str, pids: Sequence[int]) -> Future[Any]:
        """Read open descriptors."""

    def recorder(self, node: str, pids: Sequence[int], *, trigger: bool = ...) -> Future[Any]:
        """Read flight recorders; with `trigger` first make ranks with a dump pipe write theirs."""

    def log(self, wanted: Wanted, window: int | None = None) -> Future[Any]:
        """Read what processes have printed."""

    def strace(
        self, node: str, pid: int, seconds: float, on_lines: Callable[[Sequence[str]], None]
    ) -> Future[Any]:
        """Trace system calls; lines arrive while it runs."""

    def holders(self, node: str, pid: int, fd: int) -> Future[Any]:
        """Find the other processes on a node that have a descriptor open."""

    def cancel_strace(self, node: str, pid: int) -> None:
        """End a trace early; its result arrives as usual."""

    def ask(self, node: str, ask: Ask, result: Callable[[Any], Any], /) -> Future[Any]:
        """Make another request; ``result`` converts an answer's end to the future's result."""

    def retry(self, node: str) -> Any:
        """Reconnect to a lost node now."""

    def shell(self, node: str) -> Sequence[str] | None:
        """Return the command for the user's own shell on a node; None where none is known."""

    def note_command(self, node: str, what: str) -> Callable[[str], None]:
        """Log a command of the user on a node; call the result with how it ended."""
