"""Merged stacks: one tree of frames over all ranks, stack classes, and ranks without a stack.

Work is done per distinct stack: 8,192 ranks on twenty stacks cost twenty insertions, and nodes of a
chain share one tuple of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot, StackSample
from hangtop_core.scheduling.interruptible import at_once, parts
from hangtop_core.stacks.tree import Builder, Node, same_since, steps_of
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

__all__ = [
    "Merged",
    "NoStack",
    "Node",
    "Row",
    "StackClass",
    "class_steps",
    "classes",
    "flatten",
    "merge",
    "missing",
    "path_of",
    "steps_of",
]

Threads = Literal["main", "all"]
Path = tuple[tuple[str, str, int], ...]


class StackClass(Struct, frozen=True):
    """Ranks whose main threads have the same stack."""

    stack: str
    """Key into `Snapshot.stacks` of one of them."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    ranks: tuple[int, ...]
    since: float | None
    """Time since when all of them have had this stack, as far as was observed."""
    moved: int
    """How many of them had another stack in the sample before."""
    sampled_at: float
    """When the newest of their samples was taken."""


class NoStack(Struct, frozen=True):
    """Ranks without a stack, for one reason."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    why: str
    fix: str | None


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged tree, with stack classes and missing ranks."""

    roots: tuple[Node, ...]
    classes: tuple[StackClass, ...]
    """Classes, the smallest first."""
    missing: tuple[NoStack, ...]
    total: int
    """Number of ranks of the job, with and without a stack."""
    at: float


JOIN_AT_LEAST = 4
"""Chains shorter than this are shown whole: joining them saves nothing."""


class Row(Struct, frozen=True):
    """One visible line of the tree, ready for a widget or for text."""

    key: str
    frame: Frame
    depth: int
    """Number of branchings above: chains are not indented."""
    more: tuple[bool, ...]
    """For every level of branching up to this row: whether more siblings follow."""
    first: bool
    """Whether the row begins a branch, and so carries its connector."""
    count: int
    share: float
    """Share of the ranks that have a stack."""
    members: tuple[int, ...]
    ranks: str
    """Folded rank set, empty where it equals that of the row above."""
    since: float | None
    hidden: int
    """Library frames folded into this row."""
    joined: int
    """Frames left out between this row and the next one of the same ranks."""
    folded: bool
    fewest: bool
    """Whether it is the smallest group among its siblings."""


