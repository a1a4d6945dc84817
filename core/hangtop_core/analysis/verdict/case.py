"""The case: everything rules ask about a job, worked out once."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop_core.analysis.activity import Reader
from hangtop_core.analysis.attempts import logs_of
from hangtop_core.analysis.flight.live import in_flight, picture
from hangtop_core.analysis.gpus import Slot, Slots
from hangtop_core.analysis.launch import Contradiction, contradictions
from hangtop_core.analysis.layout import Seat, seats
from hangtop_core.analysis.native import called
from hangtop_core.analysis.peers import End, Peer, peers
from hangtop_core.analysis.progress import Progress, judge
from hangtop_core.analysis.ras import Report, report
from hangtop_core.analysis.standing import GONE, Watcher, left_at
from hangtop_core.analysis.steptimes import StepTimes, step_times
from hangtop_core.analysis.verdict.awaitedthread import FOR_THREADS, with_helper
from hangtop_core.analysis.verdict.base import Hit, Subject
from hangtop_core.analysis.verdict.busyloops import left_in_loops
from hangtop_core.analysis.verdict.callers import stack_key
from hangtop_core.analysis.verdict.conditional import Condition, under_condition
from hangtop_core.analysis.verdict.handles import PASSING, passes
from hangtop_core.analysis.verdict.naming import name_ranks, name_waiters
from hangtop_core.analysis.verdict.owners import Owners
from hangtop_core.analysis.verdict.p2pwaits import Knot, knot
from hangtop_core.analysis.verdict.presumed import with_waits
from hangtop_core.analysis.verdict.recorderfacts import by_recorders, of_hang
from hangtop_core.analysis.verdict.said import Said, said
from hangtop_core.analysis.verdict.servers import Serving, serving
from hangtop_core.analysis.verdict.storetaken import taken
from hangtop_core.analysis.verdict.uneven import left_early, uneven
from hangtop_core.analysis.verdict.waitclasses import Classes, by_place, classes
from hangtop_core.analysis.waiters import Waiters
from hangtop_core.analysis.xids import Event, events
from hangtop_core.diagnosis import HANG_AFTER_S
from hangtop_core.model.node.states import AWAY
from hangtop_core.model.numerics import in_order
from hangtop_core.scheduling.ui_priority import SCREENS
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from hangtop_core.analysis.attempts import Log
    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.diagnosis import Verdict
    from hangtop_core.model.node.hardware import Gpu
    from hangtop_core.model.numerics import Numerics
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot


class Case:
    """One job at one moment, with helper queries for rules."""

    def __init__(self, snapshot: Snapshot, job: Job, hang_after: float = HANG_AFTER_S) -> None:
        self.snapshot, self.job, self.hang_after = snapshot, job, hang_after
        self.reader = Reader(snapshot.stacks)
        read = [self.reader.rank(rank) for rank in SCREENS.between(job.ranks)]
        activities, blind = with_waits(self, read)
        self.blind = blind
        """Whether who waits is only presumed, for want of stacks."""
        self.progress: Progress = judge(snapshot, job, activities, self.reader, hang_after)
        self.subjects = tuple(
            Subject(
                rank,
                with_helper(rank, one, self.reader) if one.kind in FOR_THREADS else one,
                standing,
            )
            for rank, one, standing in zip(job.ranks, activities, self.progress.ranks, strict=False)
        )
        self.serving: Serving | None = serving(self)
        """How it waits for requests, where all of its ranks do."""
        if self.serving is not None:
            self.progress = replace(self.progress, state=self.serving.state)
        elif self.progress.state == "progressing" and (since := left_in_loops(self)) is not None:
            still = max(self.at - since, 0.0)
            self.progress = replace(self.progress, state="hung", since=since, stalled_for_s=still)

    @property
    def at(self) -> float:
        """The time of the snapshot."""
        return self.snapshot.at

    @cached_property
    def waiters(self) -> tuple[Subject, ...]:
        """Ranks that wait for other ranks."""
        return tuple(s for s in self.subjects if s.activity.kind in COMMUNICATION)

    @cached_property
    def joining(self) -> tuple[Subject, ...]:
        """Those of them that are in init_process_group, or make its store."""
        return tuple([s for s in self.waiters if s.activity.kind == "init"])

    @cached_property
    def passing(self) -> tuple[Subject, ...]:
        """Those of them that send or receive, or wait for what they have started of that."""
        return tuple([s for s in self.waiters if s.activity.kind in PASSING and passes(s)])

    @cached_property
    def suspects(self) -> tuple[Subject, ...]:
        """All others."""
        return tuple(s for s in self.subjects if s.activity.kind not in COMMUNICATION)

    @cached_property
    def gave_up(self) -> tuple[Subject, ...]:
        """Ranks that have left because they waited in vain, as they have printed."""
        numbers = self.said.gave_up
        return tuple(s for s in self.subjects if s.activity.kind in GONE and s.number in numbers)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes that are observed, by name."""
        return {node.name: node for node in self.snapshot.nodes}

    @cached_property
    def peers(self) -> Mapping[End, Peer]:
        """Who is at the other end of the sockets that were read."""
        return peers(self.snapshot)

    @cached_property
    def owners(self) -> Owners:
        """Which processes are those of the job."""
        return Owners(self)

    @cached_property
    def logs(self) -> Mapping[int, Sequence[Log]]:
        """The files that each rank prints to, by its id()."""
        return logs_of(self.snapshot, self.job)

    @cached_property
    def waiters_stacks(self) -> Waiters:
        """The loops that the waiters are in."""
        return Waiters(self.reader, [s.rank for s in self.waiters])

    @cached_property
    def saw_numbers(self) -> Mapping[int | None, Numerics]:
        """What ranks that saw an inf or nan have found, by rank; who saw the first one first."""
        told = [one.numerics for one in self.job.ranks if one.numerics is not None]
        return {one.rank: one for one, _ in in_order(told)}

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """The ranks that were not seen, and where they should be."""
        return seats(self.snapshot, self.job)

    @cached_property
    def slots(self) -> Mapping[int, tuple[Slot, ...]]:
        """The GPUs of every subject that has any, by its id()."""
        found = Slots(self.snapshot.nodes)
        return {id(s): slots for s in self.subjects if (slots := found.of(s.rank))}

    @cached_property
    def live(self) -> tuple[Subject, ...]:
        """Subjects that have not ended."""
        return tuple([s for s in self.subjects if s.activity.kind not in GONE])

    @cached_property
    def step_times(self) -> StepTimes | None:
        """Which ranks are slow in a job that makes progress, as indices of `live`."""
        live = self.live if self.progress.state == "progressing" else ()
        return step_times([s.rank for s in live], self.at)

    @cached_property
    def seen_nodes(self) -> tuple[Node, ...]:
        """The nodes of the job that are observed by name."""
        return tuple([self.nodes[name] for name in self.job.nodes if name in self.nodes])

    @cached_property
    def own_nodes(self) -> frozenset[str]:
        """The nodes that its ranks are on, observed or not."""
        return frozenset({s.rank.node for s in self.subjects})

    @cached_property
    def by_node(self) -> Mapping[str, Sequence[Rank]]:
        """Its ranks by the node that they are on."""
        found: dict[str, list[Rank]] = defaultdict(list)
        for rank in self.job.ranks:
            found[rank.node].append(rank)
        return found

    @cached_property
    def began(self) -> float:
        """When the first of its ranks was started; where none says so, when it was first seen."""
        starts = [r.process.started_at for r in self.job.ranks if r.process.started_at]
        return min(starts, default=self.snapshot.observed_since)

    @cached_property
    def on_gpus(self) -> tuple[Subject, ...]:
        """Subjects that have any GPU."""
        return tuple(s for s in self.subjects if id(s) in self.slots) if self.slots else ()

    @cached_property
    def calling(self) -> tuple[Subject, ...]:
        """Subjects with TCP connections that do not get on, as the kernel tells."""
        return tuple(s for s in self.subjects if s.rank.process.stalled)

    @cached_property
    def last_move(self) -> float | None:
        """When one of the ranks that were seen to get on last did."""
        return max((s.standing.since for s in self.subjects if s.standing.moved), default=None)

    def gpus(self, subject: Subject) -> tuple[Gpu, ...]:
        """The GPUs of a subject."""
        slots = self.slots.get(id(subject)) if self.slots else None
        return tuple(slot.gpu for slot in slots) if slots else ()

    @cached_property
    def xids(self) -> Mapping[tuple[str, int], tuple[Event, ...]]:
        """Errors of the GPUs of its nodes, by node and GPU."""
        return {
            (name, gpu): found
            for name in sorted(self.own_nodes & self.nodes.keys())
            for gpu, found in events(self.nodes[name], self.said.kernel_lines.get(name, ())).items()
        }

    @cached_property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """What its ranks and launchers were told that cannot all be true, and still matters."""
        found = contradictions(self.snapshot, self.job)
        meeting = not self.job.ranks or bool(self.joining)
        return tuple(one for one in found if meeting or not one.early)

    @cached_property
    def picture(self) -> Picture | None:
        """What the flight recorders show, without what was written before the hang."""
        since = self.progress.since
        ranks = self.job.ranks
        return picture([r if r.recorder is None else of_hang(r, since) for r in ranks])

    @cached_property
    def said(self) -> Said:
        """What the logs of the job say, as far as they were read."""
        return said(self.snapshot, self.job)

    @cached_property
    def in_flight(self) -> tuple[Operation, ...]:
        """The collectives that flight recorders show under way, those that lack ranks first."""
        return in_flight(self.picture)

    @cached_property
    def ras(self) -> Report | None:
        """What NCCL's RAS reported, where a person has let it be asked."""
        return report(self.snapshot, self.job)

    @cached_property
    def by_recorders(self) -> Verdict | None:
        """What the recorders conclude first; None where it is left to the stacks."""
        return by_recorders(self)

    @cached_property
    def conditional(self) -> tuple[tuple[tuple[Subject, ...], Condition], ...]:
        """Ranks in a collective under a condition on the rank that others are not under."""
        return under_condition(self)

    @cached_property
    def caught(self) -> tuple[Hit, ...]:
        """Ranks that have left by an exception what others are in, as verdicts."""
        from hangtop_core.analysis.verdict.raised import caught

        return tuple(caught(self))

    @cached_property
    def uneven(self) -> tuple[Hit, ...]:
        """Ranks that have left the loop over the data in which others still are, as verdicts."""
        return tuple(uneven(self))

    @cached_property
    def left_early(self) -> tuple[Hit, ...]:
        """Ranks that have left another loop in which others still are, as verdicts."""
        return tuple(left_early(self))

    @cached_property
    def store_taken(self) -> tuple[Hit, ...]:
        """That a program of somebody else's has the port of the store, as a verdict."""
        return tuple(taken(self))

    @cached_property
    def _knot(self) -> Knot | None:
        return knot(self)

    @property
    def knot(self) -> Knot | None:
        """Ranks that send and receive, and wait for one another in a circle."""
        return self._knot if self._knot is not None and self._knot.circle else None

    @property
    def chain(self) -> Knot | None:
        """Ranks that send and receive, of which each waits for the next one, and who is last."""
        return self._knot if self._knot is not None and not self._knot.circle else None

    @cached_property
    def waiting_classes(self) -> Classes:
        """Waiters by what they wait in, where, and who called that, the largest class first."""
        return classes(self.snapshot, self.waiters)

    @cached_property
    def waiting_places(self) -> Classes:
        """The same, where those are one class that came to one place by several callers."""
        return by_place(self.waiting_classes)

    @cached_property
    def waited_s(self) -> float:
        """Seconds for which every waiter has waited at least; 0 when nobody waits."""
        return min((s.standing.still_s for s in self.waiters), default=0.0)

    def victims_clause(self, blamed: Sequence[Subject]) -> str:
        """`ranks 0-1,3 wait in all_reduce at train.py:56 (step)`, or empty; none that is blamed."""
        guilty = {id(s) for s in blamed if s.waits}
        return self._clause_without(guilty) if guilty else self._clause_of_all

    @cached_property
    def _clause_of_all(self) -> str:
        return self._clause_without(())

    def _clause_without(self, guilty: Container[int]) -> str:
        classes = [
            (text, [s for s in members if id(s) not in guilty])
            for text, members in self.waiting_places
        ]
        text, members = max(classes, key=lambda one: len(one[1]), default=("", []))
        if not members:
            return ""
        others = [some for _, some in classes if some and some is not members]
        one, other = members[0].activity, others[0][0].activity if len(others) == 1 else None
        if other is not None and other.site and (one.kind, one.text) == ("store", other.text):
            return self.who_waits([*members, *others[0]], f"{text} and {other.at}")
        rest = sum(map(len, others))
        more = f", and {rest} more elsewhere" if rest else ""
        return self.who_waits(members, text) + more

    def heard(self, subjects: Sequence[Subject]) -> tuple[Subject, ...]:
        """Those whose node answers: of all others nobody knows what they do now."""
        silent = self._silent
        return tuple((s for s in subjects if s.rank.node not in silent) if silent else subjects)

    def unheard(self, subjects: Sequence[Subject]) -> tuple[Subject, ...]:
        """The others."""
        silent = self._silent
        return tuple(s for s in subjects if s.rank.node in silent) if silent else ()

    def who_waits(self, waiting: Sequence[Subject], text: str) -> str:
        """`ranks 0-1 wait TEXT`; of ranks on silent nodes, that they did when last seen."""
        heard, silent = self.heard(waiting), self.unheard(waiting)
        if not heard:
            return f"{name_ranks(silent)} waited {text} when last seen"
        late = f" ({name_ranks(silent)} did when last seen)" if silent else ""
        return f"{name_waiters(heard, text)}{late}"

    def silent_s(self, subject: Subject) -> float | None:
        """Seconds since the node of a subject was heard of; None while it answers."""
        return self._silent.get(subject.rank.node)

    @cached_property
    def _silent(self) -> Mapping[str, float]:
        """The same by node, for those that do not answer."""
        return {
            node.name: max(self.at - node.last_seen, 0.0)
            for node in self.snapshot.nodes
            if node.state in AWAY and node.last_seen is not None
        }

    def ended_at(self, subject: Subject) -> float | None:
        """When a rank ended: a zombie when it last ran, others when they were gone."""
        process, moved = subject.rank.process, subject.rank.moved_at
        return moved if process.state == "Z" and moved is not None else process.gone_at

    def c_function(self, subject: Subject) -> str:
        """`in spin (pool.c:9)`, where C frames of its main thread were asked for; else empty."""
        return called(self.reader.reading(stack_key(subject)).natives)

    def since(self, subject: Subject) -> str:
        """`for 5:12`, how long a subject has been where it is, also if a child has got on since."""
        one, since = subject.activity, subject.standing.since
        left = None if one.thread or one.by_thread else left_at(subject.rank)
        return self.lasting(since if left is None else min(since, left))

    @cached_property
    def watcher(self) -> Watcher:
        """Works out how long children have got nowhere."""
        return Watcher(self.snapshot, self.job, self.reader)

    def lasting(self, since: float | None) -> str:
        """`for 5:12`, how long what began then has lasted; empty when unknown, or hardly at all."""
        if since is None or self.at - since < 1.0:
            return ""
        return f"for {duration(self.at - since)}"

    def ago(self, at: float | None) -> str:
        """`5:12 ago`; empty when unknown, or only just now."""
        if at is None or self.at - at < 1.0:
            return ""
        return f"{duration(self.at - at)} ago"
