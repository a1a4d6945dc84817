"""Causes in storage: reads and writes that block, or get on slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, silent_servers
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact, server_facts
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.positions import MOVES_S, place, position_text, reads, speed
from hangtop_core.analysis.verdict.saving import saver
from hangtop_core.analysis.verdict.sentences import sentence, several, who
from hangtop_core.analysis.verdict.steps import holders_step, on, trace_steps, word
from hangtop_core.diagnosis import STALLED_AFTER_S
from hangtop_core.text.clean import duration, size
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.text.commands import Step

_FROZEN = frozenset({"percpu_rwsem_wait", "__percpu_down_read", "__sb_start_write"})
"""Where the kernel keeps who wants to write until a file system is thawed."""
WHY_SLOW = Advice(
    "look why that file system is slow: its server, its quota of requests, the network"
)
_PIPES = frozenset({"pipe-read", "pipe-write", "fifo-open"})
_READS = frozenset({"io", "inline-data", "importing"})


def _io(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    blocked = [
        s
        for s in left
        if s.activity.family != "over-memory"
        and (saves_to_nowhere(s) or (s.activity.kind == "io" and not _gets_on(case, s)))
    ]
    for group in alike(blocked, _what):
        first = group[0]
        one = descriptor(first)
        main = first.activity.main
        call = f" ({main.syscall})" if main is not None and main.syscall else ""
        file = f": {_name_file(one)}" if one is not None else ""
        if main is not None and main.wchan in _FROZEN and main.syscall is not None:
            file += ", where the kernel lets nobody write now, as while a file system is frozen "
            file += "(fsfreeze)"
        silent = silent_servers(first)
        if silent and (one is None or not one.server):
            named = " or ".join(f"{s.mount} ({s.fstype}, {s.server})" for s in silent[:SHOWN])
            file = f": the server of {named} does not answer"
        text = first.activity.text
        if first.activity.kind == "checkpoint":
            text = f"{text} and is in uninterruptible sleep (state D)"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {several(text, group)}{call} at {first.activity.at}",
                f"{case.since(first)}{file}",
            ),
            evidence=(
                *([fact("process", first.number, name_descriptor(one))] if one else []),
                *(
                    fact("process", s.number, f"its position is {position_text(case, s)}")
                    for s in group[:SHOWN]
                    if reads(s)
                ),
                *(told for s in group[:SHOWN] for told in server_facts(s)),
                *common_facts(case, group),
            ),
            steps=_io_steps(first, one),
            confidence=None if first.activity.family != "open" else 0.85,
        )


def _gets_on(case: Case, subject: Subject) -> bool:
    """Whether it saves a checkpoint and has written lately: see `checkpoint-slow`."""
    return case.progress.state != "hung" and saver(case, subject) is not None


def saves_to_nowhere(subject: Subject) -> bool:
    """Whether it writes a checkpoint to a file server that does not answer."""
    return subject.activity.kind == "checkpoint" and bool(silent_servers(subject))


def _reading(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.waited_s < STALLED_AFTER_S:
        return
    for subject in left:
        file, moved = subject.rank.process.file, subject.rank.file_moved_at
        moves = moved is not None and case.at - moved < MOVES_S
        slow = subject.activity.kind in _READS or (
            subject.activity.kind == "busy" and reads(subject)
        )
        if file is None or not moves or not slow or saver(case, subject) is not None:
            continue
        by, rate = speed(subject.rank), subject.rank.file_rate or 0.0
        verb = "writes" if file.writes else "reads"
        far = f"{size(file.position)} so far"
        if file.whole:
            far = f"{file.position / file.whole:.0%} of {size(file.whole)}"
            left_s = (file.whole - file.position) / rate if by else 0.0
            far += f", {duration(left_s)} to go" if left_s >= 1.0 else ""
        path = f"/proc/{subject.pid}/fdinfo/{file.fd}"
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} {verb} {place(file)}{f' at {by}' if by else ''}: {far}. It "
                f"gets on, at {subject.activity.at}, and is no hang",
            ),
            evidence=(
                fact("process", subject.number, f"its position is {position_text(case, subject)}"),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(
                    subject,
                    "grep",
                    "pos",
                    path,
                    Sign.THEN,
                    "sleep",
                    "5",
                    Sign.THEN,
                    "grep",
                    "pos",
                    path,
                ),
                WHY_SLOW,
                Advice("if it is to be so: raise the process group's timeout"),
            ),
        )


def _what(subject: Subject) -> object:
    one = descriptor(subject)
    return (one.target if one is not None else None, subject.activity.site, subject.activity.family)


def _name_file(one: Descriptor) -> str:
    alone = one.kind in ("pipe", "fifo") and not one.holders
    told = ", a pipe that nobody else has open for writing" if alone else ""
    return name_descriptor(one) + told


def _mount_of(subject: Subject, one: Descriptor | None) -> str:
    """Where what it waits for is mounted; empty where that is not known."""
    if one is not None and one.mount:
        return one.mount
    silent = silent_servers(subject)
    return silent[0].mount if silent else ""


def _io_steps(subject: Subject, one: Descriptor | None) -> tuple[Step, ...]:
    main = subject.activity.main
    steps: list[Step] = []
    pipe = subject.activity.family in _PIPES or (one is not None and one.kind in ("pipe", "fifo"))
    if pipe and one is not None and one.target.startswith("/") and (path := word(one.target)):
        steps.append(holders_step(subject, path))
    elif not pipe and (mount := word(_mount_of(subject, one))):
        silent = (Sign.OR, "echo", "the file system does not answer")
        steps.append(on(subject, "timeout", "5", "stat", mount, *silent))
    if main is not None and main.fd is not None:
        steps.append(on(subject, "ls", "-l", f"/proc/{subject.pid}/fd/{main.fd}"))
    elif not steps:  # what is being opened is no descriptor yet
        steps.append(on(subject, "ls", "-l", f"/proc/{subject.pid}/fd/"))
    steps.append(on(subject, "cat", f"/proc/{subject.pid}/stack"))
    if main is not None and main.state == "D":
        return (*steps, on(subject, Sign.KERNEL_LOG, Sign.PIPE, "tail", "-n", "50"))
    return (*steps, *trace_steps(subject))


READING = Rule(
    cause="long-phase",
    title="A rank reads or writes a file slowly, and gets on",
    seen="Others wait for it, and its main thread is in read or write on a file whose position "
    "(/proc/PID/fdinfo/FD) has moved in the last 10 s; said are the file, its server, the rate and "
    "how much is left.",
    excluded="The position stays: `io-wait`. It saves: `checkpoint-slow`. pread, pwrite and mapped "
    "files move no position.",
    confidence=0.85,
    next_steps=("Look why the file system is slow", "Raise the timeout"),
    find=_reading,
    states=ALWAYS,
    complete="the file, its server, and how far the rank is in it are read with every pass",
)
IO_WAIT = Rule(
    cause="io-wait",
    title="A rank is blocked in input or output",
    seen="State D, or a read, write or open that does not return, on a file, pipe or FIFO; of a "
    "file it is told how far the rank is in it, and since when that does not move. Of NFS and SMB "
    "mounts it is told whether the connection to the server still gets anywhere (/proc/net/tcp), "
    "also where the file is not known: it is mapped, or being closed.",
    excluded="The descriptor is its own stdout or stderr: `output-pipe-full`; a socket: "
    "`remote-service-wait`; bytes still move while it saves: `checkpoint-slow`.",
    confidence=0.93,
    next_steps=("ls -l /proc/PID/fd/N", "Ask the file system: timeout 5 stat MOUNT"),
    find=_io,
    needs=(More("descriptors", "which file it is, and on which server"),),
)
