"""Causes among the threads of one rank: locks and queues; `gil` has the GIL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis import kernel
from hangtop_core.analysis.activity import Activity, Reading
from hangtop_core.analysis.dictionary import by_source
from hangtop_core.analysis.frames import plain_name, where
from hangtop_core.analysis.sourcelines import needs_no_lock
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.evidence import (
    common_facts,
    fact,
    sentence,
    who,
)
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.steps import on, trace_steps
from hangtop_core.model import Thread, ThreadStack
from hangtop_core.text import clean, how_ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model import Process


class OneThread(Struct, frozen=True):
    """One Python thread of a rank: its stack, what that says, what the kernel says."""

    stack: ThreadStack
    reading: Reading
    facts: Thread | None

    @property
    def name(self) -> str:
        """`thread 'writer'`."""
        return f"thread '{clean(self.stack.name or str(self.stack.tid), 60)}'"

    @property
    def family(self) -> str | None:
        """What it sleeps on."""
        if self.facts is None or self.facts.state == "R":
            return None
        return kernel.kernel_wait(self.facts.wchan, self.facts.syscall)

    @property
    def source(self) -> str | None:
        """The line that its innermost frame is in."""
        return self.reading.top.source if self.reading.top is not None else None

    @property
    def wants_gil(self) -> bool:
        """Whether it sleeps on a futex in a line that never does: it wants the GIL back."""
        return self.family == "futex" and needs_no_lock(self.source)

    @property
    def wants_lock(self) -> bool:
        """Whether it waits in user code for a lock, or for what else sleeps on a futex."""
        if self.reading.kind is not None or not self.reading.own or self.family != "futex":
            return False
        told = by_source(self.source)
        return not self.wants_gil and (told is None or told[0] in ("lock", "work-wait"))

    @property
    def takes_lock(self) -> bool:
        """Whether the line that it waits in takes a lock, and does nothing else."""
        told = by_source(self.source)
        return self.wants_lock and told is not None and told[0] == "lock"

    @property
    def place(self) -> str:
        """Where it is, with its line of code."""
        top = self.reading.site or self.reading.top
        source = f" `{top.source.strip()}`" if top is not None and top.source else ""
        return f"{where(top)}{source}"

    @property
    def futex(self) -> str:
        """`, futex 0x5640`: equal addresses are one lock."""
        return f", futex {self.facts.futex}" if self.facts and self.facts.futex else ""


def threads_of(case: Case, subject: Subject) -> list[OneThread]:
    """All Python threads of a subject, the main thread first."""
    sample = subject.rank.sample
    if sample is None:
        return []
    found = []
    for stack in sample.threads:
        reading, facts = case.reader.thread(subject.rank.process, stack)
        found.append(OneThread(stack, reading, facts))
    return found


def _lock(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        activity = subject.activity
        if activity.kind not in ("lock", "join", "waiting") or activity.loading:
            continue
        if activity.kind == "waiting" and activity.family != "futex":
            continue
        threads = threads_of(case, subject)
        stuck = [one for one in threads if one.wants_lock]
        if activity.kind == "waiting" and len(stuck) < 2 and not _has_candidates(threads):
            continue
        cycle = _each_others(subject, stuck)
        if activity.kind == "join" and not stuck:
            yield _joining(case, subject, threads)
            continue
        main = f"{who([subject])} {_main_text(case, subject)} {case.since(subject)}".rstrip()
        if cycle:
            places = " and ".join(f"{one.name} at {one.place}" for one in stuck[:3])
            text = f"{main}: its threads wait for each other's locks, {places}"
        else:
            text = f"{main}; {_owners(threads, _why(case, subject))}"
        yield Hit(
            subjects=(subject,),
            summary=sentence(case, text),
            evidence=(
                *_thread_facts(subject, threads),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, f"hangtop dump --pid {subject.pid} --each --locals"),
                *trace_steps(subject),
            ),
            confidence=0.93 if cycle else None,
            decisive=cycle,
        )


def _each_others(subject: Subject, stuck: Sequence[OneThread]) -> bool:
    """Whether threads want different locks, so that each may well have what another wants.

    Equal addresses are one lock, which neither of them has. From CPython 3.14 on a thread sleeps
    on a word of its own, and only the lines tell.
    """
    takers = [one for one in stuck if one.takes_lock and one.facts is not None]
    version = subject.rank.process.versions.get("python", "").split(".")[:2]
    own = len(version) == 2 and version >= ["3", "14"]
    wanted = {one.source if own else one.facts.futex for one in takers if one.facts is not None}
    return len(takers) >= 2 and len(wanted) >= 2 and None not in wanted


def _main_text(case: Case, subject: Subject) -> str:
    """What its main thread does, in words that are true of a line that is not known, too."""
    activity = subject.activity
    text = activity.text
    if activity.kind == "waiting":
        text = "sleeps inside of a call, in a lock or in what else waits on a futex,"
    elif _in_barrier(case, subject):
        text = "waits in a threading.Barrier until enough threads have come"
    elif _is_to_be_woken(activity):
        text = "waits for another thread to wake it (Condition or Event)"
    return f"{text} at {activity.at}"


def _is_to_be_woken(activity: Activity) -> bool:
    """Whether it is in a wait of threading.py that nobody's holding of a lock explains."""
    top = activity.top
    in_threading = top is not None and top.file.endswith("/threading.py")
    return in_threading and activity.kind == "lock" and activity.op in ("wait", "wait_for")


