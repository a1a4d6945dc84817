"""Ranks in send and recv that wait for one another, in a circle or a chain: who for whom.

That is what torch's `send` or `recv` was given, where that was read; else it is read from the line
that calls (`src=rank - 1`, `dst=self.next`), or from the names of functions (`recv_forward`). Where
it cannot be read nothing is said.
"""

from __future__ import annotations

import ast
import operator
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.callers import parts_of, stack_key, stack_of
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.ownsockets import ends
from hangtop_core.model.frames import package, plain_name
from hangtop_core.stacks.kinds import PEER_TO_PEER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.samples import Local

_CALLS = {"send": "dst", "recv": "src", "isend": "dst", "irecv": "src"}
_RANK = re.compile(r"_?(my_?|global_?|self_?)?rank(_id)?", re.IGNORECASE)
_WORLD = re.compile(r"_?(world|world_?size|n_?ranks|num_ranks|n_?procs)", re.IGNORECASE)
_NEXT = re.compile(r"next|following|right|\+ 1\b", re.IGNORECASE)
_PREVIOUS = re.compile(r"prev|preceding|left|- 1\b", re.IGNORECASE)
_PARTNER = re.compile(r"peer|partner|other|buddy|neighbo", re.IGNORECASE)
_PASSES = re.compile(
    r"(send|recv|receive)_?(?:to_?|from_?)?"
    r"(?:(forward|fwd|activation)|(backward|bwd|grad)|(next)|(prev))",
    re.IGNORECASE,
)
"""What stages of pipelines call what they do: activations go to the next stage, gradients back."""
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitXor: operator.xor,
}
_SENDS = re.compile(r"send|recv")
GIVEN = "its "
"""Before the name of what torch's function was given: that says more than a line."""
SOCKET = "at the other end of that"


class Knot(NamedTuple):
    """Ranks that wait for one another in circles or chains, and who waits for whom."""

    subjects: tuple[Subject, ...]
    """Those in circles; without any, those that others wait for at the heads of chains."""
    peers: Mapping[int, int]
    """For whom each rank in send or recv waits, by rank; also of those that are in no circle."""
    passing: tuple[Subject, ...]
    """All of which that is known."""
    names: Mapping[int, str]
    """What says so, by rank: `self.next` of its line, the name of a function, or its `src`."""
    calls: Mapping[int, str]
    """Whether they send or receive, by rank; empty where both may be."""
    circle: bool

    @property
    def circles(self) -> tuple[tuple[Subject, ...], ...]:
        """Those in circles, each circle by itself."""
        by_number = {s.number: s for s in self.subjects}
        found = []
        for first in sorted(by_number):
            around: list[Subject] = []
            one: int | None = first
            while one in by_number:
                around.append(by_number.pop(one))
                one = self.peers.get(one)
            if around:
                found.append(tuple(sorted(around, key=lambda s: s.number)))
        return tuple(found)


def knot(case: Case) -> Knot | None:
    """The ranks in sends and receives of which each waits for another; None where none are seen.

    Where none wait in a circle, the ranks in a collective that chains of them end at.
    """
    if case.suspects or len(case.waiters) < 2:
        return None
    passing = [s for s in case.waiters if s.activity.kind in (*PEER_TO_PEER, "work-wait")]
    found = ways(case, passing)
    found.update(_answers(found, passing))
    found.update(_pair(found, case.waiters))
    peers = {number: way.peer for number, way in found.items() if way.peer != number}
    tied = _circles({n: peer for n, peer in peers.items() if not _meets(found, n, peer)})
    known = tuple(s for s in passing if s.number in peers)
    said = {number: way.name for number, way in found.items()}
    calls = {number: way.call for number, way in found.items()}
    some = [s for s in known if s.number in tied]
    if not tied and len(known) == len(passing):
        some = _heads(case, peers)
    return Knot(tuple(some), peers, known, said, calls, bool(tied)) if some else None


def unread(case: Case, knot: Knot) -> str:
    """`; for whom rank 0 waits is not known`: it may be in another circle."""
    some = [
        s for s in case.waiters if s.activity.kind in PEER_TO_PEER and s.number not in knot.peers
    ]
    waits = "waits" if len(some) == 1 else "wait"
    return f"; for whom {name_ranks(some)} {waits} is not known" if some else ""


def told_by(case: Case, knot: Knot) -> Iterator[Evidence]:
    """What says for whom each of them waits."""
    yield from ends(case, knot.passing[:SHOWN])
    yield from told_as(knot.names.values())


