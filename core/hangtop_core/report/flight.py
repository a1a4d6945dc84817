"""Flight recorders as plain text: the verdict, a table of operations, and the entries.

No colour codes. Everything that came from a file has been through `hangtop_core.text.clean.clean`.
"""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from hangtop_core.model.recorder.trace import DONE, RETIRED, STATE, STATES
from hangtop_core.report.diagnosis import blind_lines, verdict_lines
from hangtop_core.report.stacks import frame_text
from hangtop_core.text.clean import clean, duration, plural, shorten, shorten_middle, shorten_path
from hangtop_core.text.node_sets import fold as fold_nodes
from hangtop_core.text.rank_sets import fold, rank_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hangtop_core.analysis.flight.picture import (
        FileProblem,
        FlightDiagnosis,
        FlightState,
        GroupState,
        Picture,
        RankEnds,
        Waiting,
    )
    from hangtop_core.analysis.flight.ways import Source
    from hangtop_core.analysis.flight.world import World
    from hangtop_core.model.recorder.trace import Trace
    from hangtop_core.model.snapshot import Frame

SHOWN_ROWS = 24
SHOWN_PROBLEMS = 10
MIN_WIDTH = 60


def flight_text(diagnosis: FlightDiagnosis, width: int, limit: int = 0) -> str:
    """Return verdicts, a table of operations in flight, blind spots and files, wrapped to a width.

    Args:
        diagnosis: the diagnosis from the recorders.
        width: in characters.
        limit: maximum number of verdicts; 0: all.
    """
    width = max(width, MIN_WIDTH)
    lines = [shorten(_head(diagnosis), width)]
    total = len(diagnosis.verdicts)
    for number, verdict in enumerate(diagnosis.verdicts[: limit or total], 1):
        lines += ["", *verdict_lines(verdict, number, total, width)]
    if diagnosis.state == "hung" and not total:
        lines += ["", f"No cause could be told{_why_no_cause(diagnosis.flight)}."]
    if limit and total > limit:
        lines += ["", f"{plural(total - limit, 'more verdict')} (--mismatch_cap)"]
    lines += ["", *_groups(diagnosis.flight.groups, width)]
    lines += _ends(diagnosis.flight.ended, width)
    if diagnosis.blind_spots:
        lines += ["", "Blind spots"]
        for spot in diagnosis.blind_spots[:SHOWN_PROBLEMS]:
            lines += blind_lines(spot, width)
    lines += _files(diagnosis.flight.problems, width)
    lines += _read(diagnosis.flight.recorders, width)
    return "\n".join(lines) + "\n"


def _why_no_cause(flight: FlightState) -> str:
    """Return what prevents a verdict, behind a colon; empty if nothing does."""
    if flight.unreadable:
        noun = "ranks" if len(flight.unreadable) > 1 else "rank"
        return f": the recorder of {noun} {fold(flight.unreadable)} cannot be read"
    few = "too few recorders" if flight.recorders else "too few dumps"
    return f": {few}" if flight.absent else ""


def _head(diagnosis: FlightDiagnosis) -> str:
    flight, job = diagnosis.flight, diagnosis.job
    count = len(job.ranks_seen) if job is not None else 0
    size = job.world_size if job is not None else None
    if flight.recorders and not count:
        return f"NOT KNOWN: no recorder of {size} ranks could be read"
    if flight.unreadable and not count:
        return f"NOT KNOWN: no dump of {plural(size or 0, 'rank')} could be read"
    of = f" of {size}" if size is not None else ""
    versions = ", ".join(flight.versions) or "?"
    libraries = "".join(f", library {name}" for name in list(flight.libraries)[:2])
    entries = plural(flight.entries, "entry", "entries")
    source = "recorders" if flight.recorders else "dumps"
    state = _state_text(diagnosis, count)
    return f"{state}: {source} of {count}{of} ranks, {entries} (format {versions}{libraries})"


def _state_text(diagnosis: FlightDiagnosis, count: int) -> str:
    """Return the state in capitals."""
    if diagnosis.state == "hung":
        if count and count == sum(len(ends.ranks) for ends in diagnosis.flight.ended):
            return "ENDED while ranks waited"
        waited = diagnosis.hung_for_s
        return f"HUNG for {duration(waited)} or more" if waited is not None else "HUNG"
    running = diagnosis.flight.recorders and diagnosis.state == "progressing"
    return "PROGRESSING" if running else "NOTHING IN FLIGHT"


class _Row(Struct):
    """Operations with equal states, of groups of one kind."""

    labels: list[str]
    desc: str
    seqs: set[int]
    op: str
    joined: set[int]
    without: dict[str, set[int]]


