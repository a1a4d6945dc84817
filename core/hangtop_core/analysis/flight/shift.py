"""Where a rank left the path of the others: a step that was skipped, and only noticed later.

When a rank skips an operation, its next one takes the same sequence number; if both look alike,
the library pairs them and nobody notices, until something differs. So the number at which ranks
hang can lie far behind the place of the error. Calls, sizes and call sites of the two sequences,
compared number by number, show where they part, as far as the rings still hold it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.analysis.flight.alike import kind
from hangtop_core.analysis.flight.world import Entry, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

REFERENCES = 5
"""How many other members the sequence of a rank is compared with."""

Key = tuple[str, ...]


class Shift(Struct, frozen=True):
    """Where a rank's sequence of one group parts from that of the others."""

    rank: int
    how: Literal["skipped", "added", "differs"]
    seq: int
    """The first number at which something differs."""
    first: int
    """The operations from this number on look alike: it may have been any of them."""
    expected: Entry
    """What the others have at `seq`."""
    found: Entry
    """What this rank has there."""
    known: bool
    """Whether the others have issued the like of that, too, as far as their rings go back."""
    moved: int
    """How many operations after it are those of the others, moved by one."""
    again: bool = False
    """Whether what it has there, and nothing after that, is what it has issued right before, too:
    it may have issued that once more than the others, and left out nothing."""


def locate(world: World, rank: int, group: int, others: Iterable[int]) -> Shift | None:
    """Compare a rank's collectives in a group with those of others that agree; None: no difference.

    Args:
        world: all traces.
        rank: whose sequence.
        group: index of the group.
        others: members to compare with, those that are not suspected.
    """
    own, usual = compared(world, rank, group, others)
    if not own or not usual:
        return None
    common = sorted(own.keys() & usual.keys())
    use_sites = _comparable(own, usual, common)
    mine = {seq: _key(entry, use_sites) for seq, entry in own.items()}
    theirs = {seq: _key(entry, use_sites) for seq, entry in usual.items()}
    at = next((seq for seq in common if mine[seq] != theirs[seq]), None)
    if at is None or (at == common[0] and len(common) > 1 and _all_differ(mine, theirs, common)):
        return None
    how, moved = _how(mine, theirs, at)
    return Shift(
        rank=rank,
        how=how,
        seq=at,
        first=_first_alike(mine, theirs, at),
        expected=usual[at],
        found=own[at],
        known=mine[at] in theirs.values(),
        moved=moved,
        again=moved < 2 and at == max(mine) and mine.get(at - 1) == mine[at],
    )


def compared(
    world: World, rank: int, group: int, others: Iterable[int]
) -> tuple[dict[int, Entry], dict[int, Entry]]:
    """The collectives of a rank in a group by their numbers, and those that others usually have."""
    references = [
        _sequence(world, other, group) for other in _spread(list(others)) if other in world.traces
    ]
    return _sequence(world, rank, group), _usual(references) if references else {}


def is_moved(own: dict[int, Entry], usual: dict[int, Entry], at: int) -> bool:
    """Whether from a number on a rank's calls are those of the others, moved by one."""
    mine = {seq: _key(entry, sites=False) for seq, entry in own.items()}
    theirs = {seq: _key(entry, sites=False) for seq, entry in usual.items()}
    return _how(mine, theirs, at)[0] != "differs"


def _spread(others: list[int]) -> list[int]:
    step = max(len(others) // REFERENCES, 1)
    return others[::step][:REFERENCES]


def _sequence(world: World, rank: int, group: int) -> dict[int, Entry]:
    return {entry.seq: entry for entry in world.collectives(rank, group)}


def _usual(references: Sequence[dict[int, Entry]]) -> dict[int, Entry]:
    """Per number what most of the references have."""
    if len(references) == 1:
        return references[0]
    usual = {}
    for seq in set().union(*references):
        found = [one[seq] for one in references if seq in one]
        keys = Counter(_key(one, sites=True) for one in found)
        most = max(keys.values())
        usual[seq] = next(one for one in found if keys[_key(one, sites=True)] == most)
    return usual


def _key(entry: Entry, sites: bool) -> Key:
    site = entry.site if sites else None
    return (*kind(entry), f"{site.file}:{site.line}:{site.name}" if site else "")


def _comparable(own: dict[int, Entry], usual: dict[int, Entry], common: Sequence[int]) -> bool:
    """Whether call sites may be compared: the rank once came the same way as the others."""
    return any(own[seq].site == usual[seq].site is not None for seq in common)


def _all_differ(mine: dict[int, Key], theirs: dict[int, Key], common: Sequence[int]) -> bool:
    """The rings only hold what came after the error: its place cannot be told."""
    return all(mine[seq] != theirs[seq] for seq in common[:-1])


def _how(
    mine: dict[int, Key], theirs: dict[int, Key], at: int
) -> tuple[Literal["skipped", "added", "differs"], int]:
    """Whether a rank is one ahead of the others or behind them, and how many operations show it."""
    ahead = [(mine[seq], theirs[seq + 1]) for seq in mine if seq >= at and seq + 1 in theirs]
    behind = [(mine[seq + 1], theirs[seq]) for seq in theirs if seq >= at and seq + 1 in mine]
    skipped = bool(ahead) and all(a == b for a, b in ahead)
    added = bool(behind) and all(a == b for a, b in behind)
    if skipped and (not added or len(ahead) >= len(behind)):
        return "skipped", len(ahead)
    # One alone that others call, too, may as well be a number of theirs that was left out.
    if added and (len(behind) > 1 or mine[at] not in theirs.values()):
        return "added", len(behind)
    if ahead or behind:
        return "differs", 0
    # Nothing came after it. What followed this operation in earlier iterations?
    followers = [
        theirs[seq + 1]
        for seq in sorted(theirs)
        if seq < at and theirs[seq] == theirs[at] and seq + 1 in theirs
    ]
    return ("skipped" if followers and followers[-1] == mine[at] else "differs"), 0


def _first_alike(mine: dict[int, Key], theirs: dict[int, Key], at: int) -> int:
    first = at
    while first - 1 in mine and theirs.get(first - 1) == theirs[at] == mine[first - 1]:
        first -= 1
    return first
