"""Request a core of a running process from a node: first its cost, then the core itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from msgspec import Meta, Struct

from hangtop_core.attach.wire.messages import decode
from hangtop_core.collect.requests import Ask, no_pieces
from hangtop_core.text.clean import Count, Text, clean, duration, size

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

Seconds = Annotated[float, Meta(ge=0, le=1e7)]
T = TypeVar("T")
COST_S = 15.0
"""Seconds for a node to estimate the cost."""
LIMIT_S = 1900.0
"""Seconds for a core: above the probe's own limit; see `hangtop_probe.cores.cores`."""


class Cost(Struct, frozen=True):
    """The cost of a core; all but `free` and `dir` is an estimate."""

    dir: Text
    size: Count
    seconds: Seconds
    """For which the process is stopped."""
    free: Count | None = None
    network: bool = False
    """Whether the directory is on a file server, which may take far longer."""

    @property
    def fits(self) -> bool:
        """Whether the disk has space for it."""
        return self.free is None or self.free > self.size

    @property
    def description(self) -> str:
        """Return a description for people who are about to agree to it."""
        slower = ", longer if the file server is slow" if self.network else ""
        free = f", of {size(self.free)} that are free" if self.free is not None else ""
        return (
            f"It stops the process while gdb writes its memory, about {duration(self.seconds)}"
            f"{slower}; then the process goes on, which is checked. The core takes up to "
            f"{size(self.size)}{free} in {clean(self.dir, 300)}, and holds all that the process "
            "holds, secrets, too. Timeouts of other ranks run on meanwhile."
        )


class Taken(Struct, frozen=True):
    """A core that was taken."""

    path: Text
    size: Count
    seconds: Seconds
    running_again: bool = True

    @property
    def outcome(self) -> str:
        """Return the outcome in words."""
        again = "it runs again" if self.running_again else "it does NOT run again: kill -CONT it"
        path = clean(self.path, 600)
        return f"{size(self.size)} in {path}, in {duration(self.seconds)}; {again}"


class Asking(Protocol):
    """A session, or a stand-in for one."""

    def ask(self, node: str, ask: Ask, result: Callable[[Any], T], /) -> Future[T]:
        """Make a request."""


def cost(session: Asking, node: str, pid: int, directory: str | None = None) -> Future[Cost]:
    """Request the cost of a core; no process is touched, but a read-only session refuses."""
    ask = Ask(
        "core", (pid,), _params(pid, directory), "look what a core would take", no_pieces, COST_S
    )
    return session.ask(node, ask, lambda answer: decode(answer, Cost))


def take(session: Asking, node: str, pid: int, directory: str | None = None) -> Future[Taken]:
    """Take a core; fails with `ReadOnlyError` in a read-only session."""
    params = {**_params(pid, directory), "take": True}
    what = "gdb -p PID: generate-core-file"
    ask = Ask("core", (pid,), params, what, no_pieces, LIMIT_S, pauses=True)
    return session.ask(node, ask, lambda answer: decode(answer, Taken))


def _params(pid: int, directory: str | None) -> dict[str, Any]:
    return {"pid": pid, "dir": directory}
