"""All traces put together: process groups with their members, and how far each member came.

Ranks are aligned by process group and sequence number, never by record id: a rank's record ids
count all its groups, so they say nothing about another rank, and rings wrap at different places.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cached_property
from itertools import compress, count
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.flight.ended import reopen
from hangtop_core.model.frames import site
from hangtop_core.model.recorder.trace import DONE, P2P, RETIRED, STATE, Call
from hangtop_core.model.snapshot import Frame
from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import is_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangtop_core.model.recorder.trace import Trace

MAX_RANKS = 1_000_000
MAX_MEMBERS = 2_000_000
"""Members of all groups together that are read: as many as 100,000 ranks in 20 groups each have."""
_MEMBERS = re.compile(r"\s*\[[\d,\s-]*\]\s*")
_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_DEFAULT = "0"
"""torch's name of the default group."""


class Member(Struct):
    """How far one rank came in one group."""

    rank: int
    newest: int | None
    """Sequence number of the last collective it enqueued; 0: none yet; None: not known."""
    waits_at: int | None = None
    """Position in its trace of the oldest collective that is not over."""
    seq: int | None = None
    """Sequence number of that."""
    pending: int = 0
    """How many collectives are not over."""
    done: int = 0
    """The last one that is over, as far as is known."""
    from_status: bool = False
    """Known from the group's counters alone: the ring holds none of its entries."""


class Group(Struct, frozen=True):
    """One process group."""

    uid: str
    desc: str
    members: tuple[int, ...]
    """Global ranks, in the order of their ranks within the group."""
    by_rank: dict[int, Member]
    configured: bool
    """Whether the members are recorded; else they are the ranks seen using the group."""

    @property
    def label(self) -> str:
        """`default_pg`, `tp (35)`: for people."""
        if not self.desc or self.desc in (self.uid, "undefined"):
            return clean(f"group {self.uid}", 80)
        return clean(self.desc if self.uid == _DEFAULT else f"{self.desc} ({self.uid})", 80)


class Entry(Struct, frozen=True):
    """One entry of one rank, as sentences need it."""

    rank: int
    at: int
    """Position in the trace."""
    group: int
    """Index into the world's groups."""
    seq: int
    call: Call
    flag: int
    created_ns: int
    stack: tuple[Frame, ...]

    @property
    def name(self) -> str:
        """`all_reduce #17`."""
        return clean(f"{self.call.op} #{self.seq}", 100)

    @property
    def timed_out(self) -> bool:
        """Given up by the watchdog without having completed."""
        return bool(self.flag & RETIRED) and not self.flag & DONE

    @property
    def site(self) -> Frame | None:
        """Where the user's code called it."""
        return site(self.stack)

    @property
    def state(self) -> int:
        """The recorded state."""
        return self.flag & STATE


