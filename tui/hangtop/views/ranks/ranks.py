"""The table of ranks: the cells of a row, and the order of rows."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from operator import is_not
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import Line, line
from hangtop.views.common import (
    ODD_STATES,
    STATE_ROLES,
    idle_seconds,
    last_seen_text,
    rank_key,
    span,
    unheard,
)
from hangtop.views.ranks.places import doing
from hangtop.views.verdict.judged import cause_of, culprits
from hangtop_core.scheduling.interruptible import PART
from hangtop_core.text.clean import clean, how_ended
from hangtop_core.text.rank_sets import rank_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot

MAX_PLACES = 4096
"""Largest number of stacks for which `doing` is cached."""
CALM, CONTROLS = 3, 4
"""Levels of a rank without problems, and of a controller of the job without problems."""


class RankRow:
    """One rank; its cells are computed only when the row is shown."""

    __slots__ = ("_table", "key", "level", "looks", "rank", "stack")

    heading = None
    """A rank's row is not a heading, but may stand under one; see `groups.Group`."""

    def __init__(self, table: RankRows, rank: Rank, key: str) -> None:
        self._table = table
        self.key = key
        self.take(rank, class_of(rank))

    def take(self, rank: Rank, stack: str) -> None:
        """Update the row from a newer snapshot of the process, with the main thread's stack."""
        self.rank = rank
        self.stack = stack
        self.level = self._table.level(rank)
        """Suspicion: 0 for culprits, then unusual states, then unreadable ranks."""
        self.looks = object()
        """A new object whenever the cells may have changed; see `LineTable`."""

    @property
    def idle(self) -> float | None:
        """Seconds for which the main thread had not run, when its node was last heard from."""
        old = self._table.quiet.get(self.rank.node)
        now = self._table.now
        return idle_seconds(self.rank, now - old[1] if old else now)

    @property
    def place(self) -> str:
        """The user's innermost frame: `train.py:41 (step)`."""
        place, call = self._table.doing(self.rank)
        if place or call:
            return place
        return "-" if self.rank.sample is None else "no stack"

    @property
    def call(self) -> str:
        """The function that the user's frame called."""
        return self._table.doing(self.rank)[1]

    @property
    def why(self) -> str:
        """What is unusual about the rank."""
        return self._table.judged(self.rank)[0]

    @property
    def why_role(self) -> str:
        """The role of `why`."""
        return self._table.judged(self.rank)[1]

    @property
    def silent(self) -> str:
        """`lost 43 s` when the node is silent: all other cells then show its last known data."""
        old = self._table.quiet.get(self.rank.node)
        return f"{old[0]} {span(old[1])}" if old else ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: culprits, then unusual states, then small stack classes, then by number."""
        sharing = self._table.sharing[self.stack] if self.level == CALM else 0
        return self.level, sharing, self.rank.rank


class RankRows:
    """The rows of all ranks, kept from snapshot to snapshot.

    A rank that is the same object in two snapshots is unchanged and keeps its row, so that the cost
    of a snapshot depends on what changed, not on the size of the job.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.quiet: Mapping[str, tuple[str, float]] = {}
        """State and silence in seconds of nodes that do not respond."""
        self.sharing: Counter[str] = Counter()
        """Number of ranks per stack."""
        self.made = self.sorted = 0
        """Number of rows made or renewed so far, and of full sorts."""
        self._stacks: Mapping[str, tuple[Frame, ...]] = {}
        self._blamed: Mapping[tuple[str, int | None], str] = {}
        self._victims: frozenset[int] = frozenset()
        self._rows: list[RankRow] = []
        """Rows in the order of `Job.ranks`."""
        self._ranks: list[Rank] = []
        """Ranks of the rows."""
        self._order: list[RankRow] = []
        self._places: list[int] = []
        """Position in `_order` of each of `_rows`."""
        self._turned: set[str] = set()
        """Nodes of which all rows are still to be renewed."""
        self._moves = False
        """Whether rows are still to be sorted."""
        self._doing: dict[str, tuple[tuple[Frame, ...], tuple[str, str]]] = {}

    def take(
        self, snapshot: Snapshot, job: Job | None, diagnosis: Diagnosis | None, now: float
    ) -> list[RankRow]:
        """Return the rows of all ranks of a new snapshot, most suspicious first."""
        for _ in self.steps(snapshot, job, diagnosis, now):
            pass
        return self.rows

    @property
    def rows(self) -> list[RankRow]:
        """The rows of the last snapshot, most suspicious first."""
        return list(self._order)

    def steps(
        self, snapshot: Snapshot, job: Job | None, diagnosis: Diagnosis | None, now: float
    ) -> Iterator[None]:
        """Update from a new snapshot in steps; work left undone is completed by the next update.

        Until then `rows` mixes both snapshots.
        """
        blamed, quiet = culprits(diagnosis), unheard(snapshot.nodes, now)
        best = diagnosis.verdicts[0] if diagnosis and diagnosis.verdicts else None
        changed = {key for key, _ in blamed.items() ^ self._blamed.items()}
        self._turned |= (quiet.keys() ^ self.quiet.keys()) | {node for node, _ in changed}
        self.now, self.quiet, self._stacks = now, quiet, snapshot.stacks
        self._blamed, self._victims = blamed, frozenset(best.victims) if best else frozenset()
        ranks = job.members if job is not None else ()
        by_number = any(where == "rank" for where, _ in changed)
        if by_number or len(ranks) != len(self._rows):
            self._begin(ranks)
        else:
            yield from self._renew(ranks)
        self._turned.clear()

    def _begin(self, ranks: Sequence[Rank]) -> None:
        self._ranks = list(ranks)
        self._rows = [RankRow(self, rank, rank_key(rank)) for rank in ranks]
        self.made += len(ranks)
        self.sharing = Counter(row.stack for row in self._rows)
        self._sort()

    def _renew(self, ranks: Sequence[Rank]) -> Iterator[None]:
        """Renew the rows of ranks that changed; sort only if one of them has to move.

        Renews all rows of nodes that fell silent, respond again, or have other culprits.
        """
        rows, turned = self._rows, self._turned
        changed = set(compress(range(len(ranks)), map(is_not, ranks, self._ranks)))
        yield
        if turned:
            changed.update(i for i, member in enumerate(ranks) if member.node in turned)
        for count, index in enumerate(changed, 1):
            if count % PART == 0:
                yield
            row, rank = rows[index], ranks[index]
            was, stack, level = row.rank, row.stack, row.level
            before, after = was.process, rank.process
            same = before.pid == after.pid and before.start == after.start
            if same and was.node == rank.node:
                row.take(rank, stack if was.sample is rank.sample else class_of(rank))
            else:
                row = rows[index] = RankRow(self, rank, rank_key(rank))
                self._order[self._places[index]] = row
            self._ranks[index] = rank
            self.made += 1
            if row.stack != stack:
                self.sharing[stack] -= 1
                self.sharing[row.stack] += 1
                self._moves = True
            elif row.level != level or rank.rank != was.rank:
                self._moves = True
        if self._moves:
            yield
            self.sharing = +self.sharing
            self._sort()

    def _sort(self) -> None:
        """Sort by `RankRow.order`; ranks arrive in ascending order."""
        sharing = self.sharing
        keys = [(row.level, sharing[row.stack] if row.level == CALM else 0) for row in self._rows]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self._order = [self._rows[index] for index in order]
        self._places = [0] * len(order)
        for place, index in enumerate(order):
            self._places[index] = place
        self._moves = False
        self.sorted += 1

    def level(self, rank: Rank) -> int:
        """Return how suspicious a rank is, as `judged` does; fast for ranks without problems."""
        state, sample = rank.state, rank.sample
        calm = (
            state not in ODD_STATES
            and (sample is None or sample.failure is None)
            and not (self._blamed or self.quiet or rank.process.denied or rank.numerics)
        )
        level = CALM if calm else self.judged(rank)[2]
        return CONTROLS if level == CALM and rank.process.role == "launcher" else level

    def judged(self, rank: Rank) -> tuple[str, str, int]:
        """Return what is unusual about a rank, its role, and how suspicious that makes it."""
        why, role, level = self._condition(rank)
        if (number := _number(rank)) and level in (0, CALM):
            why, role, level = (
                (f"{why}, {number}", role, level) if why else (f"saw {number}", "bad", 2)
            )
        old = self.quiet.get(rank.node)
        return (last_seen_text(*old), "bad", 1) if old is not None and level else (why, role, level)

    def _condition(self, rank: Rank) -> tuple[str, str, int]:
        if self._blamed and (cause := cause_of(self._blamed, rank)) is not None:
            return f"◀ {cause}", "culprit", 0
        sample = rank.sample
        if rank.state == "exited":
            code = rank.process.exit_code
            return "exited" if code is None else how_ended(code), "bad", 1
        if rank.state in ODD_STATES:
            return rank.state, "bad", 1
        if sample is not None and sample.failure is not None and not self._frames(rank):
            return f"no stack: {sample.failure.text}", "warn", 2
        if rank.process.denied:
            return rank.process.denied, "warn", 2
        if rank.process.role == "launcher":
            return clean(rank.process.label, 60), "dim", CALM
        return ("waits", "victim", CALM) if rank.rank in self._victims else ("", "", CALM)

    def _frames(self, rank: Rank) -> tuple[Frame, ...]:
        return self._stacks.get(class_of(rank), ())

    def doing(self, rank: Rank) -> tuple[str, str]:
        """Return the user's innermost frame of a rank and what it called; cached per stack."""
        key, frames = class_of(rank), self._frames(rank)
        cached = self._doing.get(key)
        if cached is None or cached[0] is not frames:
            if len(self._doing) > MAX_PLACES:
                self._doing.clear()
            cached = self._doing[key] = (frames, doing(frames))
        return cached[1]


