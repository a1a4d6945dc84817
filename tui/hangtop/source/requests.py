"""Requests of the app to nodes: each request and its outcome is shown in the message line."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hangtop.source.state import State, Trace
from hangtop.views.common import rank_key
from hangtop_core.analysis.peers import peers, unread
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.cores import take
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.model.snapshot import pids_of
from hangtop_core.state.outputs import wanted
from hangtop_core.text.clean import duration, plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop.source.bridge import Bridge
    from hangtop.source.messages import Answered
    from hangtop.source.source import Source
    from hangtop_core.cores.take import Taken
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot

LOG_NODES = 64
"""Number of nodes up to which the logs of all are read while Logs is open."""


class Teller(Protocol):
    """A callback that shows one line to the user."""

    def __call__(self, text: str, role: str = "") -> None:
        """Show it."""


class Requests:
    """Sends requests through the bridge to the source; never blocks."""

    def __init__(self, source: Source, bridge: Bridge, state: State, tell: Teller) -> None:
        self._source = source
        self._bridge = bridge
        self._state = state
        self._tell = tell
        self.reading: Reading | None = None
        """Progress of reading recorders; None while none are being read."""

    def sample(self, ranks: Sequence[Rank] | None, mode: str = "nonblocking") -> None:
        """Take stacks of these ranks, or of all."""
        pids: dict[str, list[int]] | None = None
        label = "stacks of all ranks"
        if ranks is not None:
            pids = pids_of(ranks)
            word = "stack" if len(ranks) == 1 else "stacks"
            label = f"{word} of {name_ranks([rank.rank for rank in ranks])}"
        if mode == "native":
            label += " with C frames"
        self._tell(f"taking {label}…", "info")
        about = rank_key(ranks[0]) if ranks and mode == "native" else ""
        self._bridge.ask("sample", label, lambda: self._source.sample(pids, mode=mode), about)

    def descriptors(self, rank: Rank, *, quiet: bool) -> None:
        """Read the descriptors of a rank and of its children."""
        kind = "quiet" if quiet else "descriptors"
        label = f"descriptors of {rank.name}"
        pids = [rank.process.pid, *(child.pid for child in rank.children)]
        self._bridge.ask(
            kind, label, lambda: self._source.descriptors(rank.node, pids), rank_key(rank)
        )

    def logs(self, job: Job, chosen: Rank | None, *, quiet: bool) -> None:
        """Read new lines of a job's logs; on many nodes only those of the chosen rank."""
        asked = wanted(job)
        if len(asked) > LOG_NODES:
            node = chosen.node if chosen is not None else None
            asked = [request for request in asked if request.node == node]
        for request in asked:
            kind = "quiet logs" if quiet else "logs"
            self._bridge.ask(kind, f"logs on {request.node}", partial(self._source.log, request))

    def peers(self, snapshot: Snapshot, rank: Rank) -> None:
        """Read, once, descriptors of the ranks on other nodes that a rank's sockets lead to."""
        for node, pids in unread(snapshot, rank, peers(snapshot)).items():
            label = f"who {rank.name} is connected to"
            self._bridge.ask("peers", label, partial(self._source.descriptors, node, pids))

    def recorders(self, *, trigger: bool = False) -> None:
        """Read the flight recorders of all ranks; with `trigger` make ranks dump where possible."""
        job = self._state.job
        pids = job.pids() if job is not None else {}
        if not pids:
            self._tell("there is no rank to ask", "warn")
            return
        label = "dumps of all flight recorders" if trigger else "flight recorders"
        self.reading = Reading(label, len(pids), sum(map(len, pids.values())), trigger)
        self._tell(self.reading.text, "info")
        for node, node_pids in pids.items():
            request = partial(self._source.recorder, node, node_pids, trigger=trigger)
            self._bridge.ask("recorders", f"{label} on {node}", request, node)

    def _take_recorders(self, answer: Answered) -> None:
        """Count an answer, and report the outcome when the last node has answered."""
        reading = self.reading
        if reading is None:
            return
        reading.take(answer)
        if reading.over:
            self.reading = None
        self._tell(reading.text, "warn" if reading.refused else "good" if reading.over else "info")

    def strace(self, rank: Rank, now: float) -> None:
        """Start a trace of a rank."""
        label = f"strace of {rank.name}"
        trace = Trace(rank_key(rank), label, rank.node, rank.process.pid, now)
        self._state.trace = trace
        self._bridge.ask(
            "strace",
            label,
            lambda: self._source.strace(trace.node, trace.pid, trace.seconds, self._bridge.traced),
        )

    def core_cost(self, rank: Rank) -> None:
        """Ask what a core of a rank would cost."""
        label = f"what a core of {rank.name} costs"
        self._tell(f"looking up {label}…", "info")
        request = partial(take.cost, self._source, rank.node, rank.process.pid)
        self._bridge.ask("core cost", label, request, rank_key(rank))

    def core(self, rank: Rank) -> None:
        """Take a core of a rank."""
        label = f"core of {rank.name}"
        self._tell(f"taking the {label}; it stands still meanwhile…", "info")
        request = partial(take.take, self._source, rank.node, rank.process.pid)
        self._bridge.ask("core", label, request, rank_key(rank))

    def holders(self, rank: Rank, fd: int) -> None:
        """Find the processes that have a descriptor open, to be shown when the answer arrives."""
        label = f"fd {fd} of {rank.name}"
        request = partial(self._source.holders, rank.node, rank.process.pid, fd)
        self._bridge.ask("holders", label, request, f"{rank_key(rank)} {fd}")

    def stop_trace(self) -> None:
        """Stop the running trace."""
        trace = self._state.trace
        if trace is not None:
            self._source.cancel_strace(trace.node, trace.pid)
            self._tell("stopping the trace…", "info")

    def retry(self, nodes: Sequence[Node] | None = None) -> list[str]:
        """Reconnect to lost, refused or unreachable nodes, or all such; return their names."""
        newest = self._state.newest
        if nodes is None:
            nodes = newest.snapshot.nodes if newest else ()
        lost = [n.name for n in nodes if n.state not in (*OBSERVED, "connecting")]
        for name in lost:
            self._source.retry(name)
        return lost

    def answered(self, answer: Answered) -> None:
        """Report how a request ended."""
        if answer.kind == "strace":
            self._end_trace(answer)
        if answer.kind == "recorders":
            self._take_recorders(answer)
            return
        if answer.kind in ("quiet", "descriptors"):
            self._state.unread[answer.about] = _why(answer.error) if answer.error else ""
        if answer.error is not None and answer.kind not in ("quiet", "peers", "quiet logs"):
            self._tell(f"{answer.label}: {_why(answer.error)}", "warn")
        elif answer.kind == "sample":
            self._tell(*_sampled(answer))
        elif answer.kind == "core":
            taken: Taken = answer.result
            self._tell(
                f"{answer.label}: {taken.outcome}", "good" if taken.running_again else "warn"
            )
        elif answer.kind == "logs" or answer.kind == "descriptors":
            self._tell(f"{answer.label}: read", "good")

    def _end_trace(self, answer: Answered) -> None:
        trace = self._state.trace
        if trace is None:
            return
        if answer.error is not None:
            trace.ended = f"no trace: {_why(answer.error)}"
            return
        result = answer.result
        text = (
            f"{plural(result.lines, 'line')} in {duration(result.seconds)}, saved in {result.path}"
            f" ({plural(result.files, 'file')}, {size(result.size)})"
        )
        if result.idle_polls:
            text += f", {plural(result.idle_polls, 'poll')} that timed out not listed"
        if result.dropped:
            text += f", {plural(result.dropped, 'line')} lost"
        if result.unsaved is not None:
            text += f"; lines are missing from the files: {result.unsaved}"
        if result.running_again is False:
            text += "; the process does NOT run again: kill -CONT it"
        trace.ended = text
        role = "good" if result.unsaved is None else "warn"
        self._tell(f"strace saved in {result.path}", role)


