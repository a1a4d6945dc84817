"""What the cgroups of ranks say about kills for want of memory; the rule is in `death`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hangtop_core.analysis import cgroups
from hangtop_core.analysis.layout import place_text
from hangtop_core.analysis.verdict.base import Hit, Subject
from hangtop_core.analysis.verdict.evidence import absent, fact, place_facts
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import on_node, word
from hangtop_core.logs.meaning.kernel_lines import read
from hangtop_core.text.clean import clean, duration, plural, size
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.node.cgroups import Cgroup
    from hangtop_core.model.snapshot import Process, Rank
    from hangtop_core.text.commands import Step

_FILES = "max,high,current,events,limit_in_bytes,failcnt,oom_control"


def _groups(case: Case, rank: Rank) -> tuple[Cgroup, ...]:
    known = _placed(case, rank)
    return cgroups.of(case.nodes.get(rank.node), known) if known is not None else ()


def _own(case: Case, rank: Rank) -> tuple[str, ...]:
    known = _placed(case, rank)
    return known.cgroup_folders if known is not None else ()


def _placed(case: Case, rank: Rank) -> Process | None:
    """The process by which it is known in which groups a rank is, or was.

    Of a zombie version 1 says that it is in the root: then it was where the ranks beside it are, if
    that is one place in which a process was killed; else nobody knows.
    """
    process, node = rank.process, case.nodes.get(rank.node)
    live = [one.process for one in case.by_node.get(rank.node, ()) if not one.process.ended]
    if process.state != "Z" or not live or not all(_above(process, one) for one in live):
        return process
    alike = len({one.cgroup_folders for one in live}) == 1
    killed = alike and any(
        one.counts.oom_kills and one.folder in live[0].cgroup_folders
        for one in cgroups.of(node, live[0])
    )
    return live[0] if killed else None


def _above(one: Process, other: Process) -> bool:
    """Whether the groups of one process are those above the other's, and not all the same."""
    return one.cgroup_folders != other.cgroup_folders and all(
        any(f"{theirs}/".startswith(f"{own}/") for theirs in other.cgroup_folders)
        for own in one.cgroup_folders
    )


def killing(case: Case, subject: Subject, left_at: float, within: float) -> Cgroup | None:
    """The nearest group of a rank whose count of kills grew as it left, at most so much later."""
    for group in _groups(case, subject.rank):
        at = group.oom_killed_at
        if at is not None and -1.0 <= at - left_at <= within:
            return group
    return None


def limit_text(case: Case, subject: Subject) -> str:
    """`, in a cgroup that may have 500 MiB (/sys/fs/cgroup/job_7)`, or nothing."""
    group = cgroups.limited(_groups(case, subject.rank))
    if group is None:
        return ""
    return f", in a cgroup that may have {size(group.limit)} ({clean(group.folder, 120)})"


def killed_before(case: Case, subject: Subject) -> bool:
    """Whether it was dead when it was first seen, killed by whoever, in a group of its own or of
    its job that had counted a kill by then."""
    process = subject.rank.process
    if subject.rank.sample is not None or process.exit_code != -signal.SIGKILL:
        return False
    groups = _groups(case, subject.rank)
    own = _own(case, subject.rank)
    counted = any(g.folder in own and g.counts.oom_kills for g in groups)
    return counted and cgroups.limited(groups) is not None


def counts_none(case: Case, subject: Subject) -> bool:
    """Whether its own group counts kills, and has counted none while it was watched."""
    own = _own(case, subject.rank)
    return any(
        one.folder in own and one.counts.oom_kills is not None and not one.killed
        for one in _groups(case, subject.rank)
    )


def group_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    """Limits, use and counts of the groups of a rank that have any."""
    own = _own(case, subject.rank)
    for group in _groups(case, subject.rank):
        counts = group.folder in own and group.counts.oom_kills is not None
        if group.limit is not None or group.counts.oom_kills or counts:
            yield fact("kernel", subject.number, cgroups.describe(group))


def child_facts(case: Case, subject: Subject, children: Iterable[Process]) -> Iterator[Evidence]:
    """What the kernel says of children of a rank that it has ended."""
    name, pids = subject.rank.node, {child.pid for child in children}
    node = case.nodes.get(name)
    for line in (*(node.kernel_lines if node else ()), *case.said.kernel_lines.get(name, ())):
        told = read(line)
        if told is not None and told.kind in ("oom", "fault") and told.pid in pids:
            ago = duration(max(case.at - line.at, 0.0))
            yield fact("kernel", subject.number, f"{ago} ago: {line.text}")


def limit_steps(case: Case, rank: Rank) -> Iterator[Step]:
    """Where the lowest limit of a rank's memory is set, and what was counted there."""
    groups = _groups(case, rank)
    group = cgroups.limited(groups)
    folder = (
        group.folder
        if group is not None
        else next((one.folder for one in groups if one.counts.oom_kills is not None), "")
    )
    if word(folder):
        files = [f"{folder}/memory.{name}" for name in _FILES.split(",")]
        yield on_node(rank.node, "grep", "-s", ".", *files)


def absent_by_groups(case: Case) -> Iterator[Hit]:
    """Ranks that had left before anybody looked, where the ranks beside are in a limited group
    that has counted a kill. It may have been a worker of it, or a rank of an earlier attempt."""
    if not case.waiters:
        return
    by_node: dict[str, list[Seat]] = {}
    for seat in case.seats:
        if seat.node is not None and seat.beside and seat.unseen is None:
            by_node.setdefault(seat.node, []).append(seat)
    for node, lacking in by_node.items():
        beside = case.by_node.get(node, ())
        counted = _shared(case, beside)
        killed = (counted.counts.oom_kills or 0) if counted is not None else 0
        if counted is None or killed < len(lacking):
            continue
        were = "was" if len(lacking) == 1 else "were"
        yield Hit(
            subjects=(),
            absent=absent(lacking),
            summary=sentence(
                case,
                f"{place_text(lacking)} {were} probably killed by the kernel for want of memory: "
                f"cgroup {counted.folder}, which has the ranks beside, has counted "
                f"{plural(killed, 'kill')}",
            ),
            evidence=(
                fact("kernel", None, cgroups.describe(counted)),
                *place_facts(lacking),
            ),
            steps=(
                *limit_steps(case, beside[0]),
                Advice("fewer DataLoader workers, a smaller prefetch_factor, less pinned memory"),
            ),
            confidence=0.7,
        )


def _shared(case: Case, beside: Sequence[Rank]) -> Cgroup | None:
    """The own group of all these ranks that has counted kills under a limit."""
    groups = _groups(case, beside[0]) if beside else ()
    if cgroups.limited(groups) is None:
        return None
    own = set.intersection(*(set(rank.process.cgroup_folders) for rank in beside))
    return next((one for one in groups if one.folder in own and one.counts.oom_kills), None)
