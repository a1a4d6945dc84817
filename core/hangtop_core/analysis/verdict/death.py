"""Ranks that the kernel ended: killed for want of memory, crashed, or still writing their core."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.layout import place_text
from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike, besides
from hangtop_core.analysis.verdict.cores import core_steps, dumping_steps, dumping_to
from hangtop_core.analysis.verdict.evidence import absent, common_facts, fact, place_facts
from hangtop_core.analysis.verdict.exited import exit_steps
from hangtop_core.analysis.verdict.lost import own_error
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onemachine import seats_here
from hangtop_core.analysis.verdict.outofmemory import (
    absent_by_groups,
    counts_none,
    group_facts,
    killed_before,
    killing,
    limit_steps,
    limit_text,
)
from hangtop_core.analysis.verdict.owners import ENDS_ALL_S, ends_all
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.startorder import between, fits, neighbours, of_another
from hangtop_core.analysis.verdict.steps import on_node
from hangtop_core.logs.judging.ended import CRASHES, status
from hangtop_core.logs.meaning import kernel_lines
from hangtop_core.logs.meaning.asynchronous import HOW as ASYNC
from hangtop_core.text.clean import size
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence, JobState
    from hangtop_core.logs.meaning.kernel_lines import Kind, Known
    from hangtop_core.model.file_log import Record
    from hangtop_core.model.node.facts import KernelLine
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.text.commands import Step

_BEFORE = (More("logs", "what it said before"),)
_STATES: frozenset[JobState] = frozenset({"hung", "unknown", "starting", "exited"})
_CRASHES = frozenset(-one for one in CRASHES)
_KILLED = frozenset({-signal.SIGKILL})
COUNTED_S = 8.0
"""The counter of kills is read every five seconds."""
INITIAL_PIDS = 0xEFFFFFFC
"""The namespace of processes that counts as the kernel does: PROC_PID_INIT_INO of Linux."""
JUST_S = 3.0
"""How long before or after the end of a rank the others stop at most."""
NEAR_S = 5.0
"""What the kernel says this close to the end of a process may be about it."""


class Told(NamedTuple):
    """One line of a node's kernel log about the end of a process."""

    line: KernelLine
    known: Known

    @property
    def when(self) -> str:
        """Time of day, UTC."""
        return f"{time.strftime('%H:%M:%S', time.gmtime(self.line.at))} UTC"


def _told(case: Case, node: str, kind: Kind) -> list[Told]:
    """What the kernel of a node said since the job began, the newest last."""
    seen = case.nodes.get(node)
    own = seen.kernel_lines if seen is not None else ()
    lines = (*own, *case.said.kernel_lines.get(node, ()))
    told = ((line, kernel_lines.read(line)) for line in lines if line.at >= case.began)
    return [Told(line, known) for line, known in told if known is not None and known.kind == kind]


def _about(case: Case, subject: Subject, kind: Kind, codes: Container[int]) -> Told | None:
    """What the kernel said of one process: by pid, or where pids are others by name and time.

    ``codes`` are the exit statuses that fit.
    """
    code = subject.rank.process.exit_code
    left = case.ended_at(subject)
    pids = {rank.process.pid for rank in case.by_node[subject.rank.node]}
    tids = {thread.tid for thread in subject.rank.process.threads}
    seen = case.nodes.get(subject.rank.node)
    same_count = seen is not None and seen.pid_ns == INITIAL_PIDS
    for told in reversed(_told(case, subject.rank.node, kind)):
        # A fault is told of the thread, by its own number and name.
        if told.known.pid == subject.pid or told.known.pid in tids:
            return told
        if same_count:
            continue
        near = left is not None and abs(told.line.at - left) <= NEAR_S
        unknown = told.known.pid not in pids and (code is None or code in codes)
        if near and unknown and told.known.comm == subject.rank.process.comm[:15]:
            return told
    return None


def _gone(left: Sequence[Subject]) -> list[Subject]:
    return [s for s in left if s.activity.kind in GONE]


def _others(case: Case, left: Sequence[Subject], blamed: Sequence[Subject]) -> tuple[Subject, ...]:
    """Ranks that left because these did: launchers end the rest. An error of its own is another."""
    if case.progress.state != "exited":
        return ()
    return tuple(s for s in besides(_gone(left), blamed) if own_error(case, s) is None)


