"""Ranks that wait for a program or process that they started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.churn import short_lived
from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor
from hangtop_core.analysis.verdict.doing import (
    READS,
    asked_first,
    drains,
    frames_of,
    waits_back,
    waits_for_work,
)
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import OF_CHILD, More
from hangtop_core.analysis.verdict.pools import at_task, in_pool, pool_workers
from hangtop_core.analysis.verdict.programs import (
    awaited,
    came_and_went,
    dying,
    gone_facts,
    other_end,
    programs,
    seen_facts,
    told_children,
)
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import on, strace_step, tails
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.model.frames import is_library
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.model.snapshot import Process
    from hangtop_core.text.commands import Step

_MAY_WAIT = frozenset({"sleep", "queue", "join", "lock", "waiting"})


def _stopped_first(children: Iterable[Process]) -> list[Process]:
    return sorted(children, key=lambda c: c.state[:1] not in ("T", "t"))


def _child_steps(subject: Subject, children: Sequence[Process]) -> Iterator[Step]:
    for child in children[:1]:
        if child.state[:1] == "T":
            yield on(subject, "kill", "-CONT", child.pid, why="let it go on")
        yield on(subject, "ls", "-l", f"/proc/{child.pid}/fd")
        if child.state[:1] != "T":
            yield strace_step(subject, child.pid)


def _piped(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who reads what a child of its own writes, by a pipe or a socket between them."""
    for subject in left:
        activity = subject.activity
        if activity.kind not in ("io", "remote") or activity.family not in READS:
            continue
        one, children = descriptor(subject), _stopped_first(other_end(subject))
        if one is None or not children:
            continue
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits at {activity.at}",
                case.since(subject),
                f"to read ({_end(one)}) what a program that it started writes: "
                f"{told_children(case, subject, children)}",
            ),
            evidence=(
                fact("process", subject.number, name_descriptor(one)),
                *seen_facts(case, subject, children),
                *common_facts(case, [subject]),
            ),
            steps=(
                *_child_steps(subject, children),
                *(
                    (
                        Advice(
                            "read all its pipes: communicate(), a thread for each, or "
                            "stderr=DEVNULL"
                        ),
                    )
                    if any(waits_back(subject, child) for child in children)
                    else ()
                ),
            ),
        )


def _end(one: Descriptor) -> str:
    return f"fd {one.fd}, {clean(one.target, 60)}"


def _child(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        told, sure = dying(case, subject), True
        held = _held_up(case, subject) if subject.rank.process.is_program and not told else []
        may_wait = (told or held) and subject.activity.kind in _MAY_WAIT
        if subject.activity.kind != "child" and not may_wait:
            continue
        children = _stopped_first(programs(subject))
        children = [*held, *(child for child in children if child not in held)]
        pool = in_pool(case, subject)
        if pool and not told:
            workers, busy = pool_workers(case, subject, children)
            if workers and not busy:
                continue  # asked about as a queue that nobody fills
            told = at_task(case, subject, children)
        if not told:
            children = sorted(children, key=lambda c: c not in awaited(subject, children))
            named = told_children(case, subject, held or awaited(subject, children))
            told = "for a program it started" + (f": {named}" if named else "")
            sure = bool(children)
        unread = any(drains(frames_of(case, subject, child)) for child in children)
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits at {subject.activity.at}",
                case.since(subject),
                told + _at_exit(case, subject),
            ),
            evidence=(
                *seen_facts(case, subject, children),
                *gone_facts(case, subject),
                *common_facts(case, [subject]),
            ),
            steps=(
                *((on(subject, *text) for text in tails(subject.rank)) if pool else ()),
                *_child_steps(subject, children),
                Advice("take everything out of the queue before join()")
                if unread
                else Advice("a pool does not notice a worker that dies: concurrent.futures does")
                if pool
                else Advice("give subprocess a timeout"),
            ),
            confidence=None if sure else 0.8,
            needs=asked_first(case, subject, awaited(subject, children)),
        )


