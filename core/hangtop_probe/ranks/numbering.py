"""Number ranks that have no RANK variable, by a ladder of other sources, the surest first.

Only processes in a process group are numbered. A step applies to a whole family, the ranks of one
store or of one parent on this node, and only if it gives each of them a distinct number. So names
of the rank axes are read relative to one another. If no step does, the family has no numbers: the
order of start is no source.
"""

from __future__ import annotations

import re
from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from ..proc import procfs
from . import launchers

if TYPE_CHECKING:
    from .candidates import Table

Numbered = Tuple[Optional[int], Optional[str]]
"""A rank number and its source, None where unknown."""


class Unnumbered(NamedTuple):
    """The known facts of a process to be numbered; families are ordered by start."""

    pid: int
    environ: Mapping[str, str]
    cmdline: Tuple[str, ...]
    local_rank: Optional[int] = None
    """The rank that a frame of its program names."""
    first_argument: Optional[int] = None
    """The first argument of its multiprocessing target."""
    told_rank: Optional[int] = None
    """The rank with which it joined its process group, if a stack sample showed that."""
    known: Numbered = (None, None)
    """Its earlier number and source: a title changes, and a frame returns."""


NAMED = "--pid"
"""Source given for a process that is no rank and is shown because the user named it."""
Numbers = Dict[int, Numbered]
"""By pid."""

_LOCAL = launchers.every("local_ranks")
_NODE = launchers.every("nodes")
_LOCAL_SIZE = launchers.every("local_sizes")
_AXES = ("DP", "PP", "TP")
"""Axes, the outermost first, as vLLM and SGLang number their workers
(`initialize_model_parallel` in vllm/distributed/parallel_state.py,
sglang/srt/distributed/parallel_state.py)."""
_AXIS = re.compile(r"(?<![A-Za-z])(%s)[ _=:-]?(\d{1,5})(?!\d)" % "|".join(_AXES))
_TITLE = re.compile(r"(?<![A-Za-z])rank[ _=:#-]{0,2}(\d{1,6})(?!\d)", re.I)
_PART = re.compile(r"(?:local|node|group|tensor|pipeline|data|expert|[tpdec]p)[ _-]*$", re.I)
"""Text before a `rank` that is not the global one."""
_CONTROLLER = re.compile(r"engine|server|manager|controller|router|tokenizer", re.I)
"""Words in titles of processes that serve ranks: `VLLM::EngineCore_DP1`."""
_ARGUMENT = re.compile(r"--?(?:global[-_])?rank(?:=(\d{1,6}))?$")
_LOCAL_ARGUMENT = re.compile(r"--?local[-_]rank(?:=(\d{1,6}))?$")


def of_family(family: Sequence[Unnumbered], taken: Sequence[int] = ()) -> Numbers:
    """Return the numbers of the ranks of a family, distinct from those already ``taken`` in it."""
    for source, read in _LADDER:
        numbers = read(family)
        told = [number for number in numbers if number is not None]
        if len(set(told).difference(taken)) == len(family):
            return {rank.pid: (number, source) for rank, number in zip(family, told)}
    before = {rank.known[0] for rank in family}.difference(taken, (None,))
    kept = len(before) == len(family)
    return {rank.pid: rank.known if kept else (None, None) for rank in family}


def _by_local_rank(family: Sequence[Unnumbered]) -> List[Optional[int]]:
    """Return numbers by local rank and node rank, as Lightning sets them (plugins/environments)."""
    numbers: List[Optional[int]] = []
    for rank in family:
        local = _first(rank.environ, _LOCAL)
        node = _first(rank.environ, _NODE) or 0
        size = _first(rank.environ, _LOCAL_SIZE) or len(family)
        numbers.append(None if local is None else node * size + local)
    return numbers


def claims(cmdline: Sequence[str]) -> Dict[str, int]:
    """Return the global rank in the title and in the arguments, by `title` and `argument`."""
    argument, title = _argument(cmdline, _ARGUMENT), _title_rank(cmdline)
    told = {"argument": argument, "title": title}
    return {where: number for where, number in told.items() if number is not None}


