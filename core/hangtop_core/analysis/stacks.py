"""Merged stacks: one tree of frames over all ranks, stack classes, and who gave no stack.

Work is done per distinct stack: 8,192 ranks on twenty stacks cost twenty insertions, and nodes of
a chain share one tuple of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.analysis.frames import WRAPPERS, is_library, plain_name
from hangtop_core.model import Frame, Job, Rank, Snapshot, StackSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

Threads = Literal["main", "all"]
Path = tuple[tuple[str, str, int], ...]


class StackClass(Struct, frozen=True):
    """Ranks whose main thread stands at the same place in all frames."""

    stack: str
    """Key into `Snapshot.stacks` of one of them."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    ranks: tuple[int, ...]
    since: float | None
    """Since when all of them have had this stack, as far as was observed."""
    moved: int
    """How many of them had another stack in an earlier sample."""
    sampled_from: float
    sampled_to: float


class NoStack(Struct, frozen=True):
    """Ranks that gave no stack, for one reason."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    why: str
    fix: str | None


@dataclass(slots=True)
class Node:
    """One frame of the merged tree, with the ranks that are in it."""

    key: str
    frame: Frame
    hidden: int = 0
    """Library frames inside this one that are folded away."""
    ranks: tuple[int, ...] = ()
    """Ascending."""
    ends: tuple[int, ...] = ()
    """Ranks whose stack ends here."""
    since: float | None = None
    """Since when all its ranks have had their stack."""
    children: list[Node] = field(default_factory=list)
    """The smallest group first."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged tree and all that stands beside it."""

    roots: tuple[Node, ...]
    classes: tuple[StackClass, ...]
    """The smallest first."""
    missing: tuple[NoStack, ...]
    total: int
    """Ranks of the job, with and without a stack."""
    at: float


def path_of(frames: Sequence[Frame]) -> Path:
    """Identity of a stack: what tells two of them apart, whichever node read the source."""
    return tuple((frame.name, frame.file, frame.line) for frame in frames)


def common_prefix(one: Sequence[Frame], other: Sequence[Frame]) -> int:
    """How many outermost frames two stacks (innermost first) have in common."""
    depth = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if (left.name, left.file, left.line) != (right.name, right.file, right.line):
            break
        depth += 1
    return depth


def merge(
    snapshot: Snapshot,
    job: Job,
    *,
    threads: Threads = "main",
    libraries: bool = True,
    ranks: Collection[int] | None = None,
) -> Merged:
    """Merge the stacks of a job's ranks.

    Args:
        snapshot: where the stacks are.
        job: whose ranks.
        threads: the main thread of each rank, or all of them under a root per thread name.
        libraries: show library frames; False keeps the entry of each run of them.
        ranks: only these.
    """
    chosen = [rank for rank in job.ranks if ranks is None or rank.rank in ranks]
    groups: dict[tuple[str, str], list[Rank]] = defaultdict(list)
    for rank in chosen:
        for root, key in _threads_of(rank, threads):
            groups[root, key].append(rank)
    builder = _Builder(snapshot.stacks, libraries)
    for (root, key), members in groups.items():
        builder.add(root, key, members)
    return Merged(
        roots=tuple(builder.finish()),
        classes=classes(snapshot, chosen),
        missing=missing(chosen),
        total=len(chosen),
        at=snapshot.at,
    )


def classes(snapshot: Snapshot, ranks: Iterable[Rank]) -> tuple[StackClass, ...]:
    """Group ranks by the stack of their main thread, the smallest group first."""
    by_key: dict[str, list[Rank]] = defaultdict(list)
    for rank in ranks:
        if rank.sample is not None and rank.sample.threads:
            by_key[rank.sample.threads[0].stack].append(rank)
    by_path: dict[Path, list[Rank]] = {}
    keys: dict[Path, str] = {}
    for key, members in by_key.items():
        path = path_of(snapshot.stacks.get(key, ()))
        by_path.setdefault(path, []).extend(members)
        keys.setdefault(path, key)
    found = [_class(snapshot, keys[path], members) for path, members in by_path.items()]
    return tuple(sorted(found, key=lambda one: (len(one.ranks), one.ranks)))