def _held_up(case: Case, subject: Subject) -> list[Process]:
    """Return the children that are stuck of a program that only looks after those it has started.

    Those that wait for requests or for tasks, as most of a server's do, are not.
    """
    return [
        child
        for child in _stopped_first(programs(subject))
        if case.at - _still_since(case, subject, child) >= case.hang_after
        and not waits_for_work(frames_of(case, subject, child))
    ]


def _still_since(case: Case, subject: Subject, child: Process) -> float:
    """Return since when a child has been where it is: it was there before anybody looked."""
    sample = subject.rank.child_samples.get(child.pid)
    if sample is None or not sample.threads or sample.same_functions_since is None:
        return case.at
    left = subject.rank.child_left_at.get(child.pid)
    return min(sample.same_functions_since, case.at if left is None else left)


def _at_exit(case: Case, subject: Subject) -> str:
    """That a rank is behind its program, in what atexit calls: no module is on its stack."""
    stack = stack_of(case.snapshot.stacks, subject)
    if not stack or is_library(stack[-1]) or any(frame.name == "<module>" for frame in stack):
        return ""
    ended = [s for s in case.subjects if s.activity.kind in GONE]
    text = f"; the program of {rank_name(subject.number)} is most likely over: "
    text += "it is in what atexit calls"
    return f"{text}, and {name_ranks(ended)} ended" if ended else text


def _short(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Children that come and go while others wait, of which it is not known what they do."""
    for subject in left:
        short = short_lived(subject.rank, case.at)
        if subject.activity.kind != "child" or not short or case.waited_s < STALLED_AFTER_S:
            continue
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits at {subject.activity.at}",
                case.since(subject),
                f"for processes of which none stays: {came_and_went(case, short)}; whether they "
                "get anything done was not seen",
            ),
            evidence=(*gone_facts(case, subject), *common_facts(case, [subject])),
            steps=(
                *(on(subject, *text) for text in tails(subject.rank)),
                on(
                    subject,
                    "timeout",
                    "10",
                    "strace",
                    "-f",
                    "-e",
                    "trace=exit_group",
                    "-p",
                    subject.pid,
                    why="see with what status they end",
                ),
            ),
        )


SHORT = Rule(
    cause="child-process-wait",
    title="A rank waits for processes of which none stays",
    seen="While others wait, children of the rank come and go, of one command line and within "
    "seconds each: a program that is run again and again, or a pool that replaces its workers.",
    excluded="They are known to fail: see below.",
    confidence=0.5,
    next_steps=("Read what they print", "See with what status they end"),
    find=_short,
    states=frozenset({"progressing"}),
    complete="it is told of jobs that get on, and who is gone cannot be asked",
)
PIPED = Rule(
    cause="child-process-wait",
    title="A rank reads what a program it started does not write",
    seen="The main thread is in a read of a pipe or socket whose other end a child of the rank "
    "has. Told is what that does: it is stopped, sleeps, or is itself blocked in a pipe that only "
    "the rank reads or writes, so that both wait for each other.",
    excluded="Nobody, or another process, has the other end: `io-wait`.",
    confidence=0.92,
    next_steps=("kill -CONT, if it is stopped", "Read all pipes of the program: communicate()"),
    find=_piped,
    needs=(More("descriptors", "who has the other end of what it reads"),),
)
CHILD = Rule(
    cause="child-process-wait",
    title="A rank waits for a program it started",
    seen="subprocess or multiprocessing waits in the stack, or waitpid in user code. Told is what "
    "the child does; of a pool which worker has a task, or that they end as fast as they are "
    "started.",
    excluded="The child is a DataLoader worker, or compiles. All workers of a pool wait for tasks: "
    "`queue-wait`.",
    confidence=0.92,
    next_steps=("Look at what the child does", "Give subprocess a timeout"),
    find=_child,
    needs=OF_CHILD,
)