class World:
    """The traces of one job. Ranks without a trace are known by the groups they belong to."""

    def __init__(
        self, traces: Iterable[Trace], ranks: Iterable[int] = (), unread: Iterable[int] = ()
    ) -> None:
        ordered = sorted(traces, key=lambda one: one.rank)
        self.traces: dict[int, Trace] = {one.rank: one for one in ordered}
        self.is_nameless = is_key(min(self.traces, default=0))
        """Whether ranks have no number: what groups and sends say of numbers means nobody then."""
        self.groups: list[Group] = []
        self.memberships = Memberships()
        self._unread = frozenset(unread) - set(self.traces)
        self._extra = {*ranks, *self._unread}
        self._index: dict[tuple[int, str], int] = {}
        _assemble(self)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that are known of, with a trace or without."""
        found = {rank for group in self.groups for rank in group.members}
        return tuple(sorted(found | set(self.traces) | self._extra | _gaps(self.traces)))

    @cached_property
    def absent(self) -> tuple[int, ...]:
        """Ranks without a trace."""
        return tuple(rank for rank in self.ranks if rank not in self.traces)

    @cached_property
    def unreadable(self) -> tuple[int, ...]:
        """Ranks without a trace whose recorder is there, and could not be read."""
        return tuple(rank for rank in self.absent if rank in self._unread)

    @cached_property
    def without_dump(self) -> tuple[int, ...]:
        """Ranks of which there is no recorder at all."""
        return tuple(rank for rank in self.absent if rank not in self._unread)

    def is_unreadable(self, rank: int) -> bool:
        """Whether a rank has no trace, although its recorder is there."""
        return rank in self._unread

    def doubt_absent(self) -> None:
        """Take all ranks without a trace for unreadable: their dumps may be where none is read."""
        self._unread |= set(self.absent)

    def lacks_entries(self, rank: int) -> bool:
        """Whether entries of a rank could not be read, so that the last of it is not known."""
        return bool(self.traces[rank].dropped)

    @cached_property
    def blank(self) -> tuple[int, ...]:
        """Ranks whose recorder holds no entry: it may be off."""
        return tuple(rank for rank, trace in self.traces.items() if not trace.length)

    def group_of(self, rank: int, local: int) -> int:
        """The world's group for a trace's own group index."""
        return self._index[rank, self.traces[rank].groups[local].uid]

    def entry(self, rank: int, at: int) -> Entry:
        """One entry, by its position in the rank's trace."""
        trace = self.traces[rank]
        return Entry(
            rank=rank,
            at=at,
            group=self.group_of(rank, trace.group[at]),
            seq=trace.seq[at],
            call=trace.calls[trace.call[at]],
            flag=trace.flag[at],
            created_ns=trace.created[at],
            stack=trace.sites[trace.site[at]],
        )

    def find(self, rank: int, group: int, seq: int) -> Entry | None:
        """The collective of a group with a sequence number on one rank, if its ring has it."""
        trace = self.traces.get(rank)
        if trace is None:
            return None
        at = trace.find(self.groups[group].uid, seq)
        return None if at is None else self.entry(rank, at)

    def collectives(self, rank: int, group: int) -> Iterator[Entry]:
        """All collectives of a group that a rank's ring has, the oldest first.

        Of a coalesced block the last entry comes last, so that it can stand for all of it.
        """
        trace = self.traces.get(rank)
        places = trace.places(self.groups[group].uid) if trace is not None else ()
        return (self.entry(rank, at) for at in places)


def _gaps(ranks: Iterable[int]) -> set[int]:
    """Ranks between those that are known, if most of them are, and all have numbers."""
    known = set(ranks)
    if is_key(min(known, default=0)):
        return set()
    between = (
        set(range(max(known, default=-1) + 1)) if len(known) > max(known, default=0) / 2 else set()
    )
    return between - known


def parse_members(text: str | None) -> tuple[int, ...]:
    """Ranks of `[0, 1, 2]`, as pg_config has them, or `[0-2]`; empty when it is no such list.

    Order counts: it is that of ranks within the group.
    """
    ranks: list[int] = []
    for low, high in member_runs(text):
        if high >= MAX_RANKS or len(ranks) + high - low >= MAX_RANKS:
            return ()
        ranks.extend(range(low, high + 1))
    return tuple(ranks)


def member_runs(text: str | None) -> list[tuple[int, int]]:
    """Return the first and last rank of each run of `[0-2, 8]`; none when it is no such list."""
    if text is None or not _MEMBERS.fullmatch(text):
        return []
    return [(int(first), int(last or first)) for first, last in _RUN.findall(text)]


class Memberships:
    """The members of groups, of which each list is made once, and so many in all."""

    def __init__(self) -> None:
        self.left_out = 0
        """Lists of members that are left out, since there are too many in all."""
        self._by_text: dict[str | None, tuple[int, ...]] = {None: ()}
        self._room = MAX_MEMBERS

    def of(self, text: str | None) -> tuple[int, ...]:
        """Return the ranks of `[0, 1, 2]`; the same object for the same text."""
        if text not in self._by_text:
            members = parse_members(text) if self._room > 0 else ()
            self.left_out += self._room <= 0
            self._room -= len(members)
            self._by_text[text] = members
        return self._by_text[text]


def _assemble(world: World) -> None:
    kinds: dict[str, dict[str | None, list[int]]] = defaultdict(lambda: defaultdict(list))
    descs: dict[str, str] = {}
    for rank, trace in world.traces.items():
        for info in trace.groups:
            kinds[info.uid][info.members].append(rank)
            if info.desc:
                descs.setdefault(info.uid, info.desc)
    for uid in sorted(kinds, key=_natural):
        for members, ranks in _memberships(uid, _alike(world, kinds[uid]), world):
            known = bool(members)
            group = Group(uid, descs.get(uid, ""), members or tuple(sorted(ranks)), {}, known)
            world.groups.append(group)
            for rank in ranks:
                world._index[rank, uid] = len(world.groups) - 1
    if any(trace.ended for trace in world.traces.values()):
        reopen(world.traces, world.group_of)
    _members(world)