def _oom_killed(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in _gone(left):
        told, process = _about(case, subject, "oom", _KILLED), subject.rank.process
        if told is None and own_error(case, subject) is not None:
            continue  # another process of the node was killed just then
        node = case.nodes.get(subject.rank.node)
        counted = node.oom_killed_at if node is not None else None
        left_at = case.ended_at(subject) or case.at
        near = counted is not None and -1.0 <= counted - left_at <= COUNTED_S
        near = near and (told is not None or not _counted_another(case, subject, left_at))
        group = killing(case, subject, left_at, COUNTED_S)
        near = near or group is not None or killed_before(case, subject)
        if told is None and not (near and process.exit_code in (None, -signal.SIGKILL)):
            continue
        when = f" at {told.when}" if told is not None else ""
        killed = "killed" if told is not None else "probably killed"
        evidence = [_line_fact(subject.number, told)] if told is not None else []
        if counted is not None and near and node is not None:
            text = f"oom_kill of /proc/vmstat grew when it left, to {node.oom_kills}"
            evidence.append(fact("kernel", subject.number, text))
        # What the node has free says nothing of a group that was out of memory.
        of_group = group is not None or (told is not None and "emory cgroup" in told.line.text)
        yield Hit(
            subjects=(subject,),
            explained=_others(case, left, (subject,)),
            summary=sentence(
                case,
                f"{who([subject])} was {killed} by the kernel for want of memory{when}"
                f"{limit_text(case, subject)}",
            ),
            evidence=(
                *evidence,
                *group_facts(case, subject),
                *(() if of_group else _memory_facts(case, subject)),
            ),
            steps=_memory_steps(case, subject),
            confidence=0.97 if told is not None else _sure(case, subject, group is not None),
        )
    by_log = tuple(_absent_ones(case, "oom", "was killed by the kernel for want of memory"))
    yield from by_log or absent_by_groups(case)


def _counted_another(case: Case, subject: Subject, left_at: float) -> bool:
    """Whether the kernel log names another process that the count of kills may be of."""
    lines = _told(case, subject.rank.node, "oom")
    return any(-NEAR_S <= told.line.at - left_at <= COUNTED_S for told in lines)


def _line_fact(rank: int | None, told: Told) -> Evidence:
    return fact("kernel", rank, f"{told.when}: {told.line.text}")


def _memory_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    node = case.nodes.get(subject.rank.node)
    if node is not None and node.memory_total:
        text = f"{size(node.memory_available)} of {size(node.memory_total)} are free now"
        yield fact("process", subject.number, f"{node.name}: {text}")


def _sure(case: Case, subject: Subject, by_group: bool) -> float:
    """How sure it is by counts alone; those of its own group tell more than the node's."""
    known = subject.rank.process.exit_code is not None
    if by_group:
        return 0.93 if known else 0.85
    if killed_before(case, subject):
        return 0.75
    return 0.5 if counts_none(case, subject) else 0.85 if known else 0.7


def _memory_steps(case: Case, subject: Subject) -> tuple[Step, ...]:
    steps: list[Step] = list(limit_steps(case, subject.rank))
    find = ("grep", "-i", "-A1", "-e", "oom", "-e", "killed process")
    steps.append(on_node(subject.rank.node, Sign.KERNEL_LOG, Sign.PIPE, *find))
    steps.append(Advice("fewer DataLoader workers, a smaller prefetch_factor, less pinned memory"))
    return tuple(steps)


def _absent_ones(case: Case, kind: Kind, what: str) -> Iterator[Hit]:
    """Ranks that had left before anybody looked, where the kernel tells of one that fits."""
    if not case.waiters:
        return
    lacking = [seat for seat in case.seats if seat.unseen is None and seat.beside]
    lacking += seats_here(case)
    for seat in lacking:
        if seat.node is None or seat.local is None:
            continue
        beside = {rank.local_rank: rank for rank in case.by_node.get(seat.node, ())}
        names = {rank.process.comm[:15] for rank in beside.values()}
        ends = ends_all(case, seat.node)
        for told in reversed(_told(case, seat.node, kind)):
            fitting = fits(case, told.known.pid, seat.local, beside)
            thread = kind == "fault" and len(lacking) == 1
            thread = thread and _may_be_thread(case, told, seat.local, beside)
            if told.known.comm not in names or not (fitting or thread):
                continue
            run_on = ends and case.at - told.line.at >= ENDS_ALL_S
            if run_on or of_another(case, seat.node, told.known.pid):
                continue
            rank = next(iter(beside.values()))
            core = core_steps(case, rank, told.known.pid if fitting else None)
            text = "the other ranks stopped at that time"
            text = between(seat.local, beside) if fitting else text
            likely = "" if fitting and not ends else "most likely "
            yield Hit(
                subjects=(),
                absent=absent([seat]),
                summary=sentence(
                    case,
                    f"{place_text([seat])} {likely}{what} at {told.when} (pid {told.known.pid})",
                ),
                evidence=(
                    _line_fact(seat.rank, told),
                    fact("process", seat.rank, text),
                    *place_facts([seat]),
                ),
                steps=(*(core if kind == "fault" else ()), *exit_steps(case, rank)),
                confidence=0.9 if fitting else 0.85,
                decisive=not ends,  # it shows soon whether its launcher ends the others
            )
            break


def _may_be_thread(case: Case, told: Told, local: int, beside: Mapping[int | None, Rank]) -> bool:
    """Whether the one rank that lacks may have had this thread, by the time of its fault.

    The kernel gives the number of a thread that faults, which is a later one than its rank's.
    """
    stopped, pid = case.progress.since, told.known.pid
    below, _ = neighbours(local, beside)
    later = pid is not None and (below is None or pid > below[1].process.pid)
    near = stopped is not None and abs(told.line.at - stopped) <= JUST_S
    return later and near and pid not in {r.process.pid for r in beside.values()}


def _crashed(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    gone = _gone(left)
    reports = _reports(case) if gone else {}
    for subject in gone:
        told, code = _about(case, subject, "fault", _CRASHES), subject.rank.process.exit_code
        report = reports.get(subject.number) if code is None else None
        code = code if report is None else status(report)
        if told is None and (code not in _CRASHES or _by_watchdog(case, subject, code)):
            continue
        how = "crashed"
        if code in _CRASHES:
            name = signal.Signals(-(code or 0)).name
            how = f"crashed: {'it aborted' if name == 'SIGABRT' else 'a fault'} ({name})"
        when = f" at {told.when}" if told is not None else ""
        yield Hit(
            subjects=(subject,),
            explained=_others(case, left, (subject,)),
            summary=sentence(case, f"{who([subject])} {how}{when}"),
            evidence=(
                *([_line_fact(subject.number, told)] if told is not None else []),
                *([fact("log", subject.number, report.means)] if report is not None else []),
                fact("process", subject.number, f"pid {subject.pid} {subject.activity.text}"),
            ),
            steps=(*core_steps(case, subject.rank, subject.pid), *_bus_steps(subject, code)),
        )
    yield from _absent_ones(case, "fault", "crashed")


def _by_watchdog(case: Case, subject: Subject, code: int | None) -> bool:
    """Whether torch's watchdog has aborted a rank, since NCCL had told it of an error before."""
    error = case.said.errors.get(subject.number)
    return code == -signal.SIGABRT and error is not None and error.how == ASYNC


def _reports(case: Case) -> dict[int, Record]:
    """What launchers have reported of ranks of which logs tell that their crash came first."""
    first = case.said.verdicts[:1]
    blamed = {
        one.rank for found in first if found.cause == "rank-crashed" for one in found.culprits
    }
    some = (r for fold in case.said.folds for r in fold.members) if blamed else ()
    crashed = (r for r in some if status(r) in _CRASHES)
    return {r.rank: r for r in crashed if r.rank is not None and r.rank in blamed}


def _bus_steps(subject: Subject, code: int | None) -> Iterator[Step]:
    """What a SIGBUS is about, of which the kernel log says nothing."""
    if code == -signal.SIGBUS:
        why = "SIGBUS: a file that it had mapped was cut off, or its file system is full"
        yield on_node(subject.rank.node, "df", "-h", "/dev/shm", "/tmp", why=why)  # noqa: S108 - a command for people


def _dumping(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    dumping = [s for s in left if s.activity.kind == "core-dump"]
    for group in alike(dumping, lambda s: s.rank.node):
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(
                    group, "has crashed and is writing its core", "have crashed and write cores"
                ),
                dumping_to(case, group[0]),
                case.since(group[0]),
            ),
            evidence=(
                *(
                    fact("process", s.number, "CoreDumping of /proc/PID/status is 1")
                    for s in group[:4]
                ),
                *common_facts(case, group),
            ),
            steps=dumping_steps(case, group[0]),
        )


OOM_KILLED = Rule(
    cause="rank-oom-killed",
    title="The kernel killed a rank for want of memory",
    seen="The process is gone, and the kernel log names it as killed out of memory; or it left "
    "(by signal 9, where that is known) when oom_kill of its cgroup (memory.events, "
    "memory.oom_control) grew, or that of /proc/vmstat. With confidence 0.70 a rank that had left "
    "before anybody looked, where the cgroup of the ranks beside it has a limit and has counted a "
    "kill.",
    excluded="It left with another status. The kernel log names another process that was killed "
    "then. (Where its own cgroup counts kills and has counted none then, the confidence is 0.50.)",
    confidence=0.97,
    next_steps=("Look at the memory limit of its cgroup", "Fewer DataLoader workers"),
    find=_oom_killed,
    states=_STATES,
    decisive=True,
    needs=(More("kernel log", "how much memory it had when it was killed"),),
)
CRASHED = Rule(
    cause="rank-crashed",
    title="A rank crashed",
    seen="The process was ended by SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT, by its exit status, "
    "its launcher's report in the log (where nothing else failed before), or the kernel log.",
    excluded="Killed by another process (SIGKILL, SIGTERM): `rank-exited`. Aborted by its "
    "watchdog, which has printed of what error of NCCL.",
    confidence=0.95,
    next_steps=("`hangtop core` on its core file", "PYTHONFAULTHANDLER=1"),
    find=_crashed,
    states=_STATES,
    decisive=True,
    needs=_BEFORE,
)
DUMPING = Rule(
    cause="rank-dumping-core",
    title="A rank has crashed and is still writing its core",
    seen="CoreDumping in /proc/PID/status, Linux 4.15 and later.",
    excluded="It is 0.",
    confidence=0.97,
    next_steps=("Wait, then `hangtop core` on its core file", "Next time: ulimit -c 0"),
    find=_dumping,
    decisive=True,
    needs=_BEFORE,
)
RULES = (DUMPING, OOM_KILLED, CRASHED)