def told_as(names: Iterable[str]) -> Iterator[Evidence]:
    """The same of all that no socket tells."""
    ways = {name.startswith(GIVEN) for name in names if name != SOCKET}
    if True in ways:
        yield fact("stacks", None, "`dst` and `src` are what torch's `send` and `recv` were given")
    if False in ways:
        yield fact(
            "stacks", None, f"for whom {'another one' if True in ways else 'each of them'} {_WAY}"
        )


_WAY = (
    "waits is as the line, or the name of its function, says; the next and the previous one are "
    "taken to be neighbours by rank"
)


def ways(case: Case, passing: Sequence[Subject]) -> dict[int, Way]:
    """For whom those of some ranks wait of which that can be read, by rank."""
    world = case.job.world_size or len(case.subjects)
    names: dict[str, str] = {}
    met = ((s.number, _way_of(case, s, world, names)) for s in passing)
    return {number: way for number, way in met if way is not None}


def _heads(case: Case, peers: Mapping[int, int]) -> list[Subject]:
    """Those in a collective that chains of sends and receives end at; none if one ends elsewhere.

    Whom a single rank among many waits for tells little: it may itself be the odd one.
    """
    last = {peer for peer in peers.values() if peer not in peers}
    heads = [s for s in case.waiters if s.number in last]
    linked = any(peer in peers for peer in peers.values()) or len(case.waiters) == 2
    linked = linked or any(s.activity.peer is not None for s in case.passing)
    if len(heads) < len(last) or not (linked or 2 * len(peers) > len(case.waiters)):
        return []
    return heads if all(s.activity.kind in ("collective", "backward") for s in heads) else []


def _pair(found: Mapping[int, Way], waiters: Sequence[Subject]) -> dict[int, Way]:
    """Two ranks in one line that exchanges with a `peer`, where of all others it is known.

    They are meant for each other: nobody else is left, and nobody there waits for one of them.
    """
    left = [s for s in waiters if s.number not in found]
    if len(left) != 2 or left[0].activity.site != left[1].activity.site:
        return {}
    there = [s for s in waiters if s.activity.site == left[0].activity.site and s.number in found]
    if {found[s.number].peer for s in there} & {s.number for s in left}:
        return {}
    one, other = left
    name = _partner(one)
    if not name:
        return {}
    return {
        a.number: Way(b.number, one.activity.kind, f"`{name}`", False)
        for a, b in ((one, other), (other, one))
    }


def _answers(found: Mapping[int, Way], passing: Sequence[Subject]) -> dict[int, Way]:
    """Who waits for the one rank that waits for it, in one line that exchanges with a `peer`.

    So it is where some are known to do so there, and all of which it is known; or where each there
    is then in one pair.
    """
    given: dict[int, Way] = {}
    bold: dict[int, Way] = {}
    for one in [s for s in passing if s.number not in found]:
        name = _partner(one)
        there = [s for s in passing if s.activity.site == one.activity.site and s.number in found]
        by = [s.number for s in there if found[s.number].peer == one.number]
        back = [(s.number, found.get(found[s.number].peer)) for s in there]
        mutual = {way.peer == number for number, way in back if way is not None}
        if name and len(by) == 1 and False not in mutual:
            way = Way(by[0], one.activity.kind, f"`{name}`", False)
            (given if mutual else bold)[one.number] = way
    all_ = len(found) + len(given) + len(bold) == len(passing) == 2 * len(bold)
    return given | bold if all_ else given


def _partner(subject: Subject) -> str:
    """`peer`, or what else the line of a send or recv calls the one it is exchanged with."""
    site = subject.activity.site
    sends = site is not None and subject.activity.kind in PEER_TO_PEER
    node = _argument(site.source or "") if site is not None and sends else None
    name = ast.unparse(node) if node is not None else ""
    return name if _PARTNER.search(name) else ""


class Way(NamedTuple):
    """For whom a rank waits."""

    peer: int
    call: str
    name: str
    """What says so."""
    exact: bool
    """Whether that gives the number."""


def _meets(found: Mapping[int, Way], number: int, peer: int) -> bool:
    """Whether one sends what the other receives, so that only other tags could keep them apart.

    Where the names of functions alone say so, they say something else: workers that send gradients
    to a server are no stages.
    """
    one, other = found[number], found.get(peer)
    if other is None or other.peer != number or (one.exact and other.exact):
        return False
    return {one.call, other.call} == {"send", "recv"}


