"""Of what ranks, threads and children have died, and whose end a rank waits for."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.idle import in_task
from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.doing import by_multiprocessing, does, name_child
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.naming import name_subject
from hangtop_core.analysis.verdict.onethread import threads_of
from hangtop_core.logs.judging.ended import LONG, TOLD_TO
from hangtop_core.model.frames import package, plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.onethread import OneThread
    from hangtop_core.diagnosis import Evidence, Verdict
    from hangtop_core.model.file_log import Record
    from hangtop_core.model.snapshot import Process

_SHOWN = 3
_SEGMENT = re.compile(r"</torch_(\d{1,10})_\d+_\d+>")
_MAY_DIE = ("subprocess", "dataloader-worker")


class Dead(NamedTuple):
    """A thread or child that has died of an exception, as a log tells."""

    text: str
    """Its sentence."""
    confidence: float
    facts: tuple[Evidence, ...]


def dead_thread(case: Case, subject: Subject, threads: Sequence[OneThread]) -> Dead | None:
    """The last thread of a rank that has printed with what it died, and is not there any more.

    Where lines do not tell their rank, it is one of those whose program has that file open, and
    only where no other rank waits for a thread of its own.
    """
    there = {one.stack.name for one in threads}
    files = {frame.file.rpartition("/")[2] for one in threads for frame in one.frames}
    found: Record | None = None
    for record in _printed(case, subject.number):
        name = record.fields.get("thread")
        if not name:
            continue
        mine = record.rank == subject.number
        if name in there or not (mine or (record.rank is None and _fits(case, subject))):
            continue
        own = {call.file.rpartition("/")[2] for call in record.calls if not package(call.file)}
        if (mine or own & files) and (found is None or record.order > found.order):
            found = record
    return _told(found, subject)


def dead_in(case: Case, subject: Subject, file: str) -> Dead | None:
    """The last thread that has died in a file of a library, as a rank printed, or nobody knows."""
    found = [
        one
        for one in _printed(case, subject.number)
        if one.fields.get("thread") and any(file in f"/{call.file}" for call in one.calls)
    ]
    return _told(
        max(found, key=lambda one: (one.rank is not None, one.order), default=None), subject
    )


def _told(found: Record | None, subject: Subject) -> Dead | None:
    if found is None:
        return None
    return _dead(subject, f"thread '{found.fields['thread']}'", found)


def _dead(subject: Subject, what: str, printed: Record) -> Dead:
    """What has died of a rank, by a traceback of it, or of nobody that is known."""
    text = f"{what} died of {of_what(printed)}"
    mine = printed.rank is not None
    told = "it printed" if mine else "a log tells, not of which rank"
    return Dead(
        f"its {text}" if mine else f"a {text}, most likely its own",
        0.92 if mine else 0.88,
        (fact("log", subject.number if mine else None, f"{told}: {text}"),),
    )


def _printed(case: Case, rank: int) -> tuple[Record, ...]:
    """The tracebacks that a rank has printed, and those of nobody that is known."""
    printed = case.said.tracebacks
    return (*printed.get(rank, ()), *printed.get(None, ()))


def dead_child(case: Case, subject: Subject) -> Dead | None:
    """The last child of a rank that has printed with what it died, where one may have.

    Of a line that does not tell its rank only where no other rank has lost a child. Who has live
    children and has lost none may have printed it long ago.
    """
    printed = [one for one in _printed(case, subject.number) if _of_child(one)]
    if not printed or (_live(subject) and not lost_children(subject)):
        return None
    alone = not any(lost_children(s) for s in case.subjects if s is not subject)
    alone = alone and (bool(lost_children(subject)) or _fits(case, subject))
    own = [one for one in printed if one.rank == subject.number]
    some = own or [one for one in printed if one.rank is None and alone]
    if not some:
        return None
    last = max(some, key=lambda one: one.order)
    name = f" '{last.fields['process']}'" if last.how == "child" else ""
    return _dead(subject, f"child process{name}", last)


def lost_children(subject: Subject) -> list[Process]:
    """Children that have ended, not by themselves as far as is known, and nobody has looked at."""
    children = subject.rank.children
    return [c for c in children if c.state == "Z" and c.exit_code != 0 and c.role in _MAY_DIE]


def error_of_somebody(case: Case, number: int) -> Record | None:
    """The exception that most likely ended a rank of which no log tells what it has printed.

    Only where it alone has failed: the last one that nobody has caught, as far as that is told.
    """
    gone = [s for s in case.subjects if s.activity.kind in GONE]
    failed = [s for s in gone if s.rank.process.exit_code not in TOLD_TO]
    lacking = [seat.rank for seat in case.seats if seat.unseen is None]
    if [number] != [*(s.number for s in failed), *lacking]:
        return None
    some = [
        one
        for one in case.said.tracebacks.get(None, ())
        if one.part in ("root", "survived")
        and one.how in ("", "child")
        and not (failed and _long_before(case, failed[0], one))
    ]
    started = stack_of(case.snapshot.stacks, case.live[0]) if some and case.live else ()
    if not by_multiprocessing(started) or any(map(lost_children, case.subjects)):
        some = [one for one in some if not _of_child(one)]
    return max(some, key=lambda one: (one.file, one.order), default=None)


def aborted(case: Case) -> tuple[Subject, ...]:
    """The one rank that C++ has aborted, of which no line has a number; empty where several may.

    By its status; where none was read, it is the only one whose end nothing else tells.
    """
    found = [s for s in case.subjects if s.rank.process.exit_code == -signal.SIGABRT]
    if not found and not case.seats:
        gone = (s for s in case.subjects if s.activity.kind in GONE)
        found = [s for s in gone if s.rank.process.exit_code is None]
        found = [s for s in found if s.number not in case.said.errors]
    return tuple(found) if len(found) == 1 else ()


def _long_before(case: Case, subject: Subject, error: Record) -> bool:
    """Whether an error was printed so long before a rank left that this lived on after it."""
    left = case.ended_at(subject)
    return left is not None and error.exact and (error.at or left) < left - LONG


def by_segment(case: Case, one: Verdict) -> tuple[Subject | None, str]:
    """Whose process could not get shared memory, and the sentence of the verdict with its name.

    torch calls a segment /torch_PID_RANDOM_NUMBER.
    """
    pids = {int(pid) for fact in one.evidence for pid in _SEGMENT.findall(fact.text)}
    for subject in case.subjects:
        own = [subject.pid, *(child.pid for child in subject.rank.children)]
        pid = next((pid for pid in own if pid in pids), None)
        if pid is None:
            continue
        name = name_subject(subject) + (f", by its child (pid {pid})" if pid != subject.pid else "")
        whose, colon, what = one.summary.partition(": ")
        if subject.activity.kind not in GONE and pid != subject.pid:
            what += f"; the rank {subject.activity.text} at {subject.activity.at}"
        return subject, f"{name}: {what}" if colon and whose.startswith("a process") else ""
    return None, ""


def _of_child(error: Record) -> bool:
    """Whether it is a child of multiprocessing that has died of an exception."""
    return error.how == "child" or by_multiprocessing(error.calls)


def of_what(error: Record) -> str:
    """`KeyError: 'x' at train.py:7 (step)`; less of one in whose midst others printed."""
    whole = error.part != "error"
    return error.text + error.from_where if whole else "an exception"


def _live(subject: Subject) -> list[Process]:
    return [c for c in subject.rank.children if c.role == "subprocess" and not c.ended]


def _fits(case: Case, subject: Subject) -> bool:
    """Whether a thread of an unknown rank may be this one's: no other waits for one of its own."""
    waits = {"lock", "join", "queue", "teardown"}
    others = [s for s in case.subjects if s.activity.kind in waits and s is not subject]
    return not others


