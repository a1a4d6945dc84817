"""Processes with torch on the nodes, and jobs over some of them, several at the same time."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from hangtop_core.attach.wire.messages import BadPieceError, decode
from hangtop_core.nettest import answers
from hangtop_core.nettest.asking import LONG_S, Inbox, Nodes, reason
from hangtop_core.nettest.facts import STEPS, JobRun, Member, Outcome
from hangtop_core.text.clean import clean, how_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

START_S = 180.0
"""Seconds for the import of torch, from a slow file system."""
GRACE_S = 4.0
"""Seconds by which ranks may exceed their own limit before they are given up."""
AFTER_FAILURE_S = 2.0
"""Seconds for the others once one has failed: most fail at once, some wait for ever."""
MAX_LINES = 400
"""Maximum number of lines that are kept of a node's processes: the last ones."""


class Ranks:
    """All processes with torch of one test. `close` ends them; so does the end of the session."""

    def __init__(self, nodes: Nodes, pythons: Mapping[str, str]) -> None:
        """Use ``pythons``, by node the interpreter with torch."""
        self._nodes = nodes
        self._pythons = pythons
        self._inbox = Inbox()
        self._alive: dict[tuple[str, str], Future[Any]] = {}
        self._ended: dict[tuple[str, str], str] = {}
        self._jobs = 0
        self.lines: dict[str, deque[str]] = {}

    def start(
        self, wanted: Sequence[tuple[str, str]]
    ) -> tuple[dict[tuple[str, str], answers.Torch], dict[str, str]]:
        """Start processes (node, name); return each first message, and failures by node."""
        for node, name in wanted:
            self._start(node, name)
        hellos: dict[tuple[str, str], answers.Torch] = {}
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            waiting = [
                process
                for process in wanted
                if process not in hellos and process not in self._ended
            ]
            self._nodes.tell(
                f"importing torch: {len(wanted) - len(waiting)} of {len(wanted)} processes"
            )
            if not waiting:
                break
            item = self._inbox.take(until)
            if item is not None and item[1].hello is not None:
                hellos[item[0]] = item[1].hello
        failed = {
            process[0]: self._ended.get(process, f"torch was not imported in {START_S:g} s")
            for process in wanted
            if process not in hellos
        }
        failed |= {
            process[0]: clean(hello.why, 300) for process, hello in hellos.items() if hello.why
        }
        return {process: hello for process, hello in hellos.items() if not hello.why}, failed

    def _start(self, node: str, name: str) -> None:
        process = (node, name)
        params = {
            "do": "start",
            "name": f"rank {name}",
            "python": self._pythons[node],
        }
        lines = self.lines.setdefault(node, deque(maxlen=MAX_LINES))

        def take(piece: answers.RankPiece) -> None:
            lines.extend(piece.lines)
            if piece.say is not None:
                self._inbox.put((process, piece.say))

        def end(summary: Any) -> answers.RankEnd:
            return decode(summary, answers.RankEnd)

        future = self._nodes.start(node, params, answers.RankPiece, "run torch", LONG_S, take, end)
        self._ended.pop(process, None)
        self._alive[process] = future
        future.add_done_callback(lambda done: self._over(process, done))

    def _over(self, process: tuple[str, str], future: Future[Any]) -> None:
        """Note, on the session's thread, that a process has ended."""
        error = future.exception()
        why = reason(error) if error is not None else _ending(future.result())
        self._ended[process] = why
        self._inbox.put((process, answers.Say(error=why)))

    def run(
        self,
        jobs: Sequence[Sequence[Member]],
        order: Callable[[Member], Mapping[str, Any]],
        limit: float,
        backend: str = "gloo",
    ) -> list[JobRun]:
        """Run jobs at the same time, each over its own members; return their results.

        ``order`` returns a member's options beyond its rank and the size of its job: its store,
        environment and steps. ``limit``: seconds for each wait of the ranks. After a longer silence
        of all, the jobs still running have failed; the next job ends them.
        """
        under_way = [_Running(self._number(), members) for members in jobs]
        sent: list[tuple[_Running, Member, Future[Any]]] = []
        for job in under_way:
            for rank, member in enumerate(job.members):
                params = {
                    "id": job.number,
                    "rank": rank,
                    "world": len(job.members),
                    "limit": limit,
                    "backend": backend,
                    "device": member.device,
                    **order(member),
                }
                sent.append((job, member, self._tell(member, params)))
        by_number = {job.number: job for job in under_way}
        quiet_since = time.monotonic()
        while not all(job.over for job in under_way):
            for job, member, future in sent:
                if future.done() and (error := future.exception()) is not None:
                    job.fail(member, reason(error), "gone")
            item = self._inbox.take(time.monotonic() + 1.0)
            if item is not None:
                quiet_since = time.monotonic()
                self._hand_on(item, by_number)
            else:
                self._give_up(under_way, limit, time.monotonic() - quiet_since)
        return [JobRun(backend, job.outcomes()) for job in under_way]

    def _number(self) -> int:
        self._jobs += 1
        return self._jobs

    def _tell(self, member: Member, order: Mapping[str, Any]) -> Future[Any]:
        params = {"do": "job", "name": f"rank {member.name}", "job": order}
        return self._nodes.start(
            member.node, params, object, "join a small job", 20.0, lambda _: None
        )

    def _hand_on(self, item: Any, jobs: Mapping[int, _Running]) -> None:
        process, say = item
        if say.job is not None:
            if say.job in jobs:
                jobs[say.job].take(process, say)
        elif say.error is not None:
            for job in jobs.values():
                job.gone(process, say.error)

    def _give_up(self, jobs: Sequence[_Running], limit: float, quiet: float) -> None:
        """Give up stalled jobs; sooner those with a failed member."""
        for job in jobs:
            if quiet > (AFTER_FAILURE_S if job.failing else limit + GRACE_S):
                for member in job.waiting():
                    job.fail(member, f"no sign of life for {quiet:.0f} s", "stuck")

    def close(self) -> None:
        """End all processes, and wait until they have ended."""
        for node, name in self._alive:
            if (node, name) not in self._ended:
                self._nodes.stop(node, f"rank {name}")
        for _ in self._nodes.over(self._alive.values(), 10.0, "ending processes"):
            pass