def class_of(rank: Rank) -> str:
    """Return the key of the rank's stack class: of its main thread's stack, empty without one."""
    sample = rank.sample
    return sample.threads[0].stack if sample is not None and sample.threads else ""


def _number(rank: Rank) -> str:
    """Return `inf at batch 3`: the first non-finite value of a rank; see `views.ranks.numerics`."""
    first = rank.numerics.first if rank.numerics is not None else None
    return f"{clean(first.what, 8)} at batch {first.batch}" if first is not None else ""


def _state(row: RankRow) -> Line:
    if row.silent:
        return line((row.silent, "bad"))
    return line((row.rank.state, STATE_ROLES[row.rank.state]))


def _cpu(row: RankRow) -> Line:
    share = row.rank.cpu_share
    return line(("-", "dim")) if share is None or row.silent else line(f"{share:.0%}")


def _rank(row: RankRow) -> Line:
    """Return `3`, or `VLLM::Worker_TP1 pid4711` for a rank without a number."""
    about = f"{row.rank.about}  " if row.rank.about else ""
    return line((about, "dim"), (rank_label(row.rank.rank), "bold"))


RANK_COLUMNS: tuple[Column[RankRow], ...] = (
    Column(
        "rank",
        "RANK",
        _rank,
        lambda row: row.rank.rank,
        minimum=4,
        maximum=30,
        align="right",
    ),
    Column(
        "node",
        "NODE",
        lambda row: line(row.rank.node),
        lambda row: row.rank.node,
        maximum=16,
        drop=4,
    ),
    Column(
        "pid",
        "PID",
        lambda row: line(str(row.rank.process.pid)),
        lambda row: row.rank.process.pid,
        align="right",
        minimum=5,
        drop=7,
    ),
    Column(
        "state",
        "STATE",
        _state,
        lambda row: row.rank.state,
        minimum=8,
        drop=2,
    ),
    Column(
        "cpu", "CPU", _cpu, lambda row: row.rank.cpu_share or 0.0, align="right", minimum=4, drop=6
    ),
    Column(
        "idle",
        "IDLE",
        lambda row: line(span(row.idle)),
        lambda row: -1.0 if row.idle is None else row.idle,
        align="right",
        minimum=5,
        drop=3,
    ),
    Column(
        "kids",
        "CHILDREN",
        lambda row: line(str(len(row.rank.children) or "")),
        lambda row: len(row.rank.children),
        align="right",
        optional=True,
        drop=8,
    ),
    Column(
        "where",
        "WHERE",
        lambda row: line((row.place, "" if row.rank.sample and row.rank.sample.threads else "dim")),
        lambda row: row.place,
        minimum=23,
        maximum=60,
        flex=True,
        keep_end=True,
    ),
    Column(
        "call",
        "CALL",
        lambda row: line((row.call, "code")),
        lambda row: row.call,
        minimum=8,
        maximum=26,
        optional=True,
        drop=5,
    ),
    Column(
        "why",
        "WHY",
        lambda row: line((row.why, row.why_role)),
        lambda row: row.order,
        minimum=21,
        maximum=44,
        flex=True,
        drop=1,
    ),
)