def _groups(groups: Sequence[GroupState], width: int) -> Iterator[str]:
    rows = _rows(groups)
    if rows:
        yield "In flight, the first to stall above"
        yield from _table(rows[:SHOWN_ROWS], width)
        if len(rows) > SHOWN_ROWS:
            yield f"  {len(rows) - SHOWN_ROWS} more (--json has all)"
    calm = [group for group in groups if not group.waiting]
    if calm:
        used = [group for group in calm if group.newest]
        names = ", ".join(f"{group.label} at #{group.newest}" for group in used[:3])
        more = f" and {len(used) - 3} more" if len(used) > 3 else ""
        labels = f": {names}{more}" if names else ""
        yield shorten(f"Nothing in flight in {plural(len(calm), 'group')}{labels}", width)
    if not groups:
        yield "No process group is recorded."


def _rows(groups: Sequence[GroupState]) -> list[_Row]:
    """Return a row for each operation; groups of one description at the same point share a row."""
    rows: dict[tuple[object, ...], _Row] = {}
    pairs = [(group, operation) for group in groups for operation in group.waiting]
    pairs.sort(key=lambda pair: (pair[1].since or "~", pair[0].label))
    for group, operation in pairs:
        without = {name: set(ranks) for name, ranks in _without(operation) if ranks}
        op = operation.op.partition(" ")[0] if operation.seq is None else operation.op
        key = (group.desc or group.uid, operation.seq, op, *without)
        row = rows.setdefault(key, _Row([], group.desc, set(), op, set(), {}))
        if group.label not in row.labels:
            row.labels.append(group.label)
        row.seqs |= {operation.seq} if operation.seq is not None else set()
        row.joined.update(operation.joined)
        for name, ranks in without.items():
            row.without.setdefault(name, set()).update(ranks)
    return list(rows.values())


def _without(operation: Waiting) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "", operation.missing
    yield "differ: ", operation.differ
    yield "over on ", operation.over
    yield "no dump: ", tuple({*operation.absent} - {*operation.unreadable})
    yield "unreadable: ", operation.unreadable
    yield "unsure: ", operation.unsure


def _table(rows: Iterable[_Row], width: int) -> Iterator[str]:
    cells = [("GROUP", "#", "OPERATION", "JOINED", "NOT")]
    for row in rows:
        label = row.labels[0]
        if len(row.labels) > 1:
            label = clean(f"{row.desc} ({plural(len(row.labels), 'group')})", 80)
        remaining = "; ".join(f"{name}{fold(ranks)}" for name, ranks in row.without.items())
        cells.append((label, fold(row.seqs), row.op, fold(row.joined), remaining or "-"))
    number = min(max(len(row[1]) for row in cells), 9)
    widest = [max(len(row[n]) for row in cells) for n in (0, 2, 3, 4)]
    sizes = _share(widest, width - 2 * 5 - number)
    for line in cells:
        # Labels of one description differ only at the end.
        group = shorten_middle(line[0], sizes[0]).ljust(sizes[0])
        op, joined, remaining = (
            shorten(text, size).ljust(size) for text, size in zip(line[2:], sizes[1:], strict=True)
        )
        yield f"  {group}  {line[1]:>{number}}  {op}  {joined}  {remaining}".rstrip()


