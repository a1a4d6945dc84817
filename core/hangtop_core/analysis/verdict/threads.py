"""Causes among the threads of one rank: locks, queues and the GIL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis import kernel
from hangtop_core.analysis.activity import Reading
from hangtop_core.analysis.dictionary import by_source
from hangtop_core.analysis.frames import where
from hangtop_core.analysis.native import called
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import (
    common_facts,
    fact,
    sentence,
    who,
)
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.steps import on, trace_steps
from hangtop_core.model import Thread, ThreadStack
from hangtop_core.text import clean, how_ended, plural

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
    def wants_lock(self) -> bool:
        """Whether it waits for a lock in user code."""
        if self.reading.kind is not None or not self.reading.own or self.family != "futex":
            return False
        told = by_source(self.reading.top.source if self.reading.top else None)
        return told is None or told[0] in ("lock", "work-wait")

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


def _gil_held(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        sample = subject.rank.sample
        if sample is None or sample.count < 2 or subject.activity.owner is None:
            continue
        threads = threads_of(case, subject)
        owner = next((one for one in threads if one.stack.gil), None)
        if owner is None or owner.stack.active or owner.family in (None, "futex"):
            continue
        facts = owner.facts
        call = (facts.syscall or facts.wchan or "a system call") if facts else "a system call"
        call = "a sleep that was interrupted" if call == "restart_syscall" else call
        inside = called(owner.reading.natives)
        called_by = f", called {inside}," if inside else ""
        others = [one for one in threads if one is not owner]
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
                    f"{owner.name}: state {facts.state if facts else '?'}, syscall {call}",
                ),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, f"hangtop dump --pid {subject.pid} --each --native"),
                "release the GIL around that call (Py_BEGIN_ALLOW_THREADS; ctypes.CDLL, not PyDLL)",
            ),
        )


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
        cycle = len(stuck) >= 2
        if activity.kind == "join" and not stuck:
            yield _joining(case, subject, threads)
            continue
        main = f"{who([subject])} {_main_text(subject)} {case.since(subject)}".rstrip()
        if cycle:
            places = " and ".join(f"{one.name} at {one.place}" for one in stuck[:3])
            text = f"{main}: its threads wait for each other's locks, {places}"
        else:
            text = f"{main}; {_owners(threads)}"
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


def _main_text(subject: Subject) -> str:
    text = subject.activity.text
    if text == "sleeps on a futex":
        text = "waits for a lock"
    return f"{text} at {subject.activity.at}"


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
            f"{one.name} (tid {one.stack.tid}) {'waits for a lock' if one.wants_lock else 'is'} at "
            f"{one.place}{one.futex}",
        )
        for one in threads[:6]
    ]


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


GIL_HELD = Rule(
    cause="gil-held",
    title="A thread holds the GIL while it sleeps",
    seen="py-spy says that a thread owns the GIL, and the kernel that it sleeps in a system call "
    "(not on a futex), in several samples.",
    excluded="The owner runs: `busy-in-python`.",
    confidence=0.92,
    next_steps=("Look at the native stack", "Release the GIL around that call"),
    find=_gil_held,
    needs=(More("native stacks", "which C function keeps the GIL"),),
)
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