def awaited(case: Case, subject: Subject) -> str:
    """Whose end a program waits for that is itself at its end: `thread 'writer', which is at ...`.

    Threads that are daemons are not waited for, which no stack tells.
    """
    threads = threads_of(case, subject)
    frames = threads[0].frames if threads else ()
    files = " ".join(frame.file for frame in frames)
    if any(plain_name(frame.name) == "_finalize_join" for frame in frames):
        return "for somebody to take what it has put into a multiprocessing queue out of it"
    if "/multiprocessing/" in files or "/concurrent/futures/process.py" in files:
        live = _live(subject)
        named = []
        for child in live[:_SHOWN]:
            doing = does(case, subject, child)
            named.append(f"{name_child(case, subject, child)}{f', which {doing}' if doing else ''}")
        return _one_of(named, "its ", "one of its children: ", len(live) == 1)
    others = [one for one in threads[1:] if one.reading.site is not None and not one.idle]
    if "/concurrent/futures/thread.py" in files:
        others = [one for one in others if in_task(one.frames)]
    named = [f"{one.name} at {one.place}" for one in others[:_SHOWN]]
    return _one_of(named, "", "one of its threads that is no daemon: ", len(threads) == 2)


def _one_of(named: Sequence[str], one: str, several: str, sure: bool) -> str:
    if not named:
        return ""
    if len(named) == 1:
        return f"{'' if sure else 'most likely '}for {one}{named[0]}"
    return f"for {several}{'; '.join(named)}"