def _share(wanted: Sequence[int], free: int) -> list[int]:
    """Return widths of columns: narrow ones in full, the others share the remaining space."""
    sizes = [0] * len(wanted)
    left = sorted(range(len(wanted)), key=lambda n: wanted[n])
    while left:
        number = left.pop(0)
        sizes[number] = max(min(wanted[number], free // (len(left) + 1)), 3)
        free -= sizes[number]
    return sizes


def _ends(ended: Sequence[RankEnds], width: int) -> Iterator[str]:
    """Yield how ranks ended whose recorders were written at their end."""
    if not ended:
        return
    yield ""
    yield "Ended"
    for ends in ended[:SHOWN_PROBLEMS]:
        how = f"by {ends.why}" if ends.why else "without an exception"
        if ends.how == "running":
            how = "running when another rank failed, and most likely ended by its launcher"
        yield shorten(f"  {fold(ends.ranks)}: {how}", width)
    if len(ended) > SHOWN_PROBLEMS:
        yield f"  {len(ended) - SHOWN_PROBLEMS} more (--json has all)"


def _files(problems: Sequence[FileProblem], width: int) -> Iterator[str]:
    if not problems:
        return
    yield ""
    yield "Files"
    for problem in problems[:SHOWN_PROBLEMS]:
        path = shorten_path(clean(problem.path, 400), width // 2)
        rank = f" ({rank_name(problem.rank)})" if problem.rank is not None else ""
        text = f"{path}{rank} {clean(problem.why, 200)}"
        yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    if len(problems) > SHOWN_PROBLEMS:
        yield f"  {len(problems) - SHOWN_PROBLEMS} more (--json has all)"


def _read(recorders: Sequence[Source], width: int) -> Iterator[str]:
    """Yield how the recorders of running ranks were read, with cautions."""
    read = [source for source in recorders if source.by is not None]
    if not read:
        return
    yield ""
    yield "Read by"
    for source in read:
        nodes = f" on {fold_nodes(source.nodes)}" if source.nodes != ("",) else ""
        text = f"{source.by}: {plural(len(source.ranks), 'rank')} ({fold(source.ranks)}){nodes}"
        yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
        for caution in source.cautions:
            yield from textwrap.wrap(
                caution, width, initial_indent="    ", subsequent_indent="    "
            )


_EntryKey = tuple[int, int, int, int, int]
"""Group, sequence number, call, flags and site: equal for ranks with equal entries."""


class _SharedEntry(NamedTuple):
    """An entry, in the trace of the first rank that has it."""

    trace: Trace
    at: int
    ranks: list[int]


def entries_text(
    picture: Picture,
    width: int,
    ranks: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    stacks: bool = False,
) -> Iterator[str]:
    """Yield all entries as a table, oldest first; ranks with equal entries share a line.

    Args:
        picture: the traces.
        width: in characters.
        ranks: only these; None: all.
        groups: only groups with one of these names or descriptions.
        stacks: print the stack below each line.
    """
    world = picture.world
    shared: dict[_EntryKey, _SharedEntry] = {}
    for rank, trace in world.traces.items():
        if ranks is not None and rank not in ranks:
            continue
        for at, key in _entry_keys(world, rank, groups, stacks):
            if key not in shared:
                shared[key] = _SharedEntry(trace, at, [])
            shared[key].ranks.append(rank)
    yield f"{'TIME':<8}  {'#':>8}  {'STATE':<9}  {'RANKS':<14}  GROUP, OPERATION"
    last: tuple[Frame, ...] = ()
    for key, entry in sorted(shared.items(), key=lambda i: (i[1].trace.created[i[1].at], i[0])):
        trace, at = entry.trace, entry.at
        yield _entry_line(trace, at, entry.ranks, world.groups[key[0]].label, width)
        stack = trace.sites[trace.site[at]]
        if stacks and stack and stack != last:
            yield from (
                f"{'':>10}{shorten(frame_text(frame), max(width - 10, 20))}" for frame in stack
            )
            last = stack
    if not shared:
        yield "no entries" + (" of these ranks and groups" if ranks or groups else "")


def _entry_keys(
    world: World, rank: int, groups: Collection[str] | None, stacks: bool
) -> Iterator[tuple[int, _EntryKey]]:
    """Yield the place and the key of each entry of a rank in these groups."""
    trace = world.traces[rank]
    indices = [world.group_of(rank, n) for n in range(len(trace.groups))]
    chosen = [
        groups is None or bool({world.groups[n].uid, world.groups[n].desc} & set(groups))
        for n in indices
    ]
    calls = [hash(call) for call in trace.calls]
    sites = [hash(stack) if stacks else 0 for stack in trace.sites]
    columns = zip(trace.group, trace.seq, trace.call, trace.flag, trace.site, strict=True)
    for at, (group, seq, call, flag, site) in enumerate(columns):
        if chosen[group]:
            yield at, (indices[group], seq, calls[call], flag, sites[site])


def last_entries(trace: Trace, count: int) -> list[str]:
    """Return the newest entries of one rank, oldest first, a line each."""
    lines = []
    for at in range(max(trace.length - count, 0), trace.length):
        group, call = trace.groups[trace.group[at]], trace.calls[trace.call[at]]
        state = "completed" if trace.flag[at] & DONE else "not completed"
        name = group.desc or group.uid
        lines.append(clean(f"{name} #{trace.seq[at]} {call.text} {state}", 300))
    return lines


def _entry_line(trace: Trace, at: int, ranks: Sequence[int], label: str, width: int) -> str:
    flag, created = trace.flag[at], trace.created[at]
    state = STATES[flag & STATE]
    if flag & DONE:
        state = "completed"
    elif flag & RETIRED:
        state = "timed out"
    when = f"{datetime.fromtimestamp(created / 1e9, UTC):%H:%M:%S}" if created else "-"
    call = trace.calls[trace.call[at]]
    name = call.name.rpartition(":")[2]
    text = clean(f"{label}  {name} {call.text.partition(' ')[2]}", 300)
    folded = shorten(fold(ranks), 14)
    line = f"{when:<8}  {trace.seq[at]:>8}  {state:<9}  {folded:<14}  {text}"
    return shorten(line.rstrip(), width)
