"""Loops that a rank stays in while all others wait for it: with an end of their own, and without.

Who goes from function to function gets on, as far as anybody can see, also in a `while True:` that
draws, rejects and draws again, or tries again for ever. Such a loop is told from slow work by time:
the others have waited for ever so long, this rank is in a loop that none of them is in, only the
program's own `break` or `return` ends it, and nothing that is written, read or printed moves.

And who is always met in the same functions gets on as far as its lines change, or nothing is called
in the one that it is met in, where all loops that none of the others is in come to their end: they
go from one thing to the next, or each turn takes something away and puts nothing back
(`hangtop_probe.worklists`).

Who stays in a `while` that nothing counts, runs plain Python only and gets no memory meanwhile is
told sooner: work on anything new would show (`whiles`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.dictionary import COMMUNICATION, Kind
from hangtop_core.analysis.eventloops import of_gloo
from hangtop_core.analysis.frames import ENDLESS, plain_name
from hangtop_core.analysis.standing import GONE, Standing, latest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.analysis.frames import Loop
    from hangtop_core.model import Frame, Rank, StackSample

_MAY_LOOP: frozenset[Kind] = frozenset({"busy", "gil", "sleep", "remote", "unknown"})
_INLINE = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
"""Functions that are loops themselves; what they go through stands in their line."""
_LOOPS = ("for ", "while ", "async for ")
_THINGS = re.compile(r"\bfor\s.+\sin\s|while .+# ends$")
_NEVER = re.compile(
    r"\bin\s+(?:\w+\.)*(?:count|repeat|cycle|iter)\s*\("
    r"|\brange\s*\([^)]*(?:\*\*|<<|\d[\d_]{7}|maxsize|inf)"
)
"""Of what there is always more. Who goes on to a number without a pause gets there."""
_CALLS = re.compile(r"[\w\])]\(|\*\*|\b(?:await|yield|with|import)\b|^(async )?for .*[^]]:$")
"""In a line: one without runs no code but operators. The next thing may take long to come."""
_QUICK = re.compile(r"\b(?:len|range|abs|ord|chr|isinstance|append|pop|popleft|add)\(")
"""Calls that are over at once; of anything but Python's own they were frames of their own."""


LoopPlace = tuple[str, str, int]
"""File, function and line of a loop."""


def loop_places(reader: Reader, ranks: Iterable[Rank]) -> frozenset[LoopPlace]:
    """Return where the endless loops are that any of these ranks is in."""
    samples = {s.threads[0].stack: s for r in ranks if (s := r.sample) is not None and s.threads}
    return frozenset(_place(loop) for s in samples.values() for loop in _loops(reader, s))


def endless_loop(reader: Reader, rank: Rank, theirs: Container[LoopPlace]) -> Loop | None:
    """Return the outermost endless loop that a rank is in, and that is none of ``theirs``."""
    own = _loops(reader, rank.sample)
    return next((loop for loop in own if _place(loop) not in theirs), None)


def circle(
    reader: Reader, rank: Rank, theirs: Container[tuple[str, int]]
) -> tuple[Loop, float] | None:
    """Return the outermost `while` that a rank goes round in, and since when.

    Args:
        reader: of its stack.
        rank: that runs.
        theirs: file and line of the loops that those who wait are in.
    """
    sample = rank.sample
    if sample is None or not sample.loops or not sample.threads:
        return None
    since = {(file, name, line): at for file, name, line, at in sample.loops}
    stack, called = reader.frames(sample.threads[0].stack), False
    for frame in reversed(stack):
        if plain_name(frame.name) in _INLINE:
            return None
        taken = called or plain_name(frame.name) == "__iter__"
        called = False
        for line, text in frame.within or ():
            if (frame.file, line) in theirs or not text.startswith(_LOOPS):
                continue
            if text.startswith("while "):
                if taken and ENDLESS.match(text):
                    continue  # of a generator, which others have left for a while
                at = since.get((frame.file, frame.name, line))
                return None if at is None else ((frame, line, text), at)
            called = line == frame.line  # what it goes through is made, or asked for the next thing
            if not called:
                return None
    return None


def blocks(reader: Reader, ranks: Iterable[Rank]) -> frozenset[tuple[str, int]]:
    """Return file and line of all loops and conditions that any of these ranks is in."""
    stacks = {s.threads[0].stack for r in ranks if (s := r.sample) is not None and s.threads}
    frames = (frame for stack in stacks for frame in reader.frames(stack))
    return frozenset((one.file, line) for one in frames for line, _ in one.within or ())


