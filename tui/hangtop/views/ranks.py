"""The table of ranks: what stands in a row, and in which order rows come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.columns import Column
from hangtop.spans import Line, line
from hangtop.views.common import (
    ODD_STATES,
    STATE_ROLES,
    culprits,
    idle_seconds,
    main_frames,
    main_thread,
    rank_key,
    seen,
    span,
    unheard,
)
from hangtop.views.places import doing
from hangtop_core.text import clean

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model import Job, Rank, Snapshot


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank, with what the table shows of it."""

    key: str
    rank: Rank
    idle: float | None
    place: str
    """Where the user's code is, `train.py:41 (step)`."""
    call: str
    """What it called there."""
    why: str
    why_role: str
    silent: str
    """`lost 43 s` when its node does not answer: all else is what was last seen."""
    order: tuple[int, int, int]
    """Suspicion: culprits first, then odd states, then few ranks on one stack, then rank."""


def rank_rows(
    snapshot: Snapshot, job: Job | None, diagnosis: Diagnosis | None, now: float
) -> list[RankRow]:
    """Rows of all ranks, the most suspicious first."""
    if job is None:
        return []
    blamed = culprits(diagnosis)
    best = diagnosis.verdicts[0] if diagnosis and diagnosis.verdicts else None
    victims = frozenset(best.victims) if best else frozenset()
    sharing = Counter(class_of(rank) for rank in job.ranks)
    quiet = unheard(snapshot.nodes, now)
    rows = [
        _row(snapshot, rank, blamed, victims, sharing[class_of(rank)], quiet.get(rank.node), now)
        for rank in job.ranks
    ]
    rows.sort(key=lambda row: row.order)
    return rows


def class_of(rank: Rank) -> str:
    """What tells its stack class: the key of its main thread's stack, empty without one."""
    thread = main_thread(rank.sample)
    return thread.stack if thread else ""


def _row(
    snapshot: Snapshot,
    rank: Rank,
    blamed: dict[tuple[str, int | None], str],
    victims: frozenset[int],
    sharing: int,
    old: tuple[str, float] | None,
    now: float,
) -> RankRow:
    frames = main_frames(snapshot, rank.sample)
    place, call = doing(frames)
    cause = blamed.get((rank.node, rank.process.pid)) or blamed.get(("rank", rank.rank))
    failure = rank.sample.failure if rank.sample else None
    why, role, level = "", "", 3
    if cause is not None:
        why, role, level = f"◀ {cause}", "culprit", 0
    elif rank.state == "exited":
        why, role, level = _exit(rank), "bad", 1
    elif rank.state in ODD_STATES:
        why, role, level = rank.state, "bad", 1
    elif failure is not None and not frames:
        why, role, level = f"no stack: {failure.text}", "warn", 2
    elif rank.process.denied:
        why, role, level = rank.process.denied, "warn", 2
    elif rank.rank in victims:
        why, role = "waits", "victim"
    if (number := _number(rank)) and level in (0, 3):
        why, role, level = (f"{why}, {number}", role, level) if why else (f"saw {number}", "bad", 2)
    if old is not None:
        why, role, level = (why, role, level) if cause else (seen(*old), "bad", 1)
    if not frames and not call:
        place = "-" if rank.sample is None else "no stack"
    return RankRow(
        key=rank_key(rank),
        rank=rank,
        idle=idle_seconds(rank, now - old[1] if old else now),
        place=place,
        call=call,
        why=why,
        why_role=role,
        silent=f"{old[0]} {span(old[1])}" if old else "",
        order=(level, sharing if level == 3 else 0, rank.rank),
    )


def _number(rank: Rank) -> str:
    """`inf at batch 3`: what a rank saw first that is not finite; see `views.numerics`."""
    first = rank.numerics.first if rank.numerics is not None else None
    return f"{clean(first.what, 8)} at batch {first.batch}" if first is not None else ""


def _exit(rank: Rank) -> str:
    code = rank.process.exit_code
    if code is None:
        return "exited"
    return f"killed by signal {-code}" if code < 0 else f"exited with {code}"


def _state(row: RankRow) -> Line:
    if row.silent:
        return line((row.silent, "bad"))
    return line((row.rank.state, STATE_ROLES[row.rank.state]))


def _cpu(row: RankRow) -> Line:
    share = row.rank.cpu_share
    return line(("-", "dim")) if share is None or row.silent else line(f"{share:.0%}")


RANK_COLUMNS: tuple[Column[RankRow], ...] = (
    Column(
        "rank",
        "RANK",
        lambda row: line((str(row.rank.rank), "bold")),
        lambda row: row.rank.rank,
        minimum=4,
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
