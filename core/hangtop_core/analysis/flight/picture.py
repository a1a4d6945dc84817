"""The traces of a job as one diagnosis, with where everyone is in every group."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hangtop_core.analysis.flight.verdicts import conclude, waited
from hangtop_core.analysis.flight.waits import Waits
from hangtop_core.analysis.flight.ways import Source
from hangtop_core.analysis.flight.world import MAX_MEMBERS, World
from hangtop_core.diagnosis import SCHEMA, BlindSpot, Diagnosis, JobSummary
from hangtop_core.text.clean import clean, plural, utc
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.flight.waits import Operation
    from hangtop_core.diagnosis import JobState
    from hangtop_core.model.recorder.trace import Trace

_WORDS = {
    "stale": "of an earlier run",
    "truncated": "cut off",
    "empty": "empty",
    "refused": "refused",
    "too-large": "too large",
    "unreadable": "not readable",
    "foreign": "not a dump",
}
"""What files are called whose dumps were not read, by the kind of the problem."""
_FIXES = {
    "stale": "remove the dumps of earlier runs",
    "truncated": "collect them again, as soon as they are whole",
    "empty": "collect them again; an empty file is left where a disk is full, or its rank ended",
    "refused": "look who wrote them: no recorder holds such data",
    "too-large": "dump fewer entries (TORCH_FR_BUFFER_SIZE)",
    "unreadable": "read them as the user whose files they are",
    "foreign": "put the dumps of these ranks in their places",
}
UNREADABLE = frozenset(_WORDS) - {"stale"}
"""Problems of a rank's file that leave open what is in it."""


class Waiting(Struct, frozen=True):
    """One operation that is not over, and where the members of its group are."""

    op: str
    seq: int | None
    """None of a send or recv: those have no number that both ends share."""
    joined: tuple[int, ...]
    """Ranks that have issued it and are not through."""
    missing: tuple[int, ...]
    over: tuple[int, ...]
    differ: tuple[int, ...]
    """Ranks that have issued something else as this number."""
    absent: tuple[int, ...]
    unsure: tuple[int, ...]
    in_flight: int
    """The most operations that one rank has in flight in the group."""
    since: str | None
    """When it was issued first, by the ranks' clocks."""
    unreadable: tuple[int, ...] = ()
    """Those without data whose recorder is there, and could not be read."""


class GroupState(Struct, frozen=True):
    """One process group."""

    uid: str
    desc: str
    label: str
    ranks: tuple[int, ...]
    ranks_recorded: bool
    """Whether the recorder holds the group's ranks; else they are those seen using it."""
    newest: int | None
    """The highest number any of its ranks has issued."""
    waiting: tuple[Waiting, ...] = ()


class FileProblem(Struct, frozen=True):
    """What was wrong with one file."""

    path: str
    kind: str
    why: str
    rank: int | None = None
    """Whose it is, by its name; None where that is not known."""


class RankEnds(Struct, frozen=True):
    """Ranks that ended alike."""

    ranks: tuple[int, ...]
    how: str
    """`finished`, `exception`, `collective`: by an exception that came out of one; `running`: when
    another rank of its node failed."""
    why: str
    """The exception."""


class FlightState(Struct, frozen=True):
    """The `flight` part of `hangtop flight --json`."""

    files: int
    versions: dict[str, int]
    libraries: dict[str, int]
    entries: int
    absent: tuple[int, ...]
    groups: tuple[GroupState, ...]
    problems: tuple[FileProblem, ...]
    recorders: tuple[Source, ...] = ()
    """By what the recorders of running ranks were read; empty of files."""
    unreadable: tuple[int, ...] = ()
    """Ranks without a recorder that was read, though there is one."""
    ended: tuple[RankEnds, ...] = ()
    """Ranks whose recorder was written when they ended, by the hook of `hangtop run`."""


class FlightDiagnosis(Diagnosis, frozen=True, kw_only=True):
    """A diagnosis from flight recorders alone; as JSON `hangtop.diagnosis/1` with `flight`."""

    flight: FlightState


class Picture(Struct):
    """All that a person may be shown of some traces."""

    world: World
    waits: Waits
    diagnosis: FlightDiagnosis


def examine(
    traces: Sequence[Trace],
    problems: Iterable[FileProblem] = (),
    files: int | None = None,
    ranks: Iterable[int] = (),
    unread: Iterable[BlindSpot] | None = None,
    recorders: Iterable[Source] = (),
    unreadable: Iterable[int] = (),
) -> Picture:
    """Judge the traces of a job.

    Args:
        traces: one per rank; their order does not matter.
        problems: what was wrong with files, for the report.
        files: how many files there were.
        ranks: ranks that are known of otherwise.
        unread: why ranks have no trace, where that is known better than from their files.
        recorders: by what the recorders of running ranks were read.
        unreadable: ranks whose recorders are there and could not be read, besides those of files.
    """
    told = tuple(problems)
    world = World(traces, ranks, {*unreadable, *unreadable_ranks(told)})
    if any(one.kind == "unreadable" and one.rank is None for one in told):
        world.doubt_absent()
    waits = Waits(world)
    verdicts = conclude(waits)
    state: JobState = "hung" if waits.operations else "unknown"
    newest = max((trace.newest_ns for trace in traces), default=0)
    seconds = waited(world, waits)
    read_by = tuple(recorders)
    live = bool(read_by)
    diagnosis = FlightDiagnosis(
        schema=SCHEMA,
        hangtop=__version__,
        observed_at=utc(newest / 1e9 if newest else time.time()),
        observed_for_s=0.0,
        state=state,
        hung_for_s=round(seconds, 1) if seconds is not None and seconds >= 1.0 else None,
        watchdog_in_s=None,
        job=JobSummary(len(world.ranks) or None, tuple(world.traces), (), None, None),
        verdicts=tuple(verdicts),
        blind_spots=(*(_absent(world) if unread is None else unread), *_blind(world, told, live)),
        flight=replace(
            _flight(world, waits, told, len(traces) if files is None else files),
            recorders=read_by,
        ),
    )
    return Picture(world, waits, diagnosis)


