"""Ranks held up for want of memory or CPU, in their node or in their cgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis import cgroups
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.outofmemory import limit_steps
from hangtop_core.analysis.verdict.sentences import is_are, sentence, several, who
from hangtop_core.analysis.verdict.steps import on, word
from hangtop_core.text.clean import size
from hangtop_core.text.commands import Advice, Glob, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.node.cgroups import Cgroup
    from hangtop_core.model.snapshot import Node
    from hangtop_core.stacks.kinds import Kind
    from hangtop_core.text.commands import Step

_WORKS: frozenset[Kind] = frozenset(
    {"busy", "io", "waiting", "data", "inline-data", "importing", "checkpoint", "unknown"}
)
HELD_UP = 0.92
"""Confidence where the main thread sleeps in the kernel for that."""
HELD_BACK = 0.5
"""Share of periods in which a CPU quota was used up; a rank that has enough shows next to none."""


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
                on(group[0], "cat", "/proc/pressure/memory", Sign.THEN, "free", "-m"),
                on(
                    group[0], "ps", "-eo", "pid,user,rss,args", "--sort=-rss", why="look who has it"
                ),
                Advice("fewer DataLoader workers, less pinned memory, a larger limit"),
            ),
            confidence=HELD_UP if held and lacking.over else None,
        )


def _raise(subject: Subject, lacking: _Lacking) -> Iterator[Step]:
    """How to let processes go on that are over memory.high; the kernel only slows them down."""
    if lacking.over and (file := word(lacking.over)):
        yield on(
            subject, "echo", "max", Sign.INTO, file, why="let it go on, where the limit is yours"
        )


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
                    for s in group[:SHOWN]
                ),
                *common_facts(case, group),
            ),
            steps=(
                *(
                    (on(group[0], "grep", ".", Glob((f"{folder}/cpu.", "")), why="see its quota"),)
                    if folder
                    else ()
                ),
                Advice(
                    "ask for more: --cpus-per-task (Slurm), --cpus (docker), limits.cpu "
                    "(Kubernetes)"
                ),
                Advice("fewer DataLoader workers and threads (OMP_NUM_THREADS)"),
            ),
        )


def _memory_text(node: Node) -> str:
    text = f"{node.name}: full avg10 of /proc/pressure/memory is {node.memory_full:.0f}"
    if node.memory_total:
        text += f"; {size(node.memory_available)} of {size(node.memory_total)} are free"
    return text


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