def _alike(world: World, texts: dict[str | None, list[int]]) -> dict[tuple[int, ...], list[int]]:
    """The ranks that use a name by its members, however these are written."""
    kinds: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for text, ranks in texts.items():
        kinds[world.memberships.of(text)] += ranks
    return {members: sorted(ranks) for members, ranks in kinds.items()}


def _natural(uid: str) -> tuple[int, str]:
    return (int(uid), "") if uid.isdecimal() and len(uid) < 9 else (1 << 30, uid)


def _memberships(
    uid: str, kinds: dict[tuple[int, ...], list[int]], world: World
) -> Iterable[tuple[tuple[int, ...], list[int]]]:
    """Split the ranks that use a name into groups: one name may stand for several of them."""
    if world.is_nameless:
        # Whose numbers the lists have is not known: who uses a group is in it.
        every = {*world.traces, *world._extra} if uid == _DEFAULT and len(kinds) == 1 else set()
        return [((), sorted(every.union(ranks))) for ranks in kinds.values()]
    blank = kinds.pop((), [])
    if not kinds:
        extra = {*world.traces, *_gaps(world.traces), *world._extra} if uid == _DEFAULT else ()
        return [((), sorted({*blank, *extra}))]
    left = set(blank)
    found = []
    for members, ranks in sorted(kinds.items()):
        inside = left.intersection(members)
        found.append((members, ranks + sorted(inside)))
        left -= inside
    return [*found, ((), sorted(left))] if left else found


def _members(world: World) -> None:
    for rank, trace in world.traces.items():
        newest: dict[int, int] = {}
        for (local, flag), seq in dict(
            zip(zip(trace.group, trace.flag, strict=True), trace.seq, strict=True)
        ).items():
            if not flag & P2P:
                newest[local] = max(newest.get(local, 0), seq)
        members = {local: Member(rank, seq) for local, seq in newest.items()}
        _waiting(trace, members)
        for local, member in members.items():
            if member.pending == 0:
                member.done = member.newest or 0
            elif member.seq is not None:
                member.done = member.seq - 1
            world.groups[world.group_of(rank, local)].by_rank[rank] = member
    numbers = _numbers(world)
    for index, group in enumerate(world.groups):
        unseen = [r for r in group.members if r in world.traces and r not in group.by_rank]
        sends = bool(unseen) and has_sends(world, group)
        for rank in unseen:
            group.by_rank[rank] = _unseen(world, group, rank, numbers[index], sends)


def _waiting(trace: Trace, members: dict[int, Member]) -> None:
    """Set what each group of a rank waits at, with no step of Python for each that is queued."""
    marks = trace.pending()
    if 1 not in marks:
        return
    groups = list(compress(trace.group, marks))
    for local, queued in Counter(groups).items():
        members[local].pending = queued
    # Of several, the last one put into a dictionary stays: the oldest.
    oldest = dict(zip(reversed(groups), reversed(list(compress(count(), marks))), strict=True))
    for local, at in oldest.items():
        members[local].seq, members[local].waits_at = trace.seq[at], at


def _numbers(world: World) -> list[Counter[int]]:
    """For each group, the numbers it has within the processes of its members."""
    found: list[Counter[int]] = [Counter() for _ in world.groups]
    for rank, trace in world.traces.items():
        for pg_id, uid in trace.group_ids.items():
            if (rank, uid) in world._index:  # a recorder may number a group that it does not have
                found[world._index[rank, uid]][pg_id] += 1
    return found


def _unseen(world: World, group: Group, rank: int, numbers: Counter[int], sends: bool) -> Member:
    """A member whose ring holds no collective of the group: its counters may still tell.

    The counters are by the group's number within the process, which other members' entries tell,
    since processes that make the same groups number them alike. In a group with sends the counter
    may be that of a send and tells nothing.
    """
    trace = world.traces[rank]
    info = trace.infos.get(group.uid)
    if info is not None and info.enqueued is not None:
        return Member(rank, None if info.enqueued else 0)
    if len(numbers) == 1 and not sends:
        wanted = next(iter(numbers))
        status = trace.counters.get(wanted) if wanted not in trace.group_ids else None
        if status is not None:
            return Member(rank, status.enqueued, done=status.completed, from_status=True)
    if not trace.wrapped and not trace.dropped and not (trace.statuses and not trace.length):
        return Member(rank, 0)
    return Member(rank, None)


def has_sends(world: World, group: Group) -> bool:
    """Whether any ring holds a send or recv of a group."""
    return any(group.uid in world.traces[rank].sends for rank in group.by_rank)
