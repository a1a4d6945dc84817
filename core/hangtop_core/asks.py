"""The requests that can be made of a node: what is sent, in how much time, and where answers go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hangtop_core.attach import messages
from hangtop_core.attach.messages import BadPieceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.collector import Collector
    from hangtop_core.model import StackSample

GRACE = 3.0
"""Seconds by which a probe may exceed a deadline before it is given up on."""


class Ask(NamedTuple):
    """One request to one node, and what becomes of its pieces."""

    op: str
    pids: tuple[int, ...]
    params: Mapping[str, Any]
    what: str
    take: Callable[[str, Any], None]
    """Gets node and piece; may raise `BadPieceError`."""
    deadline: float
    by_itself: bool = False
    pauses: bool = False


class Asks:
    """Describes requests whose answers go into a collector's store."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def stacks(
        self,
        pids: Sequence[int],
        mode: str = "nonblocking",
        want_locals: bool = False,
        deadline: float = 10.0,
        *,
        by_itself: bool = False,
        got: Callable[[str, int, StackSample], None] | None = None,
    ) -> Ask:
        """Describe a request for stacks; ``got`` gets every sample."""

        def take(node: str, raw: Any) -> None:
            piece = messages.decode(raw, messages.StackPiece)
            try:
                sample = self._collector.answers.stacks(node, piece)
            except BadPieceError:
                # It was never told, whatever the probe believes: begin anew with all of them.
                self._collector.begin_anew(node, "stacks and their names do not fit together")
                raise
            if got is not None:
                got(node, piece.pid, sample)

        option = {"nonblocking": " --nonblocking", "native": " --native"}.get(mode, "")
        # As many at a time as the node has cores, so the whole takes longer than one deadline.
        at_once = 1 if mode == "native" else 2
        rounds = max(1, -(-len(pids) // at_once))
        return Ask(
            "stacks",
            tuple(pids),
            {"pids": list(pids), "mode": mode, "locals": want_locals, "deadline": deadline},
            f"py-spy dump{option}{' --locals' if want_locals else ''}",
            take,
            (deadline + GRACE) * rounds,
            by_itself,
            pauses=mode != "nonblocking",
        )

    def descriptors(self, pids: Sequence[int], *, by_itself: bool = False) -> Ask:
        """Describe a request for descriptor tables."""

        def take(node: str, raw: Any) -> None:
            piece = messages.decode(raw, messages.DescriptorPiece)
            self._collector.answers.descriptors(node, piece)

        what = "read /proc/PID/fd"
        params = {"pids": list(pids)}
        return Ask("descriptors", tuple(pids), params, what, take, 20.0, by_itself)

    def recorder(self, pids: Sequence[int], *, by_itself: bool = False) -> Ask:
        """Describe a request for flight recorders."""

        def take(node: str, raw: Any) -> None:
            piece = messages.decode(raw, messages.RecorderPiece)
            self._collector.answers.recorder(node, piece)

        what = "ask the flight recorder"
        params = {"pids": list(pids)}
        return Ask("recorder", tuple(pids), params, what, take, 20.0, by_itself)

    def log(
        self,
        node: str,
        pids: Sequence[int],
        paths: Sequence[str] = (),
        *,
        window: int | None = None,
        by_itself: bool = False,
    ) -> Ask:
        """Describe a request for what processes have printed, where that goes to a file."""

        def take(node: str, raw: Any) -> None:
            piece = messages.decode(raw, messages.LogPiece)
            self._collector.answers.log(node, piece)

        params: dict[str, Any] = {"pids": list(pids), "paths": list(paths)}
        if window is not None:
            params["window"] = window
        else:
            params["since"] = self._collector.store.outputs.since(node)
        return Ask("log", tuple(pids), params, "read the end of log files", take, 20.0, by_itself)
