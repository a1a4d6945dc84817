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
        key = _told(entry)
        if key is not None:
            ranks.add(key)
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
    known = [entry for entry in children if _told(entry) is not None]
    jobs = {identity(_environ(entry)) for entry in known}
    if len(jobs) != 1 or (above is not None and above[0] in jobs):
        return  # children of a rank have its number
    names = {entry.stat.comm for entry in known}
    lost = [entry for entry in children if _is_unread(entry) and entry.stat.comm in names]
    if _size(_environ(known[0])) == len(known) + len(lost):
        _number_lost(known, lost, ranks)


def _number_lost(known: List[Entry], lost: List[Entry], ranks: Set[Key]) -> None:
    """Give zombies the missing numbers, if every other rank is in its place."""
    like, environ = known[0].facts, _environ(known[0])
    number, name = rank_number(environ) or (0, "")
    first = number - _place(environ)
    inside = sorted([*known, *lost], key=lambda entry: (entry.stat.start, entry.stat.pid))
    if not all(entry in lost or _is_at(entry, first, place) for place, entry in enumerate(inside)):
        return
    for place, entry in enumerate(inside):
        if entry in lost and (identity(environ), first + place) not in ranks:
            variables = {**environ, name: str(first + place)}
            if "LOCAL_RANK" in environ:
                variables["LOCAL_RANK"] = str(place)
            uid = facts.uid_of(entry.stat.pid)
            entry.facts = facts.Facts(like.cmdline, variables, like.exe, uid, (_WHY, None))
            entry.mine = known[0].mine


def _environ(entry: Entry) -> Mapping[str, str]:
    return entry.facts.environ or {}


def _is_unread(entry: Entry) -> bool:
    """Whether the process is a zombie whose facts were never read."""
    return entry.stat.state == "Z" and entry.facts.environ is None


def _is_at(entry: Entry, first: int, place: int) -> bool:
    """Whether a rank was started at this place, counted from the rank ``first``."""
    environ = _environ(entry)
    number = rank_number(environ)
    own = (_place(environ), -1 if number is None else number[0])
    return own == (place, first + place)


def _place(environ: Mapping[str, str]) -> int:
    """Return the index of a process among those started together, from 0, else -1."""
    local = procfs.decimal(environ.get("LOCAL_RANK", ""))
    number = rank_number(environ)
    return local if local is not None else number[0] if number is not None else -1


def _size(environ: Mapping[str, str]) -> Optional[int]:
    """Return the number of processes started together."""
    local = environ.get("LOCAL_WORLD_SIZE") if "LOCAL_RANK" in environ else None
    return procfs.decimal(local or environ.get("WORLD_SIZE", ""))
