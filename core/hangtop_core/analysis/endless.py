"""Loops that a rank stays in while all others wait for it: with an end of their own, and without.

Who goes from function to function gets on, as far as anybody can see, also in a `while True:` that
draws, rejects and draws again, or tries again for ever. Such a loop is told from slow work by time:
the others have waited for ever so long, this rank is in a loop that none of them is in, only the
program's own `break` or `return` ends it, and nothing that is written, read or printed moves.

And who is always met in the same functions gets on as far as its lines change, or nothing is called
in the one that it is met in, where all loops that none of the others is in come to their end: they
go from one thing to the next, or each turn takes something away and puts nothing back
(`hangtop_probe.stacks.worklists`).

Who stays in a `while` that nothing counts, runs plain Python only and gets no memory meanwhile is
told sooner: work on anything new would show (`while_loops`).
"""

from __future__ import annotations

import re
from itertools import dropwhile
from typing import TYPE_CHECKING

from hangtop_core.analysis.eventloops import of_gloo
from hangtop_core.analysis.standing import Standing
from hangtop_core.analysis.waiters import Waiters
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.model.meters import latest
from hangtop_core.stacks.kinds import COMMUNICATION, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.activity import Activity, Reader
    from hangtop_core.model.snapshot import Rank

_MAY_LOOP: frozenset[Kind] = frozenset({"busy", "gil", "sleep", "remote", "unknown"})
_CALLS = re.compile(r"[\w\])]\(|\*\*|\b(?:await|yield|with|import)\b|^(async )?for .*[^]]:$")
"""In a line: one without runs no code but operators. The next thing may take long to come."""
_QUICK = re.compile(
    r"\b(?:len|range|abs|ord|chr|isinstance|append|pop|popleft|add|(?:frozen)?set|list|tuple|dict"
    r"|sorted|sum|min|max|zip|enumerate|int|float|str|round|hash)\("
)
"""Calls that are soon over; of anything but Python's own they were frames of their own."""


def in_loops(
    reader: Reader,
    ranks: Sequence[Rank],
    activities: Sequence[Activity],
    standings: tuple[Standing, ...],
    hang_after: float,
    patience: float,
) -> tuple[Standing, ...]:
    """Return the standings, of ranks in loops of their own by what these tell.

    Args:
        reader: of their stacks.
        ranks: of the job.
        activities: one for each of them.
        standings: likewise.
        hang_after: seconds after which a rank that works on nothing new is as still as its memory.
        patience: seconds for which the others have to have waited before one in a loop without an
            end is as still as they are; as long is one in loops with an end believed.
    """
    waiting = [i for i, one in enumerate(activities) if one.kind in COMMUNICATION]
    rest = [i for i, one in enumerate(activities) if one.kind in _MAY_LOOP] if waiting else ()
    if not rest:
        return standings
    waiters = Waiters(reader, [ranks[i] for i in waiting])
    since = max(standings[i].since for i in waiting)
    long = min(standings[i].still_s for i in waiting) >= patience
    found = list(standings)
    for i in rest:
        busy = activities[i].kind == "busy"
        if long:
            found[i] = _without_end(waiters, ranks[i], found[i], since, patience)
        elif busy:
            found[i] = _with_an_end(waiters, reader, ranks[i], found[i])
        if busy:
            found[i] = _in_circles(waiters, ranks[i], found[i], hang_after)
    return tuple(found)


def _without_end(
    waiters: Waiters, rank: Rank, one: Standing, since: float, patience: float
) -> Standing:
    """Of a rank in an endless loop: as still as those that have waited for it ``since`` then."""
    if one.since <= since:
        return one
    flows, gloo = rank.flowed_at, of_gloo(rank) if rank.flowed_at else ()
    flowed = (flows[tid] for tid in flows if tid > 0 and tid not in gloo)
    moved = latest((rank.data_at, *flowed))
    if moved is not None and one.seen - moved < patience / 2:
        return one
    if waiters.endless_loop(rank) is None:
        return one
    return Standing(since, one.seen, False, one.seen)


def _with_an_end(waiters: Waiters, reader: Reader, rank: Rank, one: Standing) -> Standing:
    """Of a rank in loops that end: as still as its lines are."""
    sample = rank.sample
    if sample is None or not sample.threads:
        return one
    same, first = sample.same_since, sample.first_at
    if same is None or first is None:
        return one
    stack, known = reader.frames(sample.threads[0].stack), max(first, one.since)
    if not stack:
        return one  # its thread was met without a frame
    if sample.in_passing:  # what a library does there is soon over
        stack = tuple(dropwhile(lambda frame: frame.within is None, stack)) or stack
    long = same <= known or one.seen - same >= STALLED_AFTER_S
    if long and _quick(stack[0].source):
        same = one.seen  # nothing in its line can keep it: it comes back there
    if same <= known or not waiters.see_it_end(stack):
        return one
    return Standing(same, max(one.until, same), True, one.seen)


def _in_circles(waiters: Waiters, rank: Rank, one: Standing, hang_after: float) -> Standing:
    """Of a rank that has long gone round in a `while`: still since then."""
    told = waiters.circle(rank)
    since = latest((rank.data_at, told[1])) if told is not None else None
    if since is not None and since < one.since and one.seen - since >= hang_after:
        return Standing(since, max(one.until, since), False, one.seen)
    return one


def _quick(line: str | None) -> bool:
    """Whether a line is over at once, as far as it shows."""
    return line is not None and _CALLS.search(_QUICK.sub("(", line)) is None
