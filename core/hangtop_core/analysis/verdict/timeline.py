"""The timeline of a job that does not get on: when it started, stopped, and what was said then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.flight.countdown import countdown
from hangtop_core.analysis.standing import JITTER_S
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.diagnosis import Moment
from hangtop_core.logs.meaning.kernel_lines import read
from hangtop_core.model.node.states import AWAY
from hangtop_core.text import node_sets
from hangtop_core.text.clean import clean, duration, plural, shorten
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Hit, Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import MomentKind
    from hangtop_core.model.node.facts import KernelLine

SHOWN = 4
"""Moments of one kind, and verdicts whose first sign is told."""
TOGETHER_S = 5.0
"""Ranks that were started within this time were started together."""


def timeline(case: Case, hits: Sequence[Hit], since: float | None) -> tuple[Moment, ...]:
    """Say what happened when, earliest first.

    Args:
        case: what was observed.
        hits: what was found, best first.
        since: when the job last got anywhere, where it hangs.
    """
    found = [
        *_starts(case),
        *_watched(case),
        *_signs(case, hits, since),
        *_stops(case, since),
        *_leaves(case),
        *_flights(case),
        *_due(case),
        *_logs(case),
        *_kernel(case),
        *_gpus(case),
    ]
    return tuple(sorted(found, key=lambda one: one.at))


def _moment(at: float, kind: MomentKind, rank: int | None, text: str) -> Moment:
    return Moment(round(at, 3), kind, rank, clean(text, 300))


def _starts(case: Case) -> Iterator[Moment]:
    processes = [s.rank.process for s in case.subjects] or list(case.job.launchers)
    times = sorted(one.started_at for one in processes if one.started_at)
    if not times:
        return
    what = plural(len(times), "rank") if case.subjects else plural(len(times), "launcher")
    if times[-1] - times[0] <= TOGETHER_S:
        yield _moment(times[0], "started", None, f"{what} started")
        return
    yield _moment(times[0], "started", None, f"first of {what} started")
    yield _moment(times[-1], "started", None, f"last of {what} started")


def _watched(case: Case) -> Iterator[Moment]:
    yield _moment(case.snapshot.observed_since, "watched", None, "hangtop began to watch")


def _signs(case: Case, hits: Sequence[Hit], since: float | None) -> Iterator[Moment]:
    """When ranks that are blamed last got anywhere, where that is known.

    Not where that would be after the job itself last did: who looks again and again is only known
    to have got nowhere since it is watched.
    """
    said = set()
    for hit in hits[:SHOWN]:
        told = [s for s in hit.subjects if knows_since(case, s)]
        numbers = tuple(s.number for s in told)
        if not told or numbers in said:
            continue
        said.add(numbers)
        first = min(told, key=lambda s: s.standing.since)
        number = first.number if len(told) == 1 else None
        if hit.late is not None:
            were = "was" if len(told) == 1 else "were"
            yield _moment(hit.late, "sign", number, f"{name_ranks(told)} {were} {_held(first)}")
            continue
        if since is not None and first.standing.since > since + JITTER_S:
            continue
        text = f"{name_ranks(told)} last got anywhere"
        if len(told) > 1:
            text = f"the first of {name_ranks(told)} stopped getting anywhere"
        yield _moment(first.standing.since, "sign", number, text)


def _held(subject: Subject) -> str:
    """In what way a rank is held, for sentences."""
    kinds = {"stopped": "stopped by a signal", "traced": "stopped by a debugger"}
    return kinds.get(subject.activity.kind, "frozen")


def knows_since(case: Case, subject: Subject) -> bool:
    """Whether it is known since when a rank has got nowhere, not only that it has while watched."""
    one = subject.standing
    return one.moved or one.since < case.snapshot.observed_since - JITTER_S


def _stops(case: Case, since: float | None) -> Iterator[Moment]:
    at = case.progress.since if since is None else since
    if at is None or case.progress.state not in ("hung", "unknown"):
        return
    whom = "any rank" if case.subjects else "the launcher"
    yield _moment(at, "stopped", None, f"last sign of progress of {whom}")
    if case.progress.state == "hung" and at + case.hang_after <= case.at:
        wait = duration(case.hang_after)
        yield _moment(at + case.hang_after, "hung", None, f"a hang: no progress for {wait}")


def _leaves(case: Case) -> Iterator[Moment]:
    gone = [s for s in case.subjects if s.rank.process.gone_at is not None]
    gone.sort(key=lambda s: s.rank.process.gone_at or 0.0)
    for subject in gone[:SHOWN]:
        at = subject.rank.process.gone_at or 0.0
        yield _moment(
            at, "left", subject.number, f"{rank_name(subject.number)} {subject.activity.text}"
        )
    with_ranks = {s.rank.node for s in case.subjects}
    silent = [
        (node.last_seen, name)
        for name in case.job.nodes
        if name in with_ranks
        and (node := case.nodes.get(name)) is not None
        and node.state in AWAY
        and node.last_seen is not None
    ]
    silent.sort()
    for at, name in silent[:SHOWN]:
        yield _moment(at, "left", None, f"{name} was last heard of")
    if len(silent) > SHOWN:
        rest = node_sets.fold(name for _, name in silent[SHOWN:])
        were = "was" if len(silent) == SHOWN + 1 else "were"
        yield _moment(silent[SHOWN][0], "left", None, f"{shorten(rest, 60)} {were} last heard of")


def _flights(case: Case) -> Iterator[Moment]:
    for one in case.in_flight[:SHOWN]:
        made = sorted(
            (entry.created_ns / 1e9, rank)
            for rank, entry in one.entries.items()
            if entry.created_ns
        )
        if not made:
            continue
        what = f"{one.entry.name} on group {one.label.removeprefix('group ')}"
        yield _moment(made[0][0], "flight", made[0][1], f"{rank_name(made[0][1])} issues {what}")
        if len(made) > 1 and made[-1][0] - made[0][0] >= 1.0:
            yield _moment(made[-1][0], "flight", made[-1][1], f"{rank_name(made[-1][1])} does, too")


def _due(case: Case) -> Iterator[Moment]:
    first = countdown(case.picture.waits) if case.picture is not None else None
    if first is None or (case.progress.stalled_for_s or 0.0) <= 0.0:
        return
    verb = "times out" if first.at >= case.at else "should have timed out"
    text = f"{first.operation.entry.name} of {rank_name(first.rank)} {verb}, after "
    yield _moment(first.at, "due", first.rank, text + duration(first.timeout_s))


def _logs(case: Case) -> Iterator[Moment]:
    judged, written = case.said.judged, case.said.written
    if judged is None:
        return
    folds = [judged.first] if judged.first is not None else []
    for fold in (*folds, *judged.others)[:SHOWN]:
        record = fold.record
        who = f"{rank_name(record.rank)}: " if record.rank is not None else ""
        by = written[record.file] if record.file < len(written) else None
        if record.at is not None and (record.exact or by is None):
            yield _moment(record.at, "log", record.rank, f"{who}{record.text}")
        elif by is not None:
            # Its line tells no time: it was there when its file was last written.
            yield _moment(by, "log", record.rank, f"{who}{record.text} (printed by then)")


def _kernel(case: Case) -> Iterator[Moment]:
    """What the kernel said since the start of devices, and of processes of the job."""
    nodes = [case.nodes[name] for name in case.job.nodes if name in case.nodes]
    if not any(node.kernel_lines for node in nodes):
        return

    def about(node: str, line: KernelLine) -> bool:
        known = read(line)
        return known is not None and bool(known.pid is None or case.owners.of(node, known.pid))

    lines = [
        (line.at, node.name, line.text)
        for node in nodes
        for line in node.kernel_lines
        if line.at >= case.began and about(node.name, line)
    ]
    for at, name, text in sorted(lines)[:SHOWN]:
        yield _moment(at, "kernel", None, f"{name}: {text}")


def _gpus(case: Case) -> Iterator[Moment]:
    events = [
        (event.at, name, event)
        for (name, _), some in case.xids.items()
        for event in some
        if event.line is None
    ]
    for at, name, event in sorted(events, key=lambda one: one[0])[:SHOWN]:
        yield _moment(at, "gpu", None, f"{name} GPU {event.gpu}: {event.text}")
