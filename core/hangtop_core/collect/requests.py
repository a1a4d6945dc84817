"""Descriptions of the requests to nodes: parameters, deadlines, and where answers go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hangtop_core.attach.wire import messages, reports
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_core.model.descriptors import Openers
from hangtop_core.model.recorder.columns import Unpacker
from hangtop_core.model.recorder.ras import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.attach.connect.link import Link
    from hangtop_core.collect.answers import Answers
    from hangtop_core.model.snapshot import StackSample
    from hangtop_core.state.store import Store

RAS_S = 15.0
"""Seconds for the report of RAS: more than twice its own wait for ranks that do not answer."""
GRACE = 3.0
"""Seconds by which a probe may exceed a deadline before the request is given up."""


MAX_ENTRIES = 4000
"""Maximum entries of one rank's flight recorder per request; torch keeps 2,000 by default."""
MIN_ENTRIES = 256
"""Minimum entries per rank, however many ranks there are."""
ALL_ENTRIES = 4_000_000
"""Maximum entries of all ranks together: 140 MB on the head."""
TRIGGER_S = 45.0
"""Extra seconds where torch writes its dump first: it checks for the request only now and then."""
INJECT_S = 170.0
"""Seconds for one rank: gdb is never ended while it calls a function of the rank."""


class Ask(NamedTuple):
    """One request to one node, and the handler of its pieces."""

    op: str
    pids: tuple[int, ...]
    params: Mapping[str, Any]
    what: str
    take: Callable[[str, Any], None]
    """Handler of node and piece; may raise `BadPieceError`."""
    deadline: float
    """Seconds that the request may take."""
    by_itself: bool = False
    pauses: bool = False


def no_pieces(node: str, raw: object) -> None:
    """Ignore the pieces of a request whose answer is its end alone."""


def opened(end: Any) -> Openers:
    """Return the openers of a descriptor, from the end of the answer to `holders`."""
    return messages.decode(end, Openers)


class Asks:
    """Describes requests whose answers go into a store.

    ``begin_anew`` reconnects to a node, and gets the reason.
    """

    def __init__(
        self,
        store: Store,
        answers: Answers,
        links: Mapping[str, Link],
        begin_anew: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._answers = answers
        self._links = links
        self._begin_anew = begin_anew

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
            if piece.resumed is not None:
                how = "was made to run again" if piece.resumed else "does NOT run again"
                note = f"py-spy left process {piece.pid} stopped; it {how}"
                self._links[node].note(note)
            try:
                sample = self._answers.stacks(node, piece)
            except BadPieceError:
                # The probe never sent it: begin anew with all stacks.
                self._begin_anew(node, "stacks and their names do not fit together")
                raise
            if got is not None:
                got(node, piece.pid, sample)

        option = {"nonblocking": " --nonblocking", "native": " --native"}.get(mode, "")
        # A probe samples as many processes at a time as its node has cores: at least two are
        # assumed.
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
            self._answers.descriptors(node, piece)

        what = "read /proc/PID/fd"
        params = {"pids": list(pids)}
        return Ask("descriptors", tuple(pids), params, what, take, 20.0, by_itself)

    def recorder(
        self,
        node: str,
        pids: Sequence[int],
        *,
        trigger: bool = False,
        inject: bool = False,
        by_itself: bool = False,
    ) -> Ask:
        """Describe a request for flight recorders.

        With ``trigger`` ranks are made to write a dump, through torch's own dump pipe; with
        ``inject`` gdb calls torch in ranks that cannot be read otherwise: each is stopped.
        """
        answers, store = self._answers, self._store
        unpacker = Unpacker(answers.shared)

        def take(node: str, raw: Any) -> None:
            answers.recorder(node, messages.decode(raw, messages.RecorderPiece), unpacker)

        live = store.nodes[node].live if node in store.nodes else {}
        numbers = {str(pid): live[pid].process.rank for pid in pids if pid in live}
        ranks = store.rank_count
        params = {
            "pids": list(pids),
            "ranks": numbers,
            "entries": min(MAX_ENTRIES, max(MIN_ENTRIES, ALL_ENTRIES // max(ranks, 1))),
            "trigger": trigger,
            "inject": inject,
            "news": by_itself,
        }
        what = "ask the flight recorder"
        deadline = 30.0
        if trigger:
            what += "; write one byte to torch's dump pipe"
            deadline += TRIGGER_S
        if inject:
            what += "; gdb: call torch's dump"
            deadline += INJECT_S * len(pids)
        return Ask("recorder", tuple(pids), params, what, take, deadline, by_itself, pauses=inject)

    def holders(self, pid: int, fd: int) -> Ask:
        """Describe a request for the openers of a descriptor; the answer is its end."""
        params = {"pid": pid, "fd": fd}
        what = "compare /proc/*/fd"
        return Ask("holders", (pid,), params, what, no_pieces, 30.0)

    def numerics(self, pids: Sequence[int], *, by_itself: bool = False) -> Ask:
        """Describe a request for non-finite values that ranks have detected."""

        def take(node: str, raw: Any) -> None:
            piece = messages.decode(raw, reports.NumericsPiece)
            self._answers.numerics(node, piece)

        params = {"pids": list(pids)}
        what = "read numerics files"
        return Ask("numerics", tuple(pids), params, what, take, 20.0, by_itself)

    def ras(self, pids: Sequence[int], parts: list[str], *, anyway: bool = False) -> Ask:
        """Describe a request for the report of NCCL's RAS through one of the ranks of a node.

        ``parts`` gets its text; ``anyway`` includes versions that are known to end jobs.
        """
        left = MAX_TEXT

        def take(node: str, raw: Any) -> None:
            nonlocal left
            text = messages.decode(raw, reports.RasPiece).text
            left -= len(text)
            if left < 0:
                raise BadPieceError("a report of RAS without end")
            parts.append(text)

        what = "ask NCCL's RAS" + (", whatever its version" if anyway else "")
        params = {"pids": list(pids), "anyway": anyway, "seconds": RAS_S}
        return Ask("ras", tuple(pids), params, what, take, RAS_S)

    def log(
        self,
        node: str,
        pids: Sequence[int],
        paths: Sequence[str] = (),
        *,
        window: int | None = None,
        by_itself: bool = False,
    ) -> Ask:
        """Describe a request for the output of processes, where it goes to a file."""

        def take(node: str, raw: Any) -> None:
            piece = messages.decode(raw, reports.LogPiece)
            self._answers.log(node, piece)

        params: dict[str, Any] = {"pids": list(pids), "paths": list(paths), "news": by_itself}
        if window is not None:
            params["window"] = window
        else:
            params["since"] = self._store.outputs.since(node)
        return Ask("log", tuple(pids), params, "read the end of log files", take, 20.0, by_itself)