def _in_barrier(case: Case, subject: Subject) -> bool:
    """Whether its main thread is in a Barrier of threading.py, the one class that has `_wait`."""
    return _is_to_be_woken(subject.activity) and any(
        plain_name(one.name) == "_wait" and one.file.endswith("/threading.py")
        for one in stack_of(case.snapshot.stacks, subject)
    )


def _why(case: Case, subject: Subject) -> str:
    """What its other threads are named for."""
    if _in_barrier(case, subject):
        return "its other threads, of which one may have to come"
    if subject.activity.kind == "waiting":
        return "its other threads"
    return "who may have to" if _is_to_be_woken(subject.activity) else "who may hold it"


def _joining(case: Case, subject: Subject, threads: Sequence[OneThread]) -> Hit:
    text = f"{who([subject])} waits for a thread of its own to end, at {subject.activity.at}"
    text = f"{text} {case.since(subject)}".rstrip()
    return Hit(
        subjects=(subject,),
        summary=sentence(case, f"{text}; {_owners(threads, 'that may be')}"),
        evidence=(
            *_thread_facts(subject, threads),
            *common_facts(case, [subject]),
        ),
        steps=trace_steps(subject),
        confidence=0.75,
    )


def _has_candidates(threads: Sequence[OneThread]) -> bool:
    """Whether the line of the main thread, or another thread, speaks for a lock."""
    top = threads[0].reading.top if threads else None
    told = by_source(top.source if top is not None else None)
    return (told is not None and told[0] == "lock") or len(threads) > 1


def _owners(threads: Sequence[OneThread], why: str = "who may hold it") -> str:
    others = [one for one in threads[1:] if one.reading.site is not None]
    if not others:
        return "no other Python thread is there that could release it"
    named = "; ".join(f"{one.name} is at {one.place}" for one in others[:3])
    return f"{why}: {named}"


def _thread_facts(subject: Subject, threads: Sequence[OneThread]) -> list[Evidence]:
    return [
        fact(
            "stacks",
            subject.number,
            f"{one.name} (tid {one.stack.tid}) {_does(one)} at {one.place}{one.futex}",
        )
        for one in threads[:6]
    ]


def _does(one: OneThread) -> str:
    if one.wants_gil:
        return "wants the GIL back"
    if one.takes_lock:
        return "waits for a lock"
    return "sleeps on a futex" if one.wants_lock else "is"


def _queue(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind != "queue":
            continue
        threads = threads_of(case, subject)
        others = [one for one in threads[1:] if one.reading.kind not in ("queue", "idle-worker")]
        if others:
            told = "; ".join(f"{one.name} is at {one.place}" for one in others[:3])
        else:
            told = "no other Python thread is alive that could fill it"
        children = [c for c in subject.rank.children if c.role == "subprocess" and c.state != "Z"]
        if children and not others:
            told = f"its child {children[0].label} (pid {children[0].pid}) may have to fill it"
        dead = [c for c in subject.rank.children if c.role == "subprocess" and _failed(c)]
        if dead and not others:
            ended = "ended" if dead[0].exit_code is None else how_ended(dead[0].exit_code)
            told = (
                f"most likely its child {dead[0].label} (pid {dead[0].pid}) filled it, which "
                f"{ended} and is a zombie"
            )
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits in {subject.activity.op or 'a queue'} at "
                f"{subject.activity.at}",
                f"{case.since(subject)}: {told}".lstrip(": "),
            ),
            evidence=(
                *_thread_facts(subject, threads),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, f"hangtop dump --pid {subject.pid} --each --locals"),
                *trace_steps(subject),
            ),
        )


def _failed(child: Process) -> bool:
    """Whether a child has ended, not by itself as far as is known, and nobody has looked at it."""
    return child.state == "Z" and child.exit_code != 0


LOCK_WAIT = Rule(
    cause="lock-wait",
    title="A rank waits for a lock or thread of its own",
    seen="The main thread sleeps on a futex in threading.py or on a line of user code that takes "
    "a lock; two threads that both do are a deadlock.",
    excluded="Most ranks are on the same line: that is an asynchronous collective.",
    confidence=0.82,
    next_steps=("Look at the other threads: one of them holds it", "hangtop dump --each --locals"),
    find=_lock,
    needs=(
        More("descriptors", "whether who holds the lock waits for a file or a peer"),
        More("native stacks", "whether it is a lock of Python or of C code"),
    ),
)
QUEUE_WAIT = Rule(
    cause="queue-wait",
    title="A rank waits for a queue that nobody fills",
    seen="The main thread is in Queue.get, Future.result, or an event loop that waits.",
    excluded="The queue is a DataLoader's; a thread of the rank waits in a collective.",
    confidence=0.85,
    next_steps=("Find the producer: its thread or process may have died",),
    find=_queue,
)
