"""Children that were forked while a thread of their rank had a lock: nobody gives it back there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.doing import in_c, name_child
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.needs import More, of_child
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import dump_step
from hangtop_core.model.frames import library_run, where
from hangtop_core.text.clean import plural
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Process, StackSample

_LOCKS = frozenset({"lock", "waiting", "gil"})
_WITH_FEEDER = 2
"""Threads of a child that has none but its main thread and one that feeds its queue."""


def _fork_deadlock(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind not in ("data", "child", "queue", "join"):
            continue
        for child in subject.rank.children:
            sample = subject.rank.child_samples.get(child.pid)
            if not _forked_alone(subject, child) or sample is None or not sample.threads:
                continue
            activity = case.reader.process(child, sample)
            gives = _gives(case, child, activity, sample)
            if not (gives or activity.kind in _LOCKS) or activity.family != "futex":
                continue
            parent = subject.rank.process.thread_count or len(subject.rank.process.threads)
            main = child.main_thread
            lock = f" at futex {main.futex}" if main is not None and main.futex else ""
            yield Hit(
                subjects=(subject,),
                summary=sentence(
                    case,
                    f"{who([subject])} waits for its {name_child(case, subject, child)}, which "
                    + (
                        f"{gives} at {where(activity.site)}, which no thread of it can give: fork "
                        f"copied one of the rank's {parent} threads"
                        if gives
                        else f"sleeps on a futex at {where(activity.site)}, and it has no thread "
                        f"that could wake it: fork copied one of the rank's {parent} threads, and "
                        "most likely another one held the lock, or is what it waits for"
                    ),
                ),
                evidence=(
                    fact(
                        "stacks",
                        subject.number,
                        f"child pid {child.pid} is in {where(activity.top)}{lock}"
                        f"{in_c(case, subject, child)}",
                    ),
                    fact(
                        "process",
                        subject.number,
                        f"child pid {child.pid} has {plural(len(sample.threads), 'Python thread')} "
                        f"and the command line of its rank, which has {parent} threads",
                    ),
                    *_other_threads(case, subject, "of the rank is not in it" if gives else None),
                    *common_facts(case, [subject]),
                ),
                steps=(
                    dump_step(subject, "--native", pid=child.pid),
                    Advice(
                        "use multiprocessing_context='forkserver' or 'spawn', or start workers "
                        "before threads"
                    ),
                ),
                needs=() if gives else of_child(FORK_DEADLOCK.needs, child.pid),
            )
            break


def _gives(case: Case, child: Process, activity: Activity, sample: StackSample) -> str:
    """What a child waits for that only another thread could give, where it cannot have any."""
    if activity.kind != "queue" or (child.thread_count or len(child.threads)) > _WITH_FEEDER:
        return ""
    run = library_run(case.reader.frames(sample.threads[0].stack))
    files = "".join("/" + frame.file for frame in run)
    if "/multiprocess" in files or "/asyncio/" in files:
        return ""
    future = "waits for the result of a future" if "/concurrent/futures/_base.py" in files else ""
    return future or ("waits for a queue of threads" if "/queue.py" in files else "")


def _other_threads(case: Case, subject: Subject, why: str | None) -> Iterator[Evidence]:
    """Threads of the rank that may have held the lock when it forked, or did not come along."""
    for one in threads_of(case, subject)[1:]:
        if why and (one.stack.name or "") != "QueueFeederThread":
            yield fact("stacks", subject.number, f"{one.name} {why}")
        elif one.reading.site is not None and not one.idle:
            text = f"{one.name} of the rank, which may have held it, is now at {one.place}"
            yield fact("stacks", subject.number, text)


def _forked_alone(subject: Subject, child: Process) -> bool:
    """Whether a child was forked from a rank with threads and has hardly any of its own."""
    rank = subject.rank.process
    sample = subject.rank.child_samples.get(child.pid)
    threads = sample.threads if sample is not None else ()
    others = [one for one in threads[1:] if one.name not in ("QueueFeederThread",)]
    return (
        not child.ended
        and child.cmdline == rank.cmdline
        and not others
        and (rank.thread_count or len(rank.threads)) > 1
    )


FORK_DEADLOCK = Rule(
    cause="fork-deadlock",
    title="A forked child waits for a lock that nobody in it holds",
    seen="A rank waits for a child with the rank's own command line; the child has one thread, "
    "which waits for a lock, a future or a queue of threads, while the rank has many.",
    excluded="The child was spawned, or has threads that could hold the lock.",
    confidence=0.85,
    next_steps=("Use spawn or forkserver", "Start workers before threads"),
    find=_fork_deadlock,
    decisive=True,
    needs=(More("native stacks", "whether the child waits for a lock of Python or of C code"),),
)
