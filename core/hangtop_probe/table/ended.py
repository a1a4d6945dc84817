"""Number zombies that exited before the probe saw them, by the ranks beside them.

Only the name, the parent and the wait status of a zombie can be read. Ranks are started in order,
so if a process has as many children as it was to start, and each readable one is in its place, the
zombies have the missing numbers. Most launchers collect zombies at once; scripts that wait for one
rank after the other, and `multiprocessing`, leave them for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..proc import procfs
from ..ranks import commands
from ..ranks.rankvariables import identity, rank_number
from . import facts

if TYPE_CHECKING:
    from .entry import Entry

    Key = Tuple[Tuple[Optional[str], ...], int]
    """The identity of a job, and a rank of it."""

MAX_SIBLINGS = 1024
_WHY = "it had ended before it was seen; its number is by its place among those beside it"


def fill(entries: Mapping[int, Entry]) -> None:
    """Give unread zombies the environment that each must have had."""
    below: Dict[int, List[Entry]] = {}
    for entry in entries.values():
        if _is_unread(entry):
            below.setdefault(entry.stat.ppid, [])
    if not below:
        return
    ranks: Set[Key] = set()
    for entry in entries.values():
        told = _told(entry)
        if told is not None:
            ranks.add(told)
        if entry.stat.ppid in below:
            below[entry.stat.ppid].append(entry)
    for pid, children in below.items():
        parent = entries.get(pid)
        if parent is not None and len(children) <= MAX_SIBLINGS:
            _number(children, _told(parent), ranks)


def _told(entry: Entry) -> Optional[Key]:
    """Return job and rank of a process; None for helpers.

    The resource tracker of multiprocessing inherits the variables of a rank.
    """
    environ = _environ(entry)
    number = rank_number(environ)
    if number is None or commands.helper_role(entry.stat.comm, entry.facts.cmdline):
        return None
    return identity(environ), number[0]


def _number(children: Sequence[Entry], above: Optional[Key], ranks: Set[Key]) -> None:
    known = [one for one in children if _told(one) is not None]
    jobs = {identity(_environ(one)) for one in known}
    if len(jobs) != 1 or (above is not None and above[0] in jobs):
        return  # children of a rank have its number
    names = {one.stat.comm for one in known}
    lost = [one for one in children if _is_unread(one) and one.stat.comm in names]
    if _size(_environ(known[0])) == len(known) + len(lost):
        _number_lost(known, lost, ranks)


def _number_lost(known: List[Entry], lost: List[Entry], ranks: Set[Key]) -> None:
    """Give zombies the missing numbers, if every other rank is in its place."""
    like, environ = known[0].facts, _environ(known[0])
    number, name = rank_number(environ) or (0, "")
    first = number - _place(environ)
    inside = sorted([*known, *lost], key=lambda one: (one.stat.start, one.stat.pid))
    if not all(one in lost or _is_at(one, first, place) for place, one in enumerate(inside)):
        return
    for place, one in enumerate(inside):
        if one in lost and (identity(environ), first + place) not in ranks:
            told = {**environ, name: str(first + place)}
            if "LOCAL_RANK" in environ:
                told["LOCAL_RANK"] = str(place)
            uid = facts.uid_of(one.stat.pid)
            one.facts = facts.Facts(like.cmdline, told, like.exe, uid, (_WHY, None))
            one.mine = known[0].mine


def _environ(entry: Entry) -> Mapping[str, str]:
    return entry.facts.environ or {}


def _is_unread(one: Entry) -> bool:
    """Whether the process is a zombie whose facts were never read."""
    return one.stat.state == "Z" and one.facts.environ is None


def _is_at(one: Entry, first: int, place: int) -> bool:
    """Whether a rank was started at this place, counted from the rank ``first``."""
    number = rank_number(_environ(one))
    told = (_place(_environ(one)), -1 if number is None else number[0])
    return told == (place, first + place)


def _place(environ: Mapping[str, str]) -> int:
    """Return the index of a process among those started together, from 0, else -1."""
    local = procfs.decimal(environ.get("LOCAL_RANK", ""))
    number = rank_number(environ)
    return local if local is not None else number[0] if number is not None else -1


def _size(environ: Mapping[str, str]) -> Optional[int]:
    """Return the number of processes started together."""
    local = environ.get("LOCAL_WORLD_SIZE") if "LOCAL_RANK" in environ else None
    return procfs.decimal(local or environ.get("WORLD_SIZE", ""))
