"""Processes of a loader of the program's own that have died, while their rank waits for data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.doing import (
    POOLS,
    by_multiprocessing,
    does,
    frames_of,
    name_child,
)
from hangtop_core.analysis.verdict.endings import dead_child, lost_children
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.needs import WHY_LEFT
from hangtop_core.analysis.verdict.outofmemory import child_facts
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import on
from hangtop_core.logs.meaning.steps import KILLS
from hangtop_core.model.frames import is_library, library_run
from hangtop_core.text.clean import how_ended
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Frame, Process

_BETWEEN = (
    "/multiprocessing/queues.py",
    "/multiprocessing/connection.py",
    "/multiprocess/queues.py",
    "/multiprocess/connection.py",
)
"""Where one waits for what another process puts into a queue or pipe."""
_CALLERS = 3
"""Own frames, the one that waits first, that may say that it is data which is waited for."""
_DATA = re.compile(
    r"(?:reader|loader|data_?set|data_?source|data_?pipe|data_?stream|pre_?fetch\w*|sampler|batches"
    r"|shards|(?:next|get|fetch|read|load|iter)_?(?:batch|sample|record|data)\w*"
    r"|(?:batch|sample|data)_?iter\w*)(?![a-z])",
    re.IGNORECASE,
)
"""Names of what reads training data: a class, a function, or what a loop goes over."""
_OTHER = re.compile(
    r"model|weight|check_?point|ckpt|metric|result|config|\blog|event|state", re.IGNORECASE
)
"""Names of what is read that is no training data."""
_WAITING = frozenset({"queue", "idle-worker", "unknown"})
"""What a child does that is not to blame: it waits for room, or for work."""


def _dead(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        lost = _lost(case, subject) if subject.activity.kind == "queue" else ()
        if not lost:
            continue
        named = name_child(case, subject, lost[0])
        text = f"its {named}, which {how_ended(lost[0].exit_code or 0)} and is a zombie"
        more = f" (one of {len(lost)} that have died)" if len(lost) > 1 else ""
        dead = dead_child(case, subject)
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits for data in {subject.activity.op or 'a queue'} at "
                f"{subject.activity.at}",
                f"{case.since(subject)}: most likely from {text}{more}".lstrip(": "),
                f"({dead.text})" if dead else "",
            ),
            evidence=(
                *(dead.facts if dead else ()),
                *(
                    fact(
                        "process",
                        subject.number,
                        f"child pid {one.pid} {how_ended(one.exit_code or 0)}",
                    )
                    for one in lost[:4]
                ),
                *child_facts(case, subject, lost),
                *_siblings(case, subject),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, *KILLS),
                Advice(
                    "run the reader with PYTHONFAULTHANDLER=1: then Python says where it crashed"
                ),
                Advice("let the rank look at is_alive() of its readers: get(timeout=...)"),
            ),
        )


def _lost(case: Case, subject: Subject) -> Sequence[Process]:
    """Children that have failed, where data from a process is waited for and none is at work."""
    lost = [c for c in lost_children(subject) if c.role == "subprocess" and c.exit_code]
    if not lost or subject.activity.op == "put":
        return ()
    stack = stack_of(case.snapshot.stacks, subject)
    run = library_run(stack)
    if not any(one.file.endswith(_BETWEEN) for one in run):
        return ()
    if any(part in one.file for one in run for part in POOLS) or not _reads(stack):
        return ()
    for child in _live(case, subject):
        activity = case.reader.process(child, subject.rank.child_samples.get(child.pid))
        if activity.kind not in _WAITING:
            return ()  # that one may have to give it
    return lost


def _reads(stack: Sequence[Frame]) -> bool:
    """Whether names say that data to train with is waited for."""
    own = [frame for frame in stack if not is_library(frame)][:_CALLERS]
    texts = [text for frame in own for text in (frame.name, frame.source or "")]
    return any(_DATA.search(text) and not _OTHER.search(text) for text in texts)


def _live(case: Case, subject: Subject) -> list[Process]:
    """Children by multiprocessing that live."""
    return [
        c
        for c in subject.rank.children
        if c.role == "subprocess"
        and not c.ended
        and by_multiprocessing(frames_of(case, subject, c))
    ]


def _siblings(case: Case, subject: Subject) -> Iterator[Evidence]:
    for child in _live(case, subject)[:4]:
        doing = does(case, subject, child)
        if doing:
            yield fact("stacks", subject.number, f"{name_child(case, subject, child)} {doing}")


READER = Rule(
    cause="dataloader-worker-dead",
    title="A process that reads data for a rank has died",
    seen="The rank waits in multiprocessing for what a process puts into a queue or a pipe; names "
    "of its functions, or what its loop goes over, say that this is data (`reader`, `loader`, "
    "`dataset`, `next_batch`); and a child of it was killed, or failed, and is a zombie.",
    excluded="Names say nothing of data: `queue-wait`. Another child is at work. It is a pool that "
    "has lost a worker: `queue-wait`.",
    confidence=0.88,
    next_steps=(
        "Look for an OOM kill or a crash",
        "get(timeout=...), and is_alive() of the readers",
    ),
    find=_dead,
    decisive=True,
    needs=WHY_LEFT,
)
