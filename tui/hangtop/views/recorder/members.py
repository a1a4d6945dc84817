"""The members of a process group that joined an operation, and what the other ranks do instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import EMPTY, Line, line
from hangtop.views.common import STATE_ROLES, main_frames
from hangtop.views.ranks.places import doing
from hangtop.views.recorder.recorder import moment
from hangtop_core.analysis.flight.members import ORDER, attendees
from hangtop_core.text.rank_sets import is_key, rank_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop.keys import query
    from hangtop.source.recordings import Seen
    from hangtop_core.analysis.flight.members import Attendance, Attendee
    from hangtop_core.analysis.flight.sequences import NumberLine
    from hangtop_core.model.snapshot import Rank, Snapshot

WORDS: dict[Attendance, tuple[str, str]] = {
    "not": ("not joined", "bad"),
    "differs": ("other call", "bad"),
    "absent": ("no recorder", "warn"),
    "unreadable": ("unreadable", "warn"),
    "unsure": ("not known", "warn"),
    "joined": ("joined", ""),
    "over": ("through", "good"),
}
MARKS: dict[Attendance, tuple[str, str]] = {
    "joined": ("■", ""),
    "over": ("■", "good"),
    "not": ("□", "bad"),
    "differs": ("✖", "bad"),
    "unsure": ("?", "warn"),
    "absent": ("?", "warn"),
    "unreadable": ("?", "warn"),
}
_UNKNOWN = ("absent", "unreadable", "unsure")
TIMED = 200
"""Largest number of members whose last entry is looked up: that may scan a whole ring."""


@dataclass
class Live:
    """The running ranks of a snapshot, by number."""

    snapshot: Snapshot | None = None
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    several: bool = False
    """Whether they run on more than one node."""
    _given: Sequence[Rank] = ()

    def take(self, snapshot: Snapshot | None, ranks: Sequence[Rank]) -> None:
        """Use another snapshot, or the ranks of another job in it."""
        if snapshot is not self.snapshot or ranks is not self._given:
            # Of two processes that claim the same rank the first one counts.
            self.ranks = {rank.rank: rank for rank in reversed(ranks)}
            self.several = len({rank.node for rank in ranks}) > 1
            self.snapshot, self._given = snapshot, ranks


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of the group; what its rank does now is looked up when the row is shown."""

    attendee: Attendee
    last_ns: int
    """When it issued its last operation, in ns; 0 where that is unknown or meaningless."""
    running: Live

    @property
    def key(self) -> str:
        """The number of the rank, as a text."""
        return str(self.attendee.rank)

    @property
    def label(self) -> str:
        """The name of the rank, for people."""
        return rank_label(self.attendee.rank)

    @property
    def live(self) -> Rank | None:
        """The running rank, if there is one."""
        return self.running.ranks.get(self.attendee.rank)

    @property
    def node(self) -> str:
        """The node of the rank; empty when all ranks run on one node."""
        return self.live.node if self.live is not None and self.running.several else ""

    @property
    def doing(self) -> tuple[str, str]:
        """The user's innermost frame of the main thread, and what it called."""
        if self.live is None or self.running.snapshot is None:
            return "", ""
        return doing(main_frames(self.running.snapshot, self.live.sample))


def member_rows(recorded: Seen, index: int, number: NumberLine, running: Live) -> list[MemberRow]:
    """Return all members, those that others wait for first."""
    world = recorded.picture.world
    rows = []
    members = attendees(world, index, number.seq, number.operation)
    for place, member in enumerate(
        sorted(members, key=lambda member: (ORDER[member.how], member.rank))
    ):
        last = 0
        timed = member.how in ("not", "differs") and place < TIMED
        if timed and member.newest and member.rank in world.traces:
            entry = world.find(member.rank, index, member.newest)
            last = entry.created_ns if entry is not None else 0
        rows.append(MemberRow(member, last, running))
    return rows


def _last(row: MemberRow) -> Line:
    newest = row.attendee.newest
    if newest is None:
        return line(("?", "warn") if row.attendee.how in _UNKNOWN else "-")
    return line(f"#{newest}" if newest else "none")