def path_of(frames: Sequence[Frame]) -> Path:
    """Return the identity of a stack, whichever node read the source."""
    return tuple((frame.name, frame.file, frame.line) for frame in frames)


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
        snapshot: the snapshot with the stacks.
        job: the job.
        threads: the main thread of each rank, or all of them under a root per thread name.
        libraries: show library frames; False keeps the entry of each run of them.
        ranks: merge only these ranks.
    """
    chosen = [rank for rank in job.ranks if ranks is None or rank.rank in ranks]
    groups: dict[tuple[str, str], list[Rank]] = defaultdict(list)
    for rank in chosen:
        for root, key in _threads_of(rank, threads):
            groups[root, key].append(rank)
    builder = Builder(snapshot.stacks, libraries)
    for (root, key), members in groups.items():
        builder.add(root, key, members)
    return Merged(
        roots=tuple(builder.finish()),
        classes=classes(snapshot, chosen),
        missing=missing(chosen),
        total=len(chosen),
        at=snapshot.at,
    )


def classes(snapshot: Snapshot, ranks: Sequence[Rank]) -> tuple[StackClass, ...]:
    """Group ranks by the stack of their main thread, the smallest group first."""
    return at_once(class_steps(snapshot, ranks))


def class_steps(
    snapshot: Snapshot, ranks: Sequence[Rank]
) -> Generator[None, None, tuple[StackClass, ...]]:
    """Return `classes`, in steps that can be interrupted."""
    by_key: dict[str, list[Rank]] = defaultdict(list)
    for part in parts(ranks):
        for rank in part:
            if rank.sample is not None and rank.sample.threads:
                by_key[rank.sample.threads[0].stack].append(rank)
        yield
    by_path: dict[Path, list[Rank]] = {}
    keys: dict[Path, str] = {}
    for key, members in by_key.items():
        path = path_of(snapshot.stacks.get(key, ()))
        by_path.setdefault(path, []).extend(members)
        keys.setdefault(path, key)
    stack_classes = []
    for path, members in by_path.items():
        stack_classes.append(_class(snapshot, keys[path], members))
        yield
    return tuple(sorted(stack_classes, key=lambda item: (len(item.ranks), item.ranks)))


def missing(ranks: Iterable[Rank]) -> tuple[NoStack, ...]:
    """Return the ranks without a stack, by reason: no rank is left out silently."""
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


def _threads_of(rank: Rank, threads: Threads) -> Iterator[tuple[str, str]]:
    sample = rank.sample
    if sample is None or not sample.threads:
        return
    if threads == "main":
        yield "", sample.threads[0].stack
        return
    keys = set()
    for thread in sample.threads:
        key = (thread.name or "thread", thread.stack)
        if key not in keys:
            keys.add(key)
            yield key


def _class(snapshot: Snapshot, key: str, members: list[Rank]) -> StackClass:
    samples = [rank.sample for rank in members if rank.sample is not None]
    return StackClass(
        stack=key,
        frames=tuple(snapshot.stacks.get(key, ())),
        ranks=tuple(sorted(rank.rank for rank in members)),
        since=same_since(samples),
        moved=sum(1 for sample in samples if _has_moved(sample)),
        sampled_at=max(sample.at for sample in samples),
    )


def _has_moved(sample: StackSample) -> bool:
    """Return whether the main thread had another stack in the sample before."""
    return sample.count == 1 and sample.first_at is not None and sample.first_at < sample.at


def _no_stack(rank: Rank) -> tuple[str, str | None] | None:
    sample = rank.sample
    if sample is not None and sample.threads:
        return None
    if rank.ended:
        return f"the process is gone ({rank.state})", None
    if sample is not None and sample.failure is not None:
        return sample.failure.text, sample.failure.fix
    if rank.process.denied:
        return rank.process.denied, None
    return ("not sampled yet" if sample is None else "it runs no Python code"), None


def flatten(
    merged: Merged,
    folded: Collection[str] = (),
    *,
    join: bool = False,
    opened: Collection[str] = (),
) -> list[Row]:
    """Return the visible rows of a merged tree, from the top.

    Args:
        merged: the tree.
        folded: keys of rows whose branches are closed.
        join: leave out the middle of chains in which the ranks do not change.
        opened: keys of rows whose chain is shown whole all the same.
    """
    rows: list[Row] = []
    sampled = len({rank for root in merged.roots for rank in root.ranks}) or 1
    todo: list[tuple[Node, tuple[bool, ...], bool, bool, Node | None]] = []
    _push(todo, list(merged.roots), (), None)
    while todo:
        node, more, first, fewest, above = todo.pop()
        closed = node.key in folded
        last = _chain_end(node) if join and not closed and node.key not in opened else node
        joined, shown = _between(node, last)
        same = above is not None and above.ranks is node.ranks
        rows.append(
            Row(
                key=node.key,
                frame=node.frame,
                depth=len(more),
                more=more,
                first=first,
                count=len(node.ranks),
                share=len(node.ranks) / sampled,
                members=node.ranks,
                ranks="" if same else fold(node.ranks),
                since=node.since,
                hidden=node.hidden,
                joined=joined,
                folded=closed and bool(node.children),
                fewest=fewest,
            )
        )
        if not closed:
            _push(todo, shown, more, node)
    return rows


def _push(
    todo: list[tuple[Node, tuple[bool, ...], bool, bool, Node | None]],
    children: list[Node],
    more: tuple[bool, ...],
    above: Node | None,
) -> None:
    """Push children on the work stack, the first one on top."""
    if len(children) == 1 and not (above and above.ends):
        todo.append((children[0], more, False, False, above))
        return
    for index in range(len(children) - 1, -1, -1):
        follows = index < len(children) - 1
        # Where all groups are equally large, none stands out.
        fewest = index == 0 and len(children[0].ranks) < len(children[-1].ranks)
        todo.append((children[index], (*more, follows), True, fewest, above))


def _chain_end(node: Node) -> Node:
    while len(node.children) == 1 and node.children[0].ranks is node.ranks:
        node = node.children[0]
    return node


def _between(node: Node, last: Node) -> tuple[int, list[Node]]:
    """Return how many frames joining leaves out after a node, and the nodes shown next."""
    length = 1
    at = node
    while at is not last:
        at = at.children[0]
        length += 1
    if length < JOIN_AT_LEAST:
        return 0, node.children
    return length - 2, [last]
