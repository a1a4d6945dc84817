"""What NCCL's RAS reported, joined with the ranks of a job by host, process and device.

RAS numbers ranks within each communicator and tells host and pid. Where pids are those of a
container, the device decides: the local rank, on a host none of whose pids is known.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.model.node.places import Places
from hangtop_core.text.clean import clean, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.model.recorder.ras import Communicator, Level, Member, Ras
    from hangtop_core.model.snapshot import Job, Snapshot

_ERRORS = {
    "1": "a CUDA call failed",
    "2": "a call to the system failed",
    "3": "an internal check failed",
    "4": "an argument was invalid",
    "5": "NCCL was used wrongly",
    "6": "another rank failed or is gone",
    "8": "it ran out of time",
}
"""ncclResult_t of nccl.h."""
NORMAL = frozenset({"RUNNING", "UNKNOWN", "NOCOMM"})
"""States of a rank that say nothing: the last two are of ranks that have left, or not come yet."""


class Behind(Struct, frozen=True):
    """Ranks that have launched fewer collectives than most of their communicator."""

    op: str
    """`AllReduce`, or `collectives` where kinds are not told apart."""
    count: int
    most: int
    """What most have launched; more than `count`."""
    ahead: int
    """How many ranks those are."""
    communicator: str
    ranks: tuple[int, ...]
    """Those of the job that are known; `size` counts the others, too."""
    size: int

    @property
    def text(self) -> str:
        """`launched AllReduce 41 times in communicator 0xab, 63 others 42 times`."""
        return (
            f"launched {self.op} {self.count} times in communicator {self.communicator}, "
            f"{plural(self.ahead, 'other')} {self.most} times"
        )


class Report:
    """The newest report on a job."""

    def __init__(self, ras: Ras, node: str, places: Places, job: Job) -> None:
        self.ras = ras
        self._node = node
        self._places = places
        self._by_pid: dict[tuple[str, int], int] = {}
        self._by_gpu: dict[tuple[str, int], int] = {}
        for rank in job.ranks:
            self._by_pid[rank.node, rank.process.pid] = rank.rank
            if rank.local_rank is not None:
                self._by_gpu[rank.node, rank.local_rank] = rank.rank

    @cached_property
    def _pids_known(self) -> frozenset[str]:
        """Nodes of which RAS tells pids that are ranks of the job: those it is told apart by."""
        found = set()
        for member in self._members():
            node = self._places.node_of(member.host, self._node)
            if node is not None and (node, member.pid) in self._by_pid:
                found.add(node)
        return frozenset(found)

    def _members(self) -> Iterator[Member]:
        for one in self.ras.communicators:
            yield from (lost.member for lost in one.lost)
            yield from (member for some in one.levels for member in some.members)
            yield from (member for some in one.statuses for member in some.members)
        yield from (lost.member for lost in self.ras.lost)

    def rank_of(self, member: Member) -> int | None:
        """The rank of the job that a member of a communicator is; None when that is not known."""
        node = self._places.node_of(member.host, self._node) if member.host else None
        if node is None:
            return None
        if (node, member.pid) in self._by_pid:
            return self._by_pid[node, member.pid]
        return None if node in self._pids_known else self._by_gpu.get((node, member.gpu))

    def ranks(self, members: Iterable[Member]) -> tuple[int, ...]:
        """Those of the members that are known ranks."""
        return tuple(sorted({rank for one in members if (rank := self.rank_of(one)) is not None}))

    @cached_property
    def behind(self) -> tuple[Behind, ...]:
        """Where fewer than those ahead have launched less than most, the fewest ranks first."""
        found = [
            Behind(
                op=low.op or "collectives",
                count=low.count,
                most=usual.count,
                ahead=usual.size,
                communicator=one.hash,
                ranks=self.ranks(low.members),
                size=low.size,
            )
            for one in self.ras.communicators
            for levels in _by_op(one)
            for usual in [max(levels, key=lambda level: level.size)]
            for low in levels
            if low.count < usual.count and low.size < usual.size
        ]
        return tuple(sorted(found, key=lambda one: (one.size, one.communicator, one.op)))

    @cached_property
    def lost(self) -> dict[int, bool]:
        """Ranks that RAS gets no answer of; whether it has given them up for good."""
        found: dict[int, bool] = {}
        every = [
            lost
            for one in (*(c.lost for c in self.ras.communicators), self.ras.lost)
            for lost in one
            if lost.unresponsive
        ]
        for lost in every:
            rank = self.rank_of(lost.member)
            if rank is not None:
                found[rank] = found.get(rank, False) or lost.dead
        return found

    def about(self, rank: int) -> Iterator[tuple[bool, str]]:
        """What is said of a rank: whether it is about its being reachable, and the text."""
        if rank in self.lost:
            told = (
                "has given it up for dead" if self.lost[rank] else "gets no answer of its process"
            )
            yield True, f"NCCL's RAS {told}"
        for one in self.behind:
            if rank in one.ranks:
                yield False, f"NCCL's RAS: it has {one.text}"
        for text in self._odd.get(rank, ()):
            yield False, f"NCCL's RAS: {text}"

    @cached_property
    def _odd(self) -> dict[int, list[str]]:
        """Of ranks in a state that only some members of their communicator are in: what is said."""
        found: dict[int, list[str]] = defaultdict(list)
        for one in self.ras.communicators:
            for status in one.statuses if len(one.statuses) > 1 else ():
                if status.name not in NORMAL:
                    text = f"its state in communicator {one.hash} is {state(status.name)}"
                    for rank in self.ranks(status.members):
                        found[rank].append(text)
        return found

    @property
    def agreement(self) -> str | None:
        """What is told by there being no difference at all; None when there is one."""
        some = self.ras.communicators
        alike = all(not one.lost_count and not one.levels and len(one.statuses) < 2 for one in some)
        if not some or not alike or not self.ras.whole:
            return None
        return (
            f"NCCL's RAS: the ranks of {plural(len(some), 'communicator')} agree: all answer, and "
            "have launched the same collectives. That they are through is not told"
        )

    @property
    def starting(self) -> Iterator[tuple[Communicator, tuple[int, ...], tuple[int, ...]]]:
        """Communicators being made, with their ranks that are at it and those that are not."""
        for one in self.ras.communicators:
            at_it = [status for status in one.statuses if status.name == "INIT"]
            others = [m for s in one.statuses if s.name in ("NOCOMM", "UNKNOWN") for m in s.members]
            others += [lost.member for lost in one.lost]
            if at_it and (others or one.lost_count):
                yield one, self.ranks(m for s in at_it for m in s.members), self.ranks(others)


def _by_op(one: Communicator) -> Iterable[Sequence[Level]]:
    found: dict[str, list[Level]] = defaultdict(list)
    for level in one.levels:
        found[level.op].append(level)
    return found.values()


def state(name: str) -> str:
    """A state for people: errors with what they mean."""
    number = name.rpartition(" ")[2]
    meaning = _ERRORS.get(number)
    return clean(f"{name} ({meaning})" if meaning and "error" in name else name, 100)


def report(snapshot: Snapshot, job: Job) -> Report | None:
    """The newest report on a job; None when RAS was not asked, or said nothing."""
    told = [rank for rank in job.ranks if rank.ras is not None and rank.ras.failure is None]
    newest = max(told, key=lambda rank: rank.ras.at if rank.ras else 0.0, default=None)
    if newest is None or newest.ras is None:
        return None
    return Report(newest.ras, newest.node, Places(snapshot.nodes), job)
