"""A thread that keeps the GIL while it sleeps: nothing in Python runs in its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.native import called
from hangtop_core.analysis.standing import JITTER_S, THREADS_SHARE, wakes_up
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.onethread import OneThread, threads_of
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import dump_step
from hangtop_core.model.frames import where
from hangtop_core.text.clean import plural
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case


def _keeper(subject: Subject, threads: Sequence[OneThread]) -> OneThread | None:
    """Return the thread that owns the GIL and sleeps all the same; None if nobody surely does.

    py-spy tells the owner (CPython 3.6 to 3.13, so seen), for a moment: a thread that takes turns
    with others may have gone to sleep since. One that has not run since the sample has not; of
    others, who sleep on a futex mostly want the GIL themselves.
    """
    owner = next((one for one in threads if one.stack.gil), None)
    sample, moved = subject.rank.sample, subject.rank.moved_at
    if owner is None or sample is None or owner.family is None:
        return None
    main = owner.stack.tid == subject.pid
    if main and moved is not None and moved < sample.at - JITTER_S:
        return owner
    if owner.stack.active or owner.wants_gil:
        return None
    quiet = (subject.rank.cpu_share or 0.0) < THREADS_SHARE
    wanted = any(one.wants_gil for one in threads if one is not owner)
    # Who waits for the GIL wakes up every 5 ms to ask for it, other than who waits for a lock.
    wanted = wanted or (subject.activity.kind == "gil" and wakes_up(subject.rank, subject.standing))
    return owner if owner.family != "futex" or (wanted and quiet) else None


def _gil_held(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        sample = subject.rank.sample
        if sample is None or sample.count < 2 or subject.activity.owner is None:
            continue
        threads = threads_of(case, subject)
        owner = _keeper(subject, threads)
        if owner is None:
            continue
        facts = owner.facts
        call = (facts.syscall or facts.wchan or "a system call") if facts else "a system call"
        call = "a sleep that was interrupted" if call == "restart_syscall" else call
        call = "a lock or condition of C code (futex)" if owner.family == "futex" else call
        inside = called(owner.reading.natives)
        called_by = f", called {inside}," if inside else ""
        others = [one for one in threads if one is not owner]
        wanting = [one for one in others if one.wants_gil]
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{owner.name} (tid {owner.stack.tid}) of {who([subject])} holds the GIL while it "
                f"sleeps in {call}{called_by} at {where(owner.reading.site or owner.reading.top)};",
                f"{plural(len(others), 'other Python thread')} of it cannot run"
                if others
                else "nothing in Python can run in it",
            ),
            evidence=(
                fact(
                    "stacks",
                    subject.number,
                    f"{owner.name} owns the GIL and is idle, in {sample.count} samples in a row",
                ),
                fact(
                    "process",
                    subject.number,
                    f"{owner.name}: state {facts.state if facts else '?'}, syscall "
                    f"{facts.syscall if facts and facts.syscall else call}{owner.futex}",
                ),
                *(
                    fact(
                        "process",
                        subject.number,
                        f"{one.name} wants the GIL back: it sleeps on a futex at {one.place}, "
                        "which takes no lock",
                    )
                    for one in wanting[:3]
                ),
                *common_facts(case, [subject]),
            ),
            steps=(
                dump_step(subject, "--each --native"),
                Advice(
                    "release the GIL around that call (Py_BEGIN_ALLOW_THREADS; ctypes.CDLL, not "
                    "PyDLL; py::gil_scoped_release)"
                ),
            ),
        )


GIL_HELD = Rule(
    cause="gil-held",
    title="A thread holds the GIL while it sleeps",
    seen="py-spy says that a thread owns the GIL, and the kernel that it sleeps in a system call, "
    "in several samples. On a futex, as in a lock or condition of C code: only the main thread "
    "where it has not run since, or a thread of a rank that takes no CPU and has another one "
    "that wants the GIL: it sleeps on a futex at a line which takes no lock, or wakes up there.",
    excluded="The owner runs: the rule of `gil-held` for that, or `busy-in-python`.",
    confidence=0.92,
    next_steps=("Look at the native stack", "Release the GIL around that call"),
    find=_gil_held,
    needs=(More("native stacks", "which C function keeps the GIL"),),
)