_How = Literal["failed", "wrong", "stuck", "gone"]


class _Fault(NamedTuple):
    """The failure of a member of a job: an error, a wrong result, silence, or its process's end."""

    step: str
    error: str
    how: _How


class _Running:
    """A running job."""

    def __init__(self, number: int, members: Sequence[Member]) -> None:
        self.number = number
        self.members = tuple(members)
        self._by_who = {(member.node, member.name): member for member in members}
        self._took: dict[Member, dict[str, float]] = {member: {} for member in members}
        self._step: dict[Member, str] = {}
        self._failed: dict[Member, _Fault] = {}
        self._rates: dict[Member, tuple[tuple[int, int], ...]] = {}
        self._numerics: dict[Member, dict[str, tuple[str, ...]]] = {}
        self._done: set[Member] = set()

    @property
    def over(self) -> bool:
        return not self.waiting()

    @property
    def failing(self) -> bool:
        return bool(self._failed)

    def waiting(self) -> list[Member]:
        return [member for member in self.members if member not in self._done]

    def take(self, process: tuple[str, str], say: answers.Say) -> None:
        member = self._by_who.get(process)
        if member is None:
            return
        if say.begin is not None:
            self._step[member] = say.begin if say.begin in STEPS else "?"
        elif say.done:
            self._done.add(member)
        elif say.error is not None:
            # Without a step, the parent of its process reports the error.
            how: _How = "wrong" if say.wrong else "failed" if say.end is not None else "gone"
            self._fault(member, say.error, how)
        elif say.end in STEPS:
            self._took[member][say.end] = say.took or 0.0
            self._value(member, say)

    def _fault(self, member: Member, error: str, how: _How) -> None:
        step = self._step.get(member, "start")
        self._failed.setdefault(member, _Fault(step, clean(error, 600), how))

    def _value(self, member: Member, say: answers.Say) -> None:
        try:
            if say.end == "bandwidth":
                self._rates[member] = decode(say.value, answers.Rates)
            elif say.end == "numerics":
                self._numerics[member] = decode(say.value, answers.Numerics)
        except BadPieceError as error:
            self._fault(member, f"its result cannot be read: {error}", "wrong")

    def gone(self, process: tuple[str, str], why: str) -> None:
        member = self._by_who.get(process)
        if member is not None and member not in self._done:
            self.fail(member, why, "gone")

    def fail(self, member: Member, why: str, how: Literal["stuck", "gone"]) -> None:
        self._done.add(member)
        self._fault(member, why, how)

    def outcomes(self) -> tuple[Outcome, ...]:
        outcomes = []
        for member in self.members:
            fault = self._failed.get(member)
            made = Outcome(
                member,
                self._took[member],
                rates=self._rates.get(member, ()),
                numerics=self._numerics.get(member, {}),
            )
            if fault is not None:
                made = replace(
                    made,
                    step=fault.step,
                    error=fault.error,
                    wrong=fault.how == "wrong",
                    stuck=fault.how == "stuck",
                    gone=fault.how == "gone",
                )
            outcomes.append(made)
        return tuple(outcomes)


def _ending(end: answers.RankEnd) -> str:
    last = next((line for line in reversed(end.lines) if line.strip()), "")
    if end.code is None:
        return "its process was ended"
    return clean(f"its process {how_ended(end.code)}" + (f": {last}" if last else ""), 300)
