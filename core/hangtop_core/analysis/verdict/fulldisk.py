"""Ranks held up because a file system is full that they write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.attempts import NO_SPACE, said_again
from hangtop_core.analysis.atwork import retries
from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.descriptors import name_descriptor
from hangtop_core.analysis.verdict.evidence import common_facts, fact, full_facts
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, several, since, who
from hangtop_core.analysis.verdict.steps import room_steps
from hangtop_core.model.node import disk_space as room
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.stacks.kinds import Kind
    from hangtop_core.text.commands import Step

_WRITES: frozenset[Kind] = frozenset({"checkpoint", "sleep", "waiting", "busy", "io"})
_NOT_WRITING = frozenset({"pipe-read", "pipe-write", "fifo-open", "read", "open", "tty-read"})
_NAMED = 3
"""Ranks, places and file systems of one verdict that are named."""
PERHAPS = 0.3
"""Confidence where nothing but a full file system on its node speaks for it."""
TRIES_S = 20.0
"""Who has written much this lately, and sleeps, tries again what did not succeed."""


def _disk_full(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    files: dict[int, Descriptor] = {}
    mounts: dict[int, tuple[str, ...]] = {}
    perhaps: list[Subject] = []
    for subject in left:
        activity = subject.activity
        if activity.kind not in _WRITES or activity.family in _NOT_WRITING:
            continue
        one = _full_file(case, subject)
        if one is not None:
            files[id(subject)] = one
        found = (one.mount or "",) if one is not None else _full_mounts(case, subject)
        if found:
            mounts[id(subject)] = found
        else:
            perhaps.append(subject)
    writing = [s for s in left if id(s) in mounts]
    for group in alike(writing, lambda s: mounts[id(s)]):
        yield _on_full(case, group, files, mounts[id(group[0])])
    yield from _perhaps_full(case, perhaps)


def _on_full(
    case: Case,
    group: Sequence[Subject],
    files: Mapping[int, Descriptor],
    mounts: tuple[str, ...],
) -> Hit:
    """One verdict on all ranks on a full file system, be it that of one node or one of each."""
    having = [s for s in group if id(s) in files]
    rest = besides(group, having)
    nodes = {s.rank.node for s in group}
    first = having[0] if having else group[0]
    short = room.lacks(case.nodes.get(first.rank.node), first.rank.process, mounts)
    if not having:
        told = f"{who(rest)} {is_are(rest, 'works', 'work')} on {' or '.join(mounts)}"
        told += ", which is full" if short.startswith("nothing") else f": {short}"
    else:
        some = [files[id(s)] for s in having]
        what = " or ".join(sorted({"inodes" if d.full == "inodes" else "space" for d in some}))
        kinds = " or ".join(sorted({d.fstype or "?" for d in some}))
        target = some[0].target if len({d.target for d in some}) == 1 else "files"
        told = f"{who(having)} {is_are(having, 'has', 'have')} {target} open for writing on "
        told += f"{some[0].mount} ({kinds}), "
        told += f"which has no {what} left" if some[0].full else f"where {short}"
        if rest:
            told += f", and {who(rest)} {is_are(rest, 'works', 'work')} there, too"
    where = f" (on {nodesets.fold(nodes)})" if len(group) > 1 else ""
    line = said_again(case.logs.get(id(first.rank), ()), NO_SPACE.search, 1)
    said = f"; {'its' if line.own else 'the'} log says `{line.line}`" if line is not None else ""
    return Hit(
        subjects=tuple(group),
        summary=sentence(case, f"{told}{where}: {_doing(group)}", since(case, group) + said),
        evidence=(
            *(
                fact("process", s.number, name_descriptor(files[id(s)]))
                for s in having[:_NAMED]
            ),
            *common_facts(case, group),
        ),
        steps=(
            *room_steps(case, first, mounts),
            *_same_on(nodes - {first.rank.node}),
            Advice(
                f"make room there; what {is_are(group, 'the rank retries', 'ranks retry')} goes on "
                "by itself"
            ),
        ),
        confidence=None if having else 0.7,
    )  # fmt: skip


def _doing(group: Sequence[Subject]) -> str:
    """`they sleep at a.py:7 (f)`; where ranks are at several places, which are at each."""
    places = list(alike(group, lambda s: (s.activity.text, s.activity.at)))
    texts = [
        f"{is_are(group, 'it', 'they') if len(places) == 1 else name_ranks(some)} "
        f"{several(some[0].activity.text, some)} at {some[0].activity.at}"
        for some in places[:_NAMED]
    ]
    more = sum(map(len, places[_NAMED:]))
    return ", ".join([*texts, *([f"{more} more elsewhere"] if more else [])])


def _same_on(nodes: AbstractSet[str]) -> tuple[Step, ...]:
    """That what was said to do on one node is to be done on others, too."""
    return (Advice(f"the same on {nodesets.fold(nodes)}"),) if nodes else ()


def _perhaps_full(case: Case, some: Sequence[Subject]) -> Iterator[Hit]:
    """Who looks again and again may fail to make a file: beside what else explains it."""
    full: dict[int, tuple[str, ...]] = {}
    for subject in some if case.waiters else ():
        node = case.nodes.get(subject.rank.node)
        mounts = room.full_mounts(node, subject.rank.process)[:_NAMED]
        by_turns = subject.activity.kind == "sleep"
        if mounts and by_turns and wakes_up(subject.rank, subject.standing):
            full[id(subject)] = mounts
    tries = [s for s in some if id(s) in full]
    for group in alike(tries, lambda s: (full[id(s)], s.activity.text, s.activity.at)):
        first, nodes = group[0], {s.rank.node for s in group}
        process = first.rank.process
        yield Hit(
            subjects=(),
            summary=sentence(
                case,
                f"{who(group)} {several(first.activity.text, group)} by turns at "
                f"{first.activity.at}, perhaps as {is_are(group, 'it fails', 'they fail')} to make "
                f"a file: {room.lacks(case.nodes[first.rank.node], process, full[id(first)])}"
                f"{f' of {nodesets.fold(nodes)}' if len(group) > 1 else ''}",
            ),
            evidence=tuple(found for s in group[:_NAMED] for found in full_facts(case, s)),
            steps=(*room_steps(case, first, full[id(first)]), *_same_on(nodes - {first.rank.node})),
            confidence=PERHAPS,
        )


def _full_file(case: Case, subject: Subject) -> Descriptor | None:
    """A file the rank has open for writing where there is no room."""
    used_up = room.of(case.nodes.get(subject.rank.node), subject.rank.process)
    over = {one.mount for one in used_up}
    for one in subject.rank.opened:
        if one.mount and one.fd > 2 and (one.full or (one.mount in over and "w" in one.mode)):
            return one
    return None


def _full_mounts(case: Case, subject: Subject) -> tuple[str, ...]:
    """The full file systems on one of which the rank has its directory, or any file."""
    used = {d.mount for d in subject.rank.opened if d.fd > 2}
    process = subject.rank.process
    mounts = room.full_mounts(case.nodes.get(subject.rank.node), process)
    if subject.activity.kind == "sleep" and not wakes_up(subject.rank, subject.standing):
        return ()  # who sleeps for long does not try
    there = room.used(mounts, process)
    found = next((m for m in mounts if m != "/" and (m in there or m in used)), None)
    if found is not None:
        return (found,)
    wrote = subject.rank.wrote_at
    lately = wrote is not None and case.at - wrote < TRIES_S
    stack = stack_of(case.snapshot.stacks, subject)
    tries = subject.activity.kind == "sleep" and lately and retries(subject.rank, stack)
    return mounts[:_NAMED] if tries else ()


DISK_FULL = Rule(
    cause="disk-full",
    title="A rank writes to a file system that is full",
    seen="The rank has a file open for writing on a local file system without space or inodes, or "
    "on one on which the quota of its user or group is used up (quotactl: XFS, ext4); or "
    "such a file system holds its working directory, a file of it or a path in its command line; "
    "or there is one on the node while it sleeps by turns, and has written much lately. Where it "
    "has not, that is another explanation, with confidence 0.3.",
    excluded="It is blocked in a read or in a pipe. Network file systems are not asked: that may "
    "hang, and their quotas are kept by the server.",
    confidence=0.85,
    next_steps=("On that mount: df -h; df -i", "quota -s"),
    find=_disk_full,
    needs=(
        More("descriptors", "whether a file that it writes is there"),
        More("logs", "whether a write fails for want of room"),
    ),
)