def in_circles(
    reader: Reader,
    ranks: Sequence[Rank],
    activities: Sequence[Activity],
    standings: tuple[Standing, ...],
    hang_after: float,
) -> tuple[Standing, ...]:
    """Return the standings, of ranks that have long gone round in a `while` as still since then.

    Args:
        reader: of their stacks.
        ranks: of the job.
        activities: one for each of them.
        standings: likewise.
        hang_after: seconds that this has to have lasted.
    """
    busy = [i for i, rank in enumerate(ranks) if rank.sample is not None and rank.sample.loops]
    busy = [i for i in busy if activities[i].kind == "busy"]
    if not busy:
        return standings
    waiting = [ranks[i] for i, one in enumerate(activities) if one.kind in COMMUNICATION]
    if not waiting:
        return standings
    found, theirs = list(standings), blocks(reader, waiting)
    for i in busy:
        rank, one = ranks[i], standings[i]
        told = circle(reader, rank, theirs)
        if told is None:
            continue
        signs = (rank.io_moved_at, rank.printed_at, rank.wrote_at, rank.file_moved_at, told[1])
        since = latest(signs)
        if since is not None and since < one.since and one.seen - since >= hang_after:
            found[i] = Standing(since, max(one.until, since), False, one.seen)
    return tuple(found)


def _loops(reader: Reader, sample: StackSample | None) -> tuple[Loop, ...]:
    """The endless loops of a main thread, outermost first."""
    if sample is None or not sample.threads:
        return ()
    return reader.reading(sample.threads[0].stack).endless


def _place(loop: Loop) -> LoopPlace:
    frame, line, _ = loop
    return frame.file, frame.name, line


def without_end(
    reader: Reader,
    ranks: Sequence[Rank],
    activities: Sequence[Activity],
    standings: Sequence[Standing],
    patience: float,
) -> tuple[Standing, ...]:
    """Return the standings, of ranks in an endless loop as still as those that wait for them.

    Args:
        reader: of their stacks.
        ranks: of the job.
        activities: one for each of them.
        standings: likewise.
        patience: seconds for which all others have to have waited.
    """
    told = tuple(standings)
    waiting = [i for i, one in enumerate(activities) if one.kind in COMMUNICATION]
    rest = [i for i, one in enumerate(activities) if one.kind not in COMMUNICATION | GONE]
    if not waiting or min(told[i].still_s for i in waiting) < patience:
        return told
    since = max(told[i].since for i in waiting)
    found = list(told)
    theirs = loop_places(reader, [ranks[i] for i in waiting])
    for i in rest:
        rank, one = ranks[i], told[i]
        signs = (rank.io_moved_at, rank.printed_at, rank.wrote_at, rank.file_moved_at)
        flows, gloo = rank.flowed_at, of_gloo(rank) if rank.flowed_at else ()
        moved = latest((*signs, *(flows[tid] for tid in flows if tid > 0 and tid not in gloo)))
        if activities[i].kind not in _MAY_LOOP or one.since <= since:
            continue
        if moved is not None and one.seen - moved < patience / 2:
            continue
        if endless_loop(reader, rank, theirs) is not None:
            found[i] = Standing(since, one.seen, False, one.seen)
    return tuple(found)


def with_an_end(
    reader: Reader,
    ranks: Sequence[Rank],
    activities: Sequence[Activity],
    standings: tuple[Standing, ...],
    patience: float,
) -> tuple[Standing, ...]:
    """Return the standings, of ranks in loops that end as still as their lines are.

    Args:
        reader: of their stacks.
        ranks: of the job.
        activities: one for each of them.
        standings: likewise.
        patience: seconds for which the others may have waited.
    """
    busy = [i for i, one in enumerate(activities) if one.kind == "busy"]
    waiting = [i for i, one in enumerate(activities) if one.kind in COMMUNICATION] if busy else ()
    if not waiting or min(standings[i].still_s for i in waiting) >= patience:
        return standings
    found = list(standings)
    for i in busy:
        sample, one = ranks[i].sample, found[i]
        if sample is None or not sample.threads:
            continue
        same, first = sample.same_since, sample.first_at
        if same is None or first is None:
            continue
        stack, known = reader.frames(sample.threads[0].stack), max(first, one.since)
        if same <= known and _quick(stack[0].source):
            same = one.seen  # nothing in its line can keep it
        if same <= known:
            continue
        theirs = {s.threads[0].stack for j in waiting if (s := ranks[j].sample) and s.threads}
        if _ends(stack, map(reader.frames, theirs)):
            found[i] = Standing(same, max(one.until, same), True, one.seen)
    return tuple(found)


def _quick(line: str | None) -> bool:
    """Whether a line is over at once, as far as it shows."""
    return line is not None and _CALLS.search(_QUICK.sub("(", line)) is None


def _ends(stack: Sequence[Frame], theirs: Iterable[Sequence[Frame]]) -> bool:
    """Whether a stack stands in loops that no other is in, all of which come to their end."""
    shared = [frame for other in theirs for frame in other]
    functions = {(frame.file, frame.name) for frame in shared}
    lines = {(frame.file, line) for frame in shared for line, _ in frame.within or ()}
    ends = False
    for frame in stack:
        if frame.within is None:
            return False  # a library's, or nobody knows
        loops = [text for line, text in frame.within if (frame.file, line) not in lines]
        loops = [text for text in loops if text.startswith(("for ", "while ", "async "))]
        if plain_name(frame.name) in _INLINE:
            loops.append(frame.source or "")
        if not all(_THINGS.search(text) and not _NEVER.search(text) for text in loops):
            return False
        ends = ends or bool(loops)
        if (frame.file, frame.name) in functions:
            return ends
    return False
