"""Processes with torch on the nodes, and jobs over some of them, several at the same time."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from hangtop_core.attach.wire.messages import BadPieceError, decode
from hangtop_core.nettest import said
from hangtop_core.nettest.asking import LONG_S, Inbox, Nodes, reason
from hangtop_core.nettest.facts import STEPS, JobRun, Member, Outcome
from hangtop_core.text.clean import clean, how_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

START_S = 180.0
"""Seconds that importing torch may take, from a slow file system."""
GRACE_S = 4.0
"""Seconds by which ranks may exceed their own limit before nothing more is expected of them."""
AFTER_FAILURE_S = 2.0
"""Seconds for the others once one has failed: most fail at once, some wait for ever."""
MAX_LINES = 400
"""Lines that are kept of what the processes of a node print: the last ones."""


class Ranks:
    """All processes with torch of one test. `close` ends them; so does the end of the session."""

    def __init__(self, nodes: Nodes, pythons: Mapping[str, str]) -> None:
        """``pythons``: by node the interpreter that has torch."""
        self._nodes = nodes
        self._pythons = pythons
        self._inbox = Inbox()
        self._alive: dict[tuple[str, str], Future[Any]] = {}
        self._ended: dict[tuple[str, str], str] = {}
        self._jobs = 0
        self.lines: dict[str, deque[str]] = {}

    def start(
        self, wanted: Sequence[tuple[str, str]]
    ) -> tuple[dict[tuple[str, str], said.Torch], dict[str, str]]:
        """Start processes (node, name); return what each says, and by node why one has failed."""
        for node, name in wanted:
            self._start(node, name)
        hellos: dict[tuple[str, str], said.Torch] = {}
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            waiting = [one for one in wanted if one not in hellos and one not in self._ended]
            self._nodes.tell(
                f"importing torch: {len(wanted) - len(waiting)} of {len(wanted)} processes"
            )
            if not waiting:
                break
            item = self._inbox.take(until)
            if item is not None and item[1].hello is not None:
                hellos[item[0]] = item[1].hello
        failed = {
            who[0]: self._ended.get(who, f"torch was not imported in {START_S:g} s")
            for who in wanted
            if who not in hellos
        }
        failed |= {who[0]: clean(one.why, 300) for who, one in hellos.items() if one.why}
        return {who: one for who, one in hellos.items() if not one.why}, failed

    def _start(self, node: str, name: str) -> None:
        who = (node, name)
        params = {
            "do": "start",
            "name": f"rank {name}",
            "python": self._pythons[node],
        }
        lines = self.lines.setdefault(node, deque(maxlen=MAX_LINES))

        def take(piece: said.RankPiece) -> None:
            lines.extend(piece.lines)
            if piece.say is not None:
                self._inbox.put((who, piece.say))

        def end(summary: Any) -> said.RankEnd:
            return decode(summary, said.RankEnd)

        future = self._nodes.start(node, params, said.RankPiece, "run torch", LONG_S, take, end)
        self._ended.pop(who, None)
        self._alive[who] = future
        future.add_done_callback(lambda done: self._over(who, done))

    def _over(self, who: tuple[str, str], future: Future[Any]) -> None:
        """Note, on the session's thread, that a process has ended."""
        error = future.exception()
        why = reason(error) if error is not None else _ending(future.result())
        self._ended[who] = why
        self._inbox.put((who, said.Say(error=why)))

    def run(
        self,
        jobs: Sequence[Sequence[Member]],
        order: Callable[[Member], Mapping[str, Any]],
        limit: float,
        backend: str = "gloo",
    ) -> list[JobRun]:
        """Run jobs at the same time, each over its own members; return how each went.

        ``order`` is what a member is told beyond its rank and the size of its job: its store,
        environment and steps. ``limit``: seconds for each thing ranks wait for. When nobody gave
        a sign of life for longer, what is still going on has failed, and is ended by the next job.
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
        who, say = item
        if say.job is not None:
            if say.job in jobs:
                jobs[say.job].take(who, say)
        elif say.error is not None:
            for job in jobs.values():
                job.gone(who, say.error)

    def _give_up(self, jobs: Sequence[_Running], limit: float, quiet: float) -> None:
        """Give up jobs that stand still; sooner those of which somebody has failed already."""
        for job in jobs:
            if quiet > (AFTER_FAILURE_S if job.failing else limit + GRACE_S):
                for member in job.waiting():
                    job.fail(member, f"no sign of life for {quiet:.0f} s", "stuck")

    def close(self) -> None:
        """End all, and wait until they have."""
        for node, name in self._alive:
            if (node, name) not in self._ended:
                self._nodes.stop(node, f"rank {name}")
        for _ in self._nodes.over(self._alive.values(), 10.0, "ending processes"):
            pass


_How = Literal["failed", "wrong", "stuck", "gone"]


class _Fault(NamedTuple):
    """Why a member of a job failed: an error, a wrong result, silence, or its process's end."""

    step: str
    error: str
    how: _How


class _Running:
    """One job under way."""

    def __init__(self, number: int, members: Sequence[Member]) -> None:
        self.number = number
        self.members = tuple(members)
        self._by_who = {(one.node, one.name): one for one in members}
        self._took: dict[Member, dict[str, float]] = {one: {} for one in members}
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
        return [one for one in self.members if one not in self._done]

    def take(self, who: tuple[str, str], say: said.Say) -> None:
        member = self._by_who.get(who)
        if member is None:
            return
        if say.begin is not None:
            self._step[member] = say.begin if say.begin in STEPS else "?"
        elif say.done:
            self._done.add(member)
        elif say.error is not None:
            # Without a step it is the parent of its process that says so.
            how: _How = "wrong" if say.wrong else "failed" if say.end is not None else "gone"
            self._fault(member, say.error, how)
        elif say.end in STEPS:
            self._took[member][say.end] = say.took or 0.0
            self._value(member, say)

    def _fault(self, member: Member, error: str, how: _How) -> None:
        step = self._step.get(member, "start")
        self._failed.setdefault(member, _Fault(step, clean(error, 600), how))

    def _value(self, member: Member, say: said.Say) -> None:
        try:
            if say.end == "bandwidth":
                self._rates[member] = decode(say.value, said.Rates)
            elif say.end == "numerics":
                self._numerics[member] = decode(say.value, said.Numerics)
        except BadPieceError as error:
            self._fault(member, f"its result cannot be read: {error}", "wrong")

    def gone(self, who: tuple[str, str], why: str) -> None:
        member = self._by_who.get(who)
        if member is not None and member not in self._done:
            self.fail(member, why, "gone")

    def fail(self, member: Member, why: str, how: Literal["stuck", "gone"]) -> None:
        self._done.add(member)
        self._fault(member, why, how)

    def outcomes(self) -> tuple[Outcome, ...]:
        found = []
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
            found.append(made)
        return tuple(found)


def _ending(end: said.RankEnd) -> str:
    last = next((line for line in reversed(end.lines) if line.strip()), "")
    if end.code is None:
        return "its process was ended"
    return clean(f"its process {how_ended(end.code)}" + (f": {last}" if last else ""), 300)