def _circles(peers: Mapping[int, int]) -> set[int]:
    """Those that come back to themselves, going from each to the one it waits for."""
    tied: set[int] = set()
    done: set[int] = set()
    for first in peers:
        way: dict[int, int] = {}
        one: int | None = first
        while one is not None and one not in way and one not in done:
            way[one] = len(way)
            one = peers.get(one)
        if one is not None and one in way:
            tied.update(other for other, at in way.items() if at >= way[one])
        done.update(way)
    return tied


def _way_of(case: Case, subject: Subject, world: int, names: dict[str, str]) -> Way | None:
    """For which rank another one waits; ``names`` keeps what was found, by stack."""
    site = subject.activity.site
    call = subject.activity.kind if subject.activity.kind in PEER_TO_PEER else ""
    step, name = None, ""
    if subject.activity.peer is not None:
        return Way(subject.activity.peer, call, SOCKET, True)
    given = _given(subject, call)
    if given is not None and int(given.value) < world:
        return Way(int(given.value), call, f"{GIVEN}`{given.name}`", True)
    if call:
        node = _argument(site.source) if site is not None and site.source else None
        if node is not None:
            name = ast.unparse(node)
            number = _number(node, subject.number, world)
            if number is not None:
                return Way(number, call, f"`{name}`", True) if 0 <= number < world else None
            step = _step(name)
    if step is None:
        name = _function(case, subject, names)
        calls = set(_SENDS.findall(name))
        call = call or ("send" if calls == {"send"} else "recv" if "send" not in calls else "")
        step = _way(name) or None
    if step is None:
        return None
    return Way((subject.number + step) % world, call, f"`{name}`", False)


def _given(subject: Subject, call: str) -> Local | None:
    """What torch's `send` or `recv` was called with, where that was read and is a rank."""
    sample = subject.rank.sample
    frames = sample.threads[0].locals if call and sample is not None and sample.threads else ()
    some = (one for frame in frames for one in frame)
    return next((v for v in some if v.name == _CALLS[call] and v.value.isdecimal()), None)


def _function(case: Case, subject: Subject, names: dict[str, str]) -> str:
    """The innermost function whose name tells the way; empty where there is none."""
    key = stack_key(subject)
    if key not in names:
        frames = (f for f in stack_of(case.snapshot.stacks, subject) if not f.native)
        own = (plain_name(f.name) for f in frames if package(f.file) not in ("torch", "python"))
        names[key] = next((name for name in own if _way(name) is not None), "")
    return names[key]


@lru_cache(maxsize=1024)
def _argument(source: str) -> ast.expr | None:
    """To or from whom the call in a line sends or receives; None where there are several."""
    found = []
    for node in parts_of(source):
        called = getattr(node, "func", None)
        name = getattr(called, "attr", getattr(called, "id", None))
        if isinstance(node, ast.Call) and name in _CALLS:
            given = [one.value for one in node.keywords if one.arg == _CALLS[name]]
            found += given or node.args[1:2]
    return found[0] if len(found) == 1 else None


def _number(node: ast.expr, rank: int, world: int) -> int | None:
    """What an expression of numbers, the rank and the world size is; None for any other."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, rank, world), _number(node.right, rank, world)
        if left is None or right is None:
            return None
        if isinstance(node.op, (ast.Mod, ast.FloorDiv)):
            found = divmod(left, right) if right else None
            return None if found is None else found[isinstance(node.op, ast.Mod)]
        made = _OPERATORS.get(type(node.op))
        return None if made is None else int(made(left, right))
    if isinstance(node, ast.Call):
        if node.args or node.keywords:
            return None
        name = ast.unparse(node.func).rpartition(".")[2].removeprefix("get_")
    else:
        name = ast.unparse(node).rpartition(".")[2]
    return rank if _RANK.fullmatch(name) else world if _WORLD.fullmatch(name) else None


@lru_cache(maxsize=1024)
def _step(text: str) -> int | None:
    """1 for what is called the next one, -1 for the previous; None where neither is said."""
    following, previous = bool(_NEXT.search(text)), bool(_PREVIOUS.search(text))
    return None if following == previous else 1 if following else -1


@lru_cache(maxsize=4096)
def _way(name: str) -> int | None:
    """The same of a function's name; 0 where it goes both ways."""
    ways = set()
    for call, onward, _, following, previous in _PASSES.findall(name):
        sends = call.lower() == "send"
        if following or previous:
            ways.add(1 if following else -1)
        else:
            ways.add(1 if sends == bool(onward) else -1)
    return None if not ways else ways.pop() if len(ways) == 1 else 0
