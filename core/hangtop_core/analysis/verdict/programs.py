"""Children that a rank may wait for: which they are, what they do, and which have come and gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.churn import aside, churned, short_lived
from hangtop_core.analysis.verdict.descriptors import descriptor
from hangtop_core.analysis.verdict.doing import does, in_c
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.naming import name_process, thread_text
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Process

_HELPERS = ("dataloader-worker", "resource-tracker", "forkserver", "debug-server")


def programs(subject: Subject) -> list[Process]:
    """Children that a program may wait for, the youngest first."""
    others = aside(subject.rank, subject.activity.main)
    some = (c for c in subject.rank.children if c.pid not in others)
    found = [c for c in some if c.role not in _HELPERS and c.gone_at is None]
    own = [c for c in found if c.ppid == subject.pid]
    return sorted(own, key=lambda c: -c.started_at) or found


def awaited(subject: Subject, children: Sequence[Process]) -> Sequence[Process]:
    """Of these the one that a rank waits for, where that is known."""
    wanted = subject.activity.main.child if subject.activity.main is not None else None
    return [child for child in children if child.pid == wanted] or children


def other_end(subject: Subject) -> list[Process]:
    """The children at the other end of the pipe or socket that a main thread waits on."""
    one = descriptor(subject)
    if one is None:
        return []
    pids = {h.pid for h in one.holders if h.pid != subject.pid}
    if one.socket is not None and one.socket.peer_pid is not None:
        pids = {one.socket.peer_pid}
    return [c for c in subject.rank.children if c.pid in pids and c.role not in _HELPERS]


def told_children(case: Case, subject: Subject, children: Sequence[Process]) -> str:
    """`pid 5 'tar x' (state S), which sleeps`: the first ones, the stopped before all others."""
    named = []
    for child in children[:3]:
        text = does(case, subject, child)
        named.append(f"{name_process(child)}{f', which {text}' if text else ''}")
    return "; ".join(named)


def seen_facts(case: Case, subject: Subject, children: Sequence[Process]) -> Iterator[Evidence]:
    """What the first of these children do, and wait in."""
    for child in children[:4]:
        text = does(case, subject, child)
        main = child.main_thread
        kernel_says = f", {thread_text(main)}" if main is not None else ""
        yield fact(
            "process",
            subject.number,
            f"child {name_process(child)}{kernel_says}{f': {text}' if text else ''}"
            f"{in_c(case, subject, child)}",
        )


def dying(case: Case, subject: Subject) -> str:
    """That children end as fast as they are started."""
    short = churned(subject.rank, case.at, case.reader)
    if not short:
        return ""
    status = next((c.exit_code for c in reversed(short) if c.exit_code is not None), None)
    ended = f" (one with exit status {status})" if status is not None and status > 0 else ""
    return (
        f"for processes that end as fast as they are started: {came_and_went(case, short)}{ended}"
    )


def came_and_went(case: Case, short: Sequence[Process]) -> str:
    """`3 were seen to come and go within 12 s, ...`: children that did not stay."""
    lived = max((child.gone_at or 0.0) - child.started_at for child in short)
    return (
        f"{len(short)} were seen to come and go within {duration(case.at - short[0].started_at)}, "
        f"none lived for longer than {duration(max(lived, 1.0))}, the last one was pid "
        f"{short[-1].pid}"
    )


def gone_facts(case: Case, subject: Subject) -> Iterator[Evidence]:
    """When the last children came that did not stay, and for how long."""
    for child in short_lived(subject.rank, case.at)[-3:]:
        lived = (child.gone_at or 0.0) - child.started_at
        yield fact(
            "process",
            subject.number,
            f"child pid {child.pid} was started {duration(case.at - child.started_at)} ago and was "
            f"gone {duration(max(lived, 0.0))} later",
        )