def missing(ranks: Iterable[Rank]) -> tuple[NoStack, ...]:
    """Ranks without a stack, by reason: no rank is left out silently."""
    groups: dict[tuple[str, str | None], list[Rank]] = defaultdict(list)
    for rank in ranks:
        reason = _no_stack(rank)
        if reason is not None:
            groups[reason].append(rank)
    return tuple(
        NoStack(
            ranks=tuple(sorted(rank.rank for rank in members)),
            nodes=tuple(sorted({rank.node for rank in members})),
            why=why,
            fix=fix,
        )
        for (why, fix), members in groups.items()
    )


def has_moved(sample: StackSample) -> bool | None:
    """Whether the main thread had another stack in an earlier sample; None after only one."""
    if sample.first_at is None or sample.same_since is None or sample.at <= sample.first_at:
        return None
    return sample.same_since > sample.first_at


def _threads_of(rank: Rank, threads: Threads) -> Iterator[tuple[str, str]]:
    sample = rank.sample
    if sample is None or not sample.threads:
        return
    if threads == "main":
        yield "", sample.threads[0].stack
        return
    seen = set()
    for thread in sample.threads:
        one = (thread.name or "thread", thread.stack)
        if one not in seen:
            seen.add(one)
            yield one


def _class(snapshot: Snapshot, key: str, members: list[Rank]) -> StackClass:
    samples = [rank.sample for rank in members if rank.sample is not None]
    times = [sample.at for sample in samples]
    return StackClass(
        stack=key,
        frames=tuple(snapshot.stacks.get(key, ())),
        ranks=tuple(sorted(rank.rank for rank in members)),
        since=_latest(samples),
        moved=sum(1 for sample in samples if has_moved(sample)),
        sampled_from=min(times),
        sampled_to=max(times),
    )


def _latest(samples: Iterable[StackSample]) -> float | None:
    return max((s.same_since for s in samples if s.same_since is not None), default=None)


def _no_stack(rank: Rank) -> tuple[str, str | None] | None:
    sample = rank.sample
    if sample is not None and sample.threads:
        return None
    if rank.state in ("exited", "zombie"):
        return f"the process is gone ({rank.state})", None
    if sample is not None and sample.failure is not None:
        return sample.failure.text, sample.failure.fix
    if rank.process.denied:
        return rank.process.denied, None
    return ("not sampled yet" if sample is None else "it runs no Python code"), None


class _Builder:
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
        latest = _latest(rank.sample for rank in members if rank.sample is not None)
        node.since = _later(node.since, latest)

    def finish(self) -> list[Node]:
        """The roots, with ranks, ages and order filled in."""
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


def _later(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _key(parent: str, frame: Frame) -> str:
    text = f"{parent}\0{frame.name}\0{frame.file}\0{frame.line}"
    return blake2b(text.encode("utf-8", "replace"), digest_size=9).hexdigest()


def steps_of(frames: Sequence[Frame], libraries: bool) -> Iterator[tuple[Frame, int]]:
    """Frames from the outermost in, each with how many library frames were folded into it."""
    outer_first = list(reversed(frames))
    if libraries:
        yield from ((frame, 0) for frame in outer_first)
        return
    run: list[Frame] = []
    for frame in outer_first:
        if is_library(frame):
            run.append(frame)
            continue
        if run:
            yield _entry(run), len(run) - 1
            run = []
        yield frame, 0
    if run:
        yield _entry(run), len(run) - 1


def _entry(run: Sequence[Frame]) -> Frame:
    return next((frame for frame in run if plain_name(frame.name) not in WRAPPERS), run[0])