def disputed(
    pid: int,
    ranks: Mapping[int, Numbered],
    table: Table,
    at_start: Optional[int] = None,
) -> Optional[str]:
    """Return the sources that contradict a rank's number, or that two unnumbered ranks share."""
    number, told = ranks[pid][0], claims(table[pid].cmdline)
    if number is not None:
        if at_start is not None:
            told["environment at its start"] = at_start
        odd = ["%s says %d" % one for one in told.items() if one[1] != number]
        return ", ".join(odd) or None
    others = sorted(other for other in ranks if other != pid and ranks[other][0] is None)
    for one in told.items():
        for other in others:
            if one in claims(table[other].cmdline).items():
                return "%s says %d, as that of pid %d" % (*one, other)
    return None


def _title_rank(cmdline: Sequence[str]) -> Optional[int]:
    match = _TITLE.search(cmdline[0]) if len(cmdline) == 1 else None
    return int(match[1]) if match and not _PART.search(cmdline[0][: match.start()]) else None


def says_rank(cmdline: Sequence[str]) -> bool:
    """Whether a title or an argument names a rank, or a position on the axes of a model."""
    if len(cmdline) != 1:
        return _argument(cmdline, _ARGUMENT) is not None
    title = cmdline[0]
    return not _CONTROLLER.search(title) and bool(_TITLE.search(title) or _AXIS.search(title))


def _first(environ: Mapping[str, str], names: Sequence[str]) -> Optional[int]:
    values = (procfs.decimal(environ.get(name, "")) for name in names)
    return next((value for value in values if value is not None), None)


def _by_title(family: Sequence[Unnumbered]) -> List[Optional[int]]:
    titles = [" ".join(rank.cmdline) if len(rank.cmdline) == 1 else "" for rank in family]
    named = [_TITLE.search(title) for title in titles]
    if all(named):
        return [int(match[1]) for match in named if match]
    places = [{axis: int(at) for axis, at in _AXIS.findall(title)} for title in titles]
    sizes = {axis: 1 + max(place.get(axis, 0) for place in places) for axis in _AXES}
    return [_place(place, sizes) if place else None for place in places]


def _place(place: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    number = 0
    for axis in _AXES:
        number = number * sizes[axis] + place.get(axis, 0)
    return number


Step = Callable[[Sequence[Unnumbered]], List[Optional[int]]]


def _by_argument(pattern: "re.Pattern[str]") -> Step:
    def read(family: Sequence[Unnumbered]) -> List[Optional[int]]:
        return [_argument(rank.cmdline, pattern) for rank in family]

    return read


def _argument(cmdline: Sequence[str], pattern: "re.Pattern[str]") -> Optional[int]:
    for word, following in zip(cmdline, [*cmdline[1:], ""]):
        match = pattern.match(word)
        if match:
            return procfs.decimal(match[1] or following)
    return None


def _by_function(family: Sequence[Unnumbered]) -> List[Optional[int]]:
    return _of_all(family, [rank.first_argument for rank in family])


def _by_gpu(family: Sequence[Unnumbered]) -> List[Optional[int]]:
    """Return GPU numbers that count up in the order of start; neither alone is enough."""
    gpus = [_first(rank.environ, ("CUDA_VISIBLE_DEVICES",)) for rank in family]
    return _of_all(family, gpus) if gpus == list(range(len(gpus))) else []


def _of_all(family: Sequence[Unnumbered], numbers: List[Optional[int]]) -> List[Optional[int]]:
    """Return ``numbers`` if they count from 0 and can be those of all ranks."""
    sizes = {_first(rank.environ, ("WORLD_SIZE",)) for rank in family}
    counts = set(numbers) == set(range(max(len(family), 2)))
    return numbers if counts and sizes <= {None, len(family)} else []


_LADDER: Tuple[Tuple[str, Step], ...] = (
    ("init_process_group", lambda family: [one.told_rank for one in family]),
    ("hangtop run", lambda family: [_first(one.environ, ("HANGTOP_RANK",)) for one in family]),
    ("LOCAL_RANK", _by_local_rank),
    ("title", _by_title),
    ("argument", _by_argument(_ARGUMENT)),
    ("local variable", lambda family: [one.local_rank for one in family]),
    ("argument", _by_argument(_LOCAL_ARGUMENT)),
    ("argument of its function", _by_function),
    ("GPU and order", _by_gpu),
)
