"""Where recordings come from, why some could not be read, and the stacks beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import EMPTY, Line, labelled, line
from hangtop.views.ranks.stacks import frame_lines, last_seen
from hangtop.views.recorder.recorder import countdown_line, moment, shape
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.rank_sets import fold, rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop.source.recordings import Seen
    from hangtop.views.recorder.members import Live, MemberRow
    from hangtop_core.analysis.flight.sequences import NumberLine
    from hangtop_core.analysis.flight.world import Entry
    from hangtop_core.diagnosis import BlindSpot, Diagnosis
    from hangtop_core.model.snapshot import Job

RECORDER = "flight recorder"
"""Name of blind spots about flight recorders."""
SHOWN_PROBLEMS = 12
GLOO_TIMEOUT = (
    "gloo has no watchdog: when the time is over, the ranks that wait get an error, and the job "
    "goes down"
)


def how_read(recorded: Seen | None, total: int, *, short: bool) -> Line:
    """Return `3 of 4 recorders read`, for the edge of a pane."""
    read = len(recorded.picture.world.traces) if recorded is not None else 0
    counts = f"{read}/{total}" if short else f"{read} of {total}"
    role = "" if read == total else "warn"
    return line((counts, role), (" read" if short else " recorders read", "label"))


def source_lines(
    recorded: Seen | None, job: Job | None, diagnosis: Diagnosis | None, now: float, *, files: bool
) -> list[Line]:
    """Return how many recorders were read and how, why the others were not, and caveats."""
    lines: list[Line] = []
    if recorded is not None:
        world = recorded.picture.world
        lines += _read(recorded, max(len(world.ranks), len(job.ranks) if job else 0))
    lines += why_not(diagnosis)
    if recorded is not None and files:
        lines += _problems(recorded)
    if recorded is not None:
        if timeout := countdown_line(recorded, now):
            lines.append(labelled("timeout", line(timeout, ("  an estimate", "dim")), 8))
            if recorded.countdown is not None and recorded.countdown.backend == "gloo":
                lines.append(labelled("", line((GLOO_TIMEOUT, "dim")), 8))
        lines += [labelled("caution", text, 8) for text in recorded.cautions]
    return lines


def _read(recorded: Seen, total: int) -> list[Line]:
    read = len(recorded.picture.world.traces)
    flight = recorded.picture.diagnosis.flight
    formats = ", ".join(version for version in flight.versions if version)
    count = f"{read} of {plural(total, 'rank')}, {plural(flight.entries, 'entry', 'entries')}"
    summary = line(count, (f", format {formats}" if formats else "", "dim"))
    lines = [labelled("read", summary, 8)]
    methods = (
        (recorders.by, name_ranks(recorders.ranks))
        for recorders in flight.recorders
        if recorders.by is not None
    )
    return lines + [labelled("by", line(by, ("  " + ranks, "label")), 8) for by, ranks in methods]


def why_not(diagnosis: Diagnosis | None) -> list[Line]:
    """Return why recorders were not read, by ranks and nodes, with the fix."""
    lines: list[Line] = []
    for spot in diagnosis.blind_spots if diagnosis is not None else ():
        if spot.what != RECORDER:
            continue
        lines.append(labelled("not read", line(_subject(spot), (spot.why, "warn")), 8))
        if spot.fix:
            lines.append(labelled("fix", line((spot.fix, "code")), 8))
    return lines


def _subject(spot: BlindSpot) -> Line:
    if not spot.ranks:
        return EMPTY
    where = f" on {nodesets.fold(spot.nodes)}" if spot.nodes and spot.nodes[0] else ""
    return line(f"{name_ranks(spot.ranks)}{where}: ")


def _problems(recorded: Seen) -> Iterable[Line]:
    problems = recorded.picture.diagnosis.flight.problems
    for problem in problems[:SHOWN_PROBLEMS]:
        name = clean(problem.path, 400).rpartition("/")[2]
        yield labelled("file", line((name, "bold"), " ", (clean(problem.why, 300), "warn")), 8)
    if len(problems) > SHOWN_PROBLEMS:
        yield labelled("", f"{len(problems) - SHOWN_PROBLEMS} more files; --json names all", 8)


# Stacks beside the entry


def stack_now(
    row: MemberRow | None, now: float, *, cut: bool, files: bool
) -> tuple[Line, list[Line]]:
    """Return title and text on where the rank under the cursor is now."""
    if row is None:
        return line(("STACK", "title")), [line(("no rank is chosen", "dim"))]
    title = line(("STACK NOW  ", "title"), rank_name(row.attendee.rank))
    if files:
        text = "These are files: what ranks do now is not in them. `hangtop -w NODES` shows it."
        return title, [line((text, "dim"))]
    rank, snapshot = row.live, row.running.snapshot
    if rank is None or snapshot is None:
        text = "This rank is not seen: no process says that it is it."
        return title, [line((text, "warn"))]
    title = line(title, (f"  {rank.node}", "dim"))
    lines = last_seen(snapshot, rank, now)
    if rank.state not in ("running", "sleeping"):
        lines.append(line(("state    ", "label"), (rank.state, "bad")))
    sample = rank.sample
    if sample is None or not sample.threads:
        failure = sample.failure.text if sample is not None and sample.failure else ""
        why = f"no stack: {failure}" if failure else "no stack has been taken yet"
        return title, [*lines, line((why, "warn"))]
    frames = snapshot.stacks.get(sample.threads[0].stack, ())
    return title, [*lines, *frame_lines(frames, cut=cut)]


def waiting_entry(
    number: NumberLine | None, running: Live, *, cut: bool
) -> tuple[Line, list[Line]]:
    """Return title and text on what the waiting ranks have issued, and where in the code."""
    operation = number.operation if number is not None else None
    if number is None or operation is None:
        return line(("WAITING", "title")), [line(("No rank waits in this one.", "dim"))]
    title = line(("WAITING  ", "title"), name_ranks(operation.entries))
    lines: list[Line] = []
    for entry, members in operation.classes:
        mine = [rank for rank in members if rank in operation.entries]
        if mine:
            lines += _entry_lines(entry, mine, len(operation.classes) > 1)
            lines += _site_lines(entry, mine, running, cut=cut)
    return title, lines


def _entry_lines(entry: Entry, mine: Sequence[int], several: bool) -> list[Line]:
    states = ("scheduled", "started", "completed", "state unknown")
    number = f" #{entry.seq}" if entry.call.kind == "collective" else ""
    name = clean(f"{entry.call.op}{number}", 100)
    head = line((name, "bold"), f"  {shape(entry.call)}  ", (states[entry.state], "dim"))
    lines = [line(head, ("  at ", "label"), moment(entry.created_ns))]
    return [line(("ranks ", "label"), fold(mine)), *lines] if several else lines


def _site_lines(entry: Entry, mine: Sequence[int], running: Live, *, cut: bool) -> list[Line]:
    """Return where the entry was issued: as recorded, else where one of the ranks is now."""
    if entry.stack:
        return frame_lines(entry.stack, cut=cut)
    for number in mine:
        rank, snapshot = running.ranks.get(number), running.snapshot
        if snapshot is None or rank is None or rank.sample is None or not rank.sample.threads:
            continue
        caption = line((f"no stack in the recorder; {rank_name(number)} stands here now:", "dim"))
        frames = snapshot.stacks.get(rank.sample.threads[0].stack, ())
        return [caption, *frame_lines(frames, cut=cut)]
    return [line(("no stack in the recorder", "dim"))]