@dataclass
class Reading:
    """Flight recorders that were requested, node by node."""

    label: str
    nodes: int
    ranks: int
    trigger: bool
    answered: int = 0
    read: int = 0
    refused: str = ""
    """The reason of the first failure."""

    def take(self, answer: Answered) -> None:
        """Count the answer of a node."""
        self.answered += 1
        if answer.error is not None:
            self.refused = self.refused or _why(answer.error)
            return
        for recorder in (answer.result or {}).values():
            if recorder is not None and recorder.failure is None:
                self.read += 1
            elif recorder is not None:
                self.refused = self.refused or recorder.failure.text

    @property
    def over(self) -> bool:
        """Whether all nodes have answered."""
        return self.answered == self.nodes

    @property
    def text(self) -> str:
        """The progress, or the outcome."""
        if not self.over:
            action = "asking for" if self.trigger else "reading"
            return (
                f"{action} {self.label}: {self.answered} of {plural(self.nodes, 'node')} answered…"
            )
        end = f"{self.label}: {self.read} of {plural(self.ranks, 'rank')} read"
        return f"{end}; {self.refused}" if self.refused else end


def _why(error: BaseException) -> str:
    if isinstance(error, CancelledError):
        return "given up"
    text = str(error) or type(error).__name__
    hint = getattr(error, "help", "")
    first = hint.splitlines()[0] if isinstance(hint, str) and hint else ""
    return f"{text}  ({first})" if first else text


def _sampled(answer: Answered) -> tuple[str, str]:
    """Return the outcome of taking stacks, with the reason of the first failure, and its role."""
    results: Sequence[Any] = answer.result or ()
    failures = [result.sample.failure for result in results if result.sample.failure is not None]
    if not failures:
        return f"{answer.label}: {plural(len(results), 'stack')} taken", "good"
    good = len(results) - len(failures)
    return f"{answer.label}: {good} of {len(results)}; {failures[0].text}", "warn"
