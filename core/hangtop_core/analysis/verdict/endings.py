"""Threads that have died of an exception, and threads and children whose end a rank waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.frames import package, plain_name
from hangtop_core.analysis.idle import in_task
from hangtop_core.analysis.verdict.doing import does
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.onethread import threads_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.onethread import OneThread
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.logs.record import Record

_SHOWN = 3


class Dead(NamedTuple):
    """A thread that has died of an exception, as a log tells."""

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
    for record in case.said.dead_threads:
        name = record.fields["thread"]
        mine = record.rank == subject.number
        if name in there or not (mine or (record.rank is None and _fits(case, subject))):
            continue
        own = {call.file.rpartition("/")[2] for call in record.calls if not package(call.file)}
        if (mine or own & files) and (found is None or record.order > found.order):
            found = record
    if found is None:
        return None
    whole = found.part != "error"  # else something else was printed in its midst
    where = f" at {found.where.text}" if found.where is not None and whole else ""
    name = found.fields["thread"]
    text = f"thread '{name}' died of {found.text if whole else 'an exception'}{where}"
    mine = found.rank is not None
    told = "it printed" if mine else "a log tells, not of which rank"
    return Dead(
        f"its {text}" if mine else f"a {text}, most likely its own",
        0.92 if mine else 0.88,
        (fact("log", subject.number if mine else None, f"{told}: {text}"),),
    )


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
        live = [c for c in subject.rank.children if c.role == "subprocess" and not c.ended]
        named = []
        for child in live[:_SHOWN]:
            doing = does(case, subject, child)
            named.append(f"{child.label} (pid {child.pid}{f', which {doing}' if doing else ''})")
        return _one_of(named, "child ", "one of its children ", len(live) == 1)
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