def _flight(
    world: World, waits: Waits, problems: tuple[FileProblem, ...], files: int
) -> FlightState:
    traces = world.traces.values()
    operations = waits.by_group()
    groups = []
    for index, group in enumerate(world.groups):
        newest = [m.newest for m in group.by_rank.values() if m.newest is not None]
        waiting = sorted(operations.get(index, ()), key=lambda one: one.node)
        groups.append(
            GroupState(
                group.uid,
                clean(group.desc, 200),
                group.label,
                group.members,
                group.configured,
                max(newest, default=None),
                tuple(_waiting(one, world) for one in waiting),
            )
        )
    return FlightState(
        files=files,
        versions=dict(Counter(clean(one.version, 40) for one in traces)),
        libraries=dict(Counter(clean(one.library, 80) for one in traces if one.library)),
        entries=sum(one.length for one in traces),
        absent=world.absent,
        unreadable=world.unreadable,
        ended=_ended(world),
        groups=tuple(groups),
        problems=problems,
    )


def _ended(world: World) -> tuple[RankEnds, ...]:
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, trace in world.traces.items():
        if trace.ended:
            alike[trace.ended, clean(trace.why_ended, 300)].append(rank)
    return tuple(RankEnds(tuple(ranks), *how) for how, ranks in alike.items())


def unreadable_ranks(problems: Iterable[FileProblem]) -> frozenset[int]:
    """Return the ranks that have a file which is there and could not be read."""
    return frozenset(
        one.rank for one in problems if one.rank is not None and one.kind in UNREADABLE
    )


def _waiting(one: Operation, world: World) -> Waiting:
    issued = [entry.created_ns for entry in one.entries.values() if entry.created_ns]
    entry = one.entry
    name = clean(entry.call.op, 80)
    if one.node.kind == "p2p":
        name += f" {one.node.source}->{one.node.target}"
    since = datetime.fromtimestamp(min(issued) / 1e9, UTC) if issued else None
    return Waiting(
        op=name,
        seq=one.node.seq if one.node.kind == "collective" else None,
        joined=tuple(sorted(one.entries)),
        missing=one.missing,
        over=one.passed,
        differ=one.mismatched,
        absent=one.absent,
        unreadable=tuple(filter(world.is_unreadable, one.absent)),
        unsure=one.unsure,
        in_flight=one.depth,
        since=since.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if since else None,
    )


def _absent(world: World) -> Iterable[BlindSpot]:
    if world.without_dump:
        why = "no dump of these ranks"
        fix = "collect the files of all nodes; a rank that died or holds the GIL writes none"
        yield BlindSpot("flight recorder", (), world.without_dump, why, fix)


def _blind(world: World, problems: Sequence[FileProblem], live: bool) -> Iterable[BlindSpot]:
    blank = world.blank
    if blank:
        why = "the dumps of these ranks hold no entries"
        fix = (
            "up to torch 2.10 the recorder is off by default: set TORCH_FR_BUFFER_SIZE=2000 "
            "(before 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
        yield BlindSpot("flight recorder", (), blank, why, "" if world.groups else fix)
    bare = tuple(r for r, trace in world.traces.items() if trace.length and not any(trace.sites))
    if bare:
        why = "these dumps hold no stacks (JSON never does): call sites cannot be compared"
        fix = "dump as pickle, with stacks"
        if all(world.traces[rank].ended for rank in bare):
            why = "these were written at the ends of ranks, without stacks"
            fix = "read the traceback in the log of each rank"
        elif live:
            why = "these recorders give no stacks of earlier calls: call sites cannot be compared"
            fix = "where a rank is now: hangtop dump; torch's own dump files have stacks"
        yield BlindSpot("call sites", (), bare, why, fix)
    guessed = [g for g in world.groups if not g.configured and g.uid != "0"]
    if guessed:
        names = ", ".join(group.label for group in guessed[:4])
        why = (
            f"the ranks of {plural(len(guessed), 'group')} ({names}) are not recorded (gloo): "
            "taken for members are those that have used it"
        )
        yield BlindSpot("process groups", (), (), why, "")
    if left_out := world.memberships.left_out:
        why = (
            f"groups name more than {MAX_MEMBERS:,} ranks in all: the members of "
            f"{plural(left_out, 'list')} are not read"
        )
        yield BlindSpot("process groups", (), (), why, "")
    yield from (spot for kind in _WORDS for spot in _unread_files(world, problems, kind))


def _unread_files(world: World, problems: Sequence[FileProblem], kind: str) -> Iterable[BlindSpot]:
    """The files of one kind of problem, with the ranks of which nothing is known by that."""
    of_kind = [one for one in problems if one.kind == kind]
    if kind == "foreign":  # anything may lie beside dumps
        of_kind = [one for one in of_kind if one.rank is not None and world.is_unreadable(one.rank)]
    if not of_kind:
        return
    names = ", ".join(one.path.rpartition("/")[2] for one in of_kind[:4])
    more = f" and {len(of_kind) - 4} more" if len(of_kind) > 4 else ""
    why = f"{plural(len(of_kind), 'file')} {_WORDS[kind]}: {names}{more}"
    ranks = {one.rank for one in of_kind if one.rank is not None}.intersection(world.absent)
    yield BlindSpot("flight recorder", (), tuple(sorted(ranks)), clean(why, 400), _FIXES[kind])
