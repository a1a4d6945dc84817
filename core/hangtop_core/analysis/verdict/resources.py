"""Ranks held up because something of their node is used up: a disk, or memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core import nodesets, room
from hangtop_core.analysis import cgroups
from hangtop_core.analysis.attempts import NO_SPACE, said_again
from hangtop_core.analysis.atwork import retries
from hangtop_core.analysis.standing import wakes_up
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject, besides
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.descriptors import name_descriptor
from hangtop_core.analysis.verdict.evidence import (
    alike,
    common_facts,
    fact,
    full_facts,
    is_are,
    sentence,
    several,
    since,
    who,
)
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.outofmemory import limit_steps
from hangtop_core.analysis.verdict.steps import Step, on, room_steps, word
from hangtop_core.text import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hangtop_core.analysis.kinds import Kind
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.cgroups import Cgroup
    from hangtop_core.descriptors import Descriptor
    from hangtop_core.model import Node

_WRITES: frozenset[Kind] = frozenset({"checkpoint", "sleep", "waiting", "busy", "io"})
_NOT_WRITING = frozenset({"pipe-read", "pipe-write", "fifo-open", "read", "open", "tty-read"})
_WORKS: frozenset[Kind] = frozenset(
    {"busy", "io", "waiting", "data", "inline-data", "importing", "checkpoint", "unknown"}
)
SHOWN = 3
PERHAPS = 0.3
"""Confidence where nothing but a full file system on its node speaks for it."""
TRIES_S = 20.0
"""Who has written much this lately, and sleeps, tries again what did not succeed."""
HELD_UP = 0.92
"""Confidence where the main thread sleeps in the kernel for that."""
HELD_BACK = 0.5
"""Share of periods in which a CPU quota was used up; a rank that has enough shows next to none."""


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
                for s in having[:SHOWN]
            ),
            *common_facts(case, group),
        ),
        steps=(
            *room_steps(case, first, mounts),
            *_same_on(nodes - {first.rank.node}),
            f"make room there; what {is_are(group, 'the rank retries', 'ranks retry')} goes on by "
            "itself",
        ),
        confidence=None if having else 0.7,
    )  # fmt: skip


def _doing(group: Sequence[Subject]) -> str:
    """`they sleep at a.py:7 (f)`; where ranks are at several places, which are at each."""
    places = list(alike(group, lambda s: (s.activity.text, s.activity.at)))
    texts = [
        f"{is_are(group, 'it', 'they') if len(places) == 1 else name_ranks(some)} "
        f"{several(some[0].activity.text, some)} at {some[0].activity.at}"
        for some in places[:SHOWN]
    ]
    more = sum(map(len, places[SHOWN:]))
    return ", ".join([*texts, *([f"{more} more elsewhere"] if more else [])])


def _same_on(nodes: AbstractSet[str]) -> tuple[str, ...]:
    """That what was said to do on one node is to be done on others, too."""
    return (f"the same on {nodesets.fold(nodes)}",) if nodes else ()


def _perhaps_full(case: Case, some: Sequence[Subject]) -> Iterator[Hit]:
    """Who looks again and again may fail to make a file: beside what else explains it."""
    full: dict[int, tuple[str, ...]] = {}
    for subject in some if case.waiters else ():
        node = case.nodes.get(subject.rank.node)
        mounts = room.full_mounts(node, subject.rank.process)[:SHOWN]
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
            evidence=tuple(found for s in group[:SHOWN] for found in full_facts(case, s)),
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
    return mounts[:SHOWN] if tries else ()


def _thrashing(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    slow = [s for s in left if s.activity.kind in _WORKS]
    short = [s for s in slow if _lacking(case, s) is not None]
    for group in alike(short, lambda s: (s.rank.node, _lacking(case, s))):
        lacking, node = _lacking(case, group[0]), case.nodes[group[0].rank.node]
        if lacking is None or not (case.waiters or lacking.over):
            continue
        held = any(s.activity.family == "over-memory" for s in group)
        cgroup = lacking.group
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{lacking.text}: {lacking.how}; {who(group)}",
                is_are(group, "is", "are"),
                f"there, and {several(group[0].activity.text, group)} at {group[0].activity.at}",
            ),
            evidence=(
                *((fact("process", None, _memory_text(node)),) if cgroup is None else ()),
                *common_facts(case, group),
            ),
            steps=(
                *(limit_steps(case, group[0].rank) if cgroup is not None else ()),
                *_raise(group[0], lacking),
                on(group[0], "cat /proc/pressure/memory; free -m"),
                on(group[0], "ps -eo pid,user,rss,args --sort=-rss", words="look who has it"),
                "fewer DataLoader workers, less pinned memory, a larger limit",
            ),
            confidence=HELD_UP if held and lacking.over else None,
        )


def _raise(subject: Subject, lacking: _Lacking) -> Iterator[Step]:
    """How to let processes go on that are over memory.high; the kernel only slows them down."""
    if lacking.over and (file := word(lacking.over)):
        yield on(subject, f"echo max > {file}", words="let it go on, where the limit is yours")


class _Lacking(NamedTuple):
    """What is short of memory: a node, or a cgroup on it."""

    text: str
    how: str
    group: Cgroup | None = None
    over: str = ""
    """The file of the limit that processes are slowed down for: memory.high of a group."""


def _lacking(case: Case, subject: Subject) -> _Lacking | None:
    """The cgroup of a rank, or one above, that is short of memory; else its node; else None."""
    node = case.nodes.get(subject.rank.node)
    groups = cgroups.of(node, subject.rank.process)
    pressed = node is not None and (node.memory_full or 0.0) >= cgroups.SHORT
    again = cgroups.rereads(groups) if pressed or _in_page_fault(subject) else None
    if again is not None:
        text = f"cgroup {again.folder} on {subject.rank.node} is short of memory, of which it may "
        text += f"have {size(again.limit)}"
        return _Lacking(text, f"{again.reread} pages taken from it had to be read again", again)
    short = next((one for one in groups if one.memory_full >= cgroups.SHORT), None)
    if short is not None:
        most = cgroups.limited(groups)
        text = f"cgroup {short.folder} on {subject.rank.node} is short of memory"
        if most is not None and most.slowed and most.limit == most.memory_high:
            over = f"{most.folder}/memory.high"
            text += f", and slowed down for using more than the {size(most.limit)} of {over}"
            return _Lacking(text, _nothing_ran(short.memory_full), short, over)
        elif most is not None:
            text += f", of which it may have {size(most.limit)}"
        return _Lacking(text, _nothing_ran(short.memory_full), short)
    if node is None or not pressed:
        return None
    return _Lacking(f"{node.name} is short of memory", _nothing_ran(node.memory_full or 0.0))


def _nothing_ran(percent: float) -> str:
    return f"in {percent:.0f}% of the last 10 s nothing could run there for want of it"


def _in_page_fault(subject: Subject) -> bool:
    """Whether its main thread waits for a page of memory: it is in state D, and in no call."""
    main = subject.activity.main
    return main is not None and main.state == "D" and main.syscall is None


def _held_back(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    held_back = [s for s in left if (s.rank.process.cpu_throttled or 0.0) >= HELD_BACK]
    if not case.waiters and len(held_back) == len(case.live):
        return  # all alike: nobody is slower than another
    slow = [s for s in held_back if s.activity.kind in _WORKS]
    for group in alike(slow, lambda s: (s.rank.node, s.rank.process.cpu_quota_of)):
        process = group[0].rank.process
        quota = f"{process.cpu_quota:g} cores" if process.cpu_quota else "few cores"
        folder = word(process.cpu_quota_of) if process.cpu_quota_of else None
        held = f"{100 * (process.cpu_throttled or 0.0):.0f}%"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'is', 'are')} starved of CPU: the quota of "
                f"{is_are(group, 'its', 'their')} cgroup is {quota}, and was used up early in "
                f"{held} of the periods; {is_are(group, 'it', 'they')} "
                f"{several(group[0].activity.text, group)} at {group[0].activity.at}",
            ),
            evidence=(
                *(
                    fact(
                        "process",
                        s.number,
                        f"{s.rank.process.cpu_quota_of}: {s.rank.process.cpu_quota} cores, held "
                        f"back in {100 * (s.rank.process.cpu_throttled or 0.0):.0f}% of periods",
                    )
                    for s in group[:4]
                ),
                *common_facts(case, group),
            ),
            steps=(
                *(
                    (on(group[0], f"grep . {folder}/cpu.*", words="see its quota"),)
                    if folder
                    else ()
                ),
                "ask for more: --cpus-per-task (Slurm), --cpus (docker), limits.cpu (Kubernetes)",
                "fewer DataLoader workers and threads (OMP_NUM_THREADS)",
            ),
        )


def _memory_text(node: Node) -> str:
    text = f"{node.name}: full avg10 of /proc/pressure/memory is {node.memory_full:.0f}"
    if node.memory_total:
        text += f"; {size(node.memory_available)} of {size(node.memory_total)} are free"
    return text


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
THRASH = Rule(
    cause="memory-thrash",
    title="A node, or the cgroup of a rank, is short of memory",
    seen="full avg10 is 20 or more, in memory.pressure of the rank's cgroup (version 2) or of one "
    "above it, or in /proc/pressure/memory of its node (Linux 4.20); and the rank works, or waits "
    "in the kernel, while others wait for it. Or its main thread is in a page fault, and its group "
    f"is full and has read {cgroups.REREAD} pages again that were taken from it "
    "(workingset_refault): such a group is told instead of a node that is short. Where the group "
    "is slowed down over its memory.high nobody has to wait; with confidence 0.92 a main thread is "
    "in mem_cgroup_handle_over_high.",
    excluded="Any of the causes above explains where the rank is.",
    confidence=0.75,
    next_steps=("Look who has the memory", "Raise the limit of the cgroup"),
    find=_thrashing,
    states=ALWAYS,
    complete="pressure, limits and what was read again are counted by the kernel, and read with "
    "every pass",
)
CPU_QUOTA = Rule(
    cause="straggler",
    title="A rank is starved of CPU by its cgroup",
    seen="The cgroup of a rank that works, or one above it, has a CPU quota (cpu.max, "
    f"cpu.cfs_quota_us) that was used up early in {HELD_BACK:.0%} of the periods or more "
    "(nr_throttled of cpu.stat), and others wait for it, or are not held back.",
    excluded="Any of the causes above explains where the rank is.",
    confidence=0.85,
    next_steps=("Ask for more CPUs", "Fewer DataLoader workers and threads"),
    find=_held_back,
    states=ALWAYS,
    complete="the quota and how often it was used up are counted by the kernel, and read with "
    "every pass",
)