def _at(row: MemberRow) -> Line:
    return line((moment(row.last_ns) if row.last_ns else "", "dim"))


def _now(row: MemberRow) -> Line:
    if row.live is None:
        return EMPTY
    where, call = row.doing
    unusual = row.live.state not in ("running", "sleeping")
    state = (f"{row.live.state}  ", STATE_ROLES[row.live.state]) if unusual else ("", "")
    return line(state, (where, "bold" if row.attendee.how == "not" else ""), f"  {call}")


MEMBER_COLUMNS: tuple[Column[MemberRow], ...] = (
    Column("rank", "RANK", lambda row: line((row.label, WORDS[row.attendee.how][1])),
           lambda row: row.attendee.rank, align="right"),
    Column("node", "NODE", lambda row: line(row.node), lambda row: row.node, maximum=16,
           drop=2, optional=True),
    Column("joined", "JOINED", lambda row: line(WORDS[row.attendee.how]),
           lambda row: ORDER[row.attendee.how]),
    Column("last", "LAST", _last, lambda row: row.attendee.newest or -1, align="right"),
    Column("at", "AT", _at, lambda row: row.last_ns, optional=True, drop=3),
    Column("now", "ITS STACK NOW", _now, lambda row: row.doing, minimum=12, maximum=60, flex=True,
           optional=True, drop=1),
)  # fmt: skip


def members_title(name: str, rows: list[MemberRow]) -> tuple[Line, Line]:
    """Return `MEMBERS all_reduce #48121`, and for the edge `1 of 512 not joined, 2 not known`."""
    lack = sum(row.attendee.how == "not" for row in rows)
    unknown = sum(row.attendee.how in _UNKNOWN for row in rows)
    differ = sum(row.attendee.how == "differs" for row in rows)
    title = line(("MEMBERS  ", "title"), name)
    joined = len(rows) - lack - unknown - differ
    counts = []
    if lack:
        counts.append(f"{lack} of {len(rows)} not joined")
    elif joined:
        counts.append(
            f"{joined} of {len(rows)} joined" if differ or unknown else f"all {joined} joined"
        )
    if differ:
        counts.append(f"{differ} with another call")
    count = ", ".join(counts)
    more = f"{', ' if counts else ''}{unknown} not known" if unknown else ""
    return title, line((count, "bad" if lack or differ else ""), (more, "warn"))


def grid_note(rows: list[MemberRow]) -> Line:
    """Return the regular distance between the members: `every 8th rank`."""
    ranks = sorted(row.attendee.rank for row in rows if not is_key(row.attendee.rank))
    apart = {after - before for before, after in pairwise(ranks)}
    if len(ranks) < 3 or len(apart) > 1 or (step := apart.pop()) < 2:
        return EMPTY
    teens = step % 100 in (11, 12, 13)
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(step % 10, "th")
    return line((f"every {step}{ending} rank", "dim"))


def grid_hint(rows: list[MemberRow]) -> Line:
    """Return the legend of the marks."""
    parts: list[tuple[str, str]] = []
    shown = {row.attendee.how for row in rows}
    words = {"■": "joined", "□": "not", "✖": "other call", "?": "no data"}
    for how, (mark, role) in MARKS.items():
        if mark in words and (how in shown or mark in "■□"):
            parts += [("  ", ""), (mark, role), (f" {words.pop(mark)}", "label")]
    return line(*parts[1:])


def facts(row: MemberRow) -> tuple[query.Fields, frozenset[int]]:
    """Return the fields of a member, for the filter."""
    newest = row.attendee.newest
    fields: dict[str, str | float | None] = {
        "rank": None if is_key(row.attendee.rank) else float(row.attendee.rank),
        "node": row.live.node if row.live else None,
        "joined": WORDS[row.attendee.how][0],
        "last": None if newest is None else float(newest),
        "now": " ".join(row.doing),
        "state": row.live.state if row.live else None,
    }
    return fields, frozenset({row.attendee.rank})
