"""The prefix tree of stacks: every distinct stack is inserted once, however many ranks share it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from hangtop_core.model.frames import WRAPPERS, is_library, package, plain_name
from hangtop_core.model.snapshot import Frame, Rank, StackSample
from hangtop_core.stacks.dictionary import match
from hangtop_core.stacks.kinds import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(slots=True)
class Node:
    """One frame of the merged tree, with the ranks that are in it."""

    key: str
    frame: Frame
    hidden: int = 0
    """Number of library frames inside this one that are folded away."""
    ranks: tuple[int, ...] = ()
    """Ranks in ascending order."""
    ends: tuple[int, ...] = ()
    """Ranks whose stack ends here."""
    since: float | None = None
    """Time since when all its ranks have had their stack."""
    children: list[Node] = field(default_factory=list)
    """Children, the smallest group first."""


def same_since(samples: Iterable[StackSample]) -> float | None:
    """Return since when all samples have had their stack, as far as was observed."""
    return max((s.same_since for s in samples if s.same_since is not None), default=None)


class Builder:
    """Inserts distinct stacks, then gives every node its ranks from the leaves up."""

    def __init__(self, stacks: Mapping[str, tuple[Frame, ...]], libraries: bool) -> None:
        self._stacks = stacks
        self._libraries = libraries
        self._roots: dict[str, Node] = {}
        self._children: dict[str, dict[str, Node]] = defaultdict(dict)

    def add(self, root: str, key: str, members: list[Rank]) -> None:
        """Insert one stack under the root of its thread name (empty: under no root)."""
        at = self._roots
        parent = ""
        steps = list(steps_of(self._stacks.get(key, ()), self._libraries))
        if not steps:
            steps = [(Frame(name="(no frames)", file="", short="", line=0), 0)]
        if root:
            steps.insert(0, (Frame(name=f"thread {root}", file="", short="", line=0), 0))
        for frame, hidden in steps:
            own = _key(parent, frame)
            node = at.setdefault(own, Node(key=own, frame=frame, hidden=hidden))
            node.hidden = max(node.hidden, hidden)
            at, parent = self._children[own], own
        node.ends = tuple(sorted({*node.ends, *(rank.rank for rank in members)}))
        since = same_since(rank.sample for rank in members if rank.sample is not None)
        node.since = _later(node.since, since)

    def finish(self) -> list[Node]:
        """Return the roots, with ranks, ages and order filled in."""
        roots = list(self._roots.values())
        order: list[Node] = []
        todo = list(roots)
        while todo:
            node = todo.pop()
            node.children = list(self._children[node.key].values())
            order.append(node)
            todo.extend(node.children)
        for node in reversed(order):
            _gather(node)
        return sorted(roots, key=_smallest_first)


def _gather(node: Node) -> None:
    node.children.sort(key=_smallest_first)
    for child in node.children:
        node.since = _later(node.since, child.since)
    if not node.children:
        node.ranks = node.ends
    elif len(node.children) == 1 and not node.ends:
        node.ranks = node.children[0].ranks
    else:
        parts = [node.ends, *(child.ranks for child in node.children)]
        node.ranks = tuple(sorted(set().union(*parts)))


def _smallest_first(node: Node) -> tuple[int, tuple[int, ...], str]:
    return len(node.ranks), node.ranks[:1], node.key


def _later(left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)


def _key(parent: str, frame: Frame) -> str:
    text = f"{parent}\0{frame.name}\0{frame.file}\0{frame.line}"
    return blake2b(text.encode("utf-8", "replace"), digest_size=9).hexdigest()


def steps_of(frames: Sequence[Frame], libraries: bool) -> Iterator[tuple[Frame, int]]:
    """Yield frames from the outermost in, each with the number of library frames folded into it.

    Among the innermost library frames, the operation of a framework is kept: ranks that wait in its
    loop and ranks that are in the user's code below it separate there. So is a wait for other ranks
    where torch itself was called, as in DistributedDataParallel.forward.
    """
    outer_first = list(reversed(frames))
    if libraries:
        yield from ((frame, 0) for frame in outer_first)
        return
    run: list[Frame] = []
    begins = True
    for frame in outer_first:
        if is_library(frame):
            run.append(frame)
            continue
        if run:
            yield _entry(run, begins), len(run) - 1
            run = []
        yield frame, 0
        begins = False
    if run:
        yield from _end_of(run, _entry(run, begins))


def _end_of(run: Sequence[Frame], entry: Frame) -> Iterator[tuple[Frame, int]]:
    matched = match(tuple(reversed(run)))
    operation = entry if matched is None else matched[1]
    at = run.index(operation)
    waits = matched is not None and matched[0].kind in COMMUNICATION
    is_entry = operation is entry or (package(operation.file) == package(entry.file) and not waits)
    if at == 0 or is_entry:
        yield entry, len(run) - 1
        return
    yield entry, at - 1
    yield operation, len(run) - at - 1


def _entry(run: Sequence[Frame], begins: bool) -> Frame:
    """Return the call that a run of library frames stands for: the function that the user called.

    At the start of a process or thread there is no such call, and Python's start-up frames are
    irrelevant.
    """
    named = [frame for frame in run if plain_name(frame.name) not in WRAPPERS] or run
    if begins:
        own = [frame for frame in named if package(frame.file) != "python"]
        named = own or [frame for frame in named if frame.name != "<module>"] or named
    return named[0]
