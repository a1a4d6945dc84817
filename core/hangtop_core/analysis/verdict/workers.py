"""A DataLoader worker that is neither idle nor gone: what it waits on, and what it has open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hangtop_core.analysis.activity import Activity
from hangtop_core.analysis.standing import Standing
from hangtop_core.analysis.verdict.descriptors import name_descriptor, named_holder
from hangtop_core.analysis.verdict.doing import does, in_c, name_child, waits_back
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.naming import name_process, thread_text
from hangtop_core.analysis.verdict.pipes import at_work, commands, connected, connections
from hangtop_core.analysis.verdict.steps import dump_step, holders_step, on, word
from hangtop_core.model.snapshot import Process
from hangtop_core.text.clean import how_ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.text.commands import Step


class Worker(Struct, frozen=True):
    """One DataLoader worker of a subject that is neither idle nor gone."""

    process: Process
    activity: Activity
    standing: Standing

    @property
    def name(self) -> str:
        """`DataLoader worker 1 (pid 5001)`."""
        number = self.process.worker_id
        return f"DataLoader worker {'' if number is None else f'{number} '}(pid {self.process.pid})"


def file_of(case: Case, subject: Subject, worker: Worker) -> str:
    """What a worker is blocked on, from its descriptors; of a pipe who fills it, and from where."""
    one = _waited_on(subject, worker)
    if one is None:
        return ""
    text = _queue_of(case, subject, worker, one)
    if text:
        return text
    pids, names = [holder.pid for holder in one.holders], commands(subject.rank)
    some = (child for child in subject.rank.children if child.pid in pids)
    blocked = {child.pid: back for child in some if (back := waits_back(subject, child))}
    rest = tuple(holder for holder in one.holders if holder.pid not in blocked)
    text = name_descriptor(msgspec.structs.replace(one, holders=rest), names=names)
    text += connected(subject.rank, pids)
    for holder in one.holders:
        if holder.pid in blocked:
            told = blocked[holder.pid]
            text += f"; {named_holder(holder, names)} has its other end, but {told}"
    return text


def lock_of(case: Case, subject: Subject, worker: Worker) -> tuple[str, bool]:
    """The lock file that a worker waits for and who has it; whether that is of another rank.

    Of lock files that others have locked it is one only where there is only one. Who sleeps may try
    to lock what it has open, as SQLite does.
    """
    table = subject.rank.child_descriptors.get(worker.process.pid)
    if table is None or worker.activity.kind not in ("file-lock", "sleep"):
        return "", False
    tried = list(table.lock_files) if len(table.lock_files) == 1 else []
    if worker.activity.kind == "sleep":
        tried = [one for one in table.descriptors if one.locked == "by others"]
    lock = next(iter(table.waiting_locks or tried), None)
    if lock is None:
        return "", False
    names = case.owners.names(subject.rank.node)
    holders = [one for one in lock.holders if "lock" in one.how and one.pid != worker.process.pid]
    held = f", held by {', '.join(named_holder(one, names) for one in holders)}" if holders else ""
    owners = [case.owners.of(subject.rank.node, one.pid) or subject for one in holders]
    sure = "" if table.waiting_locks else ", most likely"
    return f"{lock.target}{sure}{held}", any(not one.waits and one is not subject for one in owners)


def program_of(case: Case, subject: Subject, worker: Worker) -> str:
    """`: pid 6001 'sh decode.sh' (state S), which sleeps`, what a worker started and waits for."""
    if worker.activity.kind != "child":
        return ""
    own = [c for c in subject.rank.children if c.ppid == worker.process.pid and not c.ended]
    if len(own) != 1:
        return ""
    text = does(case, subject, own[0])
    return f": {name_process(own[0])}" + (f", which {text}" if text else "")


def opening(subject: Subject, worker: Worker) -> Descriptor | None:
    """The file that a worker is blocked in opening: it is no descriptor yet."""
    table = subject.rank.child_descriptors.get(worker.process.pid)
    one = table.opening if table is not None else None
    if one is not None and worker.activity.family == "fifo-open":
        return msgspec.structs.replace(one, kind="fifo")  # the node does not touch it to ask
    return one if worker.activity.family == "open" else None


def looking(subject: Subject, worker: Worker) -> tuple[Step, ...]:
    """Commands that show more of a worker; first who has the FIFO that it opens."""
    pid, one = worker.process.pid, opening(subject, worker)
    dump = dump_step(subject, "--each --locals", pid=pid)
    path = word(one.target) if one is not None and one.kind == "fifo" else None
    if path is not None:
        return holders_step(subject, path), dump
    return dump, on(subject, "ls", "-l", f"/proc/{pid}/fd")


def _waited_on(subject: Subject, worker: Worker) -> Descriptor | None:
    table = subject.rank.child_descriptors.get(worker.process.pid)
    main = worker.activity.main
    if table is None or main is None:
        return None
    if main.fd is None:
        return opening(subject, worker)
    one = table.of(main.fd)
    return None if one is None else at_work(subject.rank, one)


def _queue_of(case: Case, subject: Subject, worker: Worker, one: Descriptor) -> str:
    """Of a queue between processes, whether any but this worker and its rank could fill it.

    Both have its other end open, whether they put anything in or not.
    """
    own = {subject.pid, worker.process.pid}
    if worker.activity.kind != "queue" or one.kind != "pipe" or not one.holders:
        return ""
    rest = tuple(holder for holder in one.holders if holder.pid not in own)
    told = name_descriptor(msgspec.structs.replace(one, holders=rest))
    if rest:
        return told
    told += ", which only this worker and its rank have open"
    ended = [c for c in subject.rank.children if c.role == "subprocess" and c.ended]
    if ended:
        how = "has ended" if ended[0].exit_code is None else how_ended(ended[0].exit_code)
        told += f" ({name_child(case, subject, ended[0])}, which {how})"
    return told


def worker_facts(case: Case, subject: Subject, worker: Worker) -> Iterator[Evidence]:
    """Where a worker is, what the kernel says of it, and what it and its programs have open."""
    site, source = worker.activity.site, ""
    if site is not None and site.source:
        source = f": `{site.source.strip()}`"
    since = case.lasting(worker.standing.since)
    yield fact(
        "stacks",
        subject.number,
        f"{worker.name} {worker.activity.text} at {worker.activity.at}{source} {since}"
        f"{in_c(case, subject, worker.process)}",
    )
    main = worker.activity.main
    if main is not None:
        yield fact(
            "process",
            subject.number,
            f"{worker.name} {thread_text(main)}",
        )
    for one in _opened(subject, worker)[:3]:
        yield fact("process", subject.number, f"{worker.name} has {name_descriptor(one)}")
    waited = _waited_on(subject, worker)
    for holder in waited.holders if waited is not None else ():
        for one in connections(subject.rank, holder.pid)[:2]:
            text = f"pid {holder.pid} ({holder.comm}) has {name_descriptor(one)}"
            yield fact("process", subject.number, text)


def _opened(subject: Subject, worker: Worker) -> list[Descriptor]:
    """Files and sockets that a worker has opened itself, and not inherited from its rank."""
    rank, pid = subject.rank, worker.process.pid
    table = rank.child_descriptors.get(pid)
    inherited = {(one.fd, one.target) for one in rank.opened}
    files = [
        one
        for one in (table.descriptors if table is not None else ())
        if one.kind in ("file", "fifo") and one.fd > 2 and (one.fd, one.target) not in inherited
    ]
    return files + connections(rank, pid)
