"""Causes in storage: blocking reads and writes, file locks, slow checkpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.standing import FLOOR_S
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import (
    MOVES_S,
    SHOWN,
    alike,
    common_facts,
    descriptor,
    fact,
    is_are,
    name_descriptor,
    named_holder,
    sentence,
    server_facts,
    several,
    silent_servers,
    who,
)
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.positions import place, position_text, reads, speed
from hangtop_core.analysis.verdict.saving import saver
from hangtop_core.analysis.verdict.steps import holders_step, on, trace_steps, word
from hangtop_core.logs.steps import KERNEL_LOG
from hangtop_core.text import clean, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.steps import Command, Step
    from hangtop_core.descriptors import Descriptor, Holder


_BATON_STEP = (
    "delete `lock` where torch.utils.cpp_extension builds, if it is older than the job: in "
    "build_directory, else below TORCH_EXTENSIONS_DIR or ~/.cache/torch_extensions"
)
_BUILDS = re.compile(r"\bload(?:_inline)?\(\s*(?:name\s*=\s*)?(['\"])([\w.-]{1,60})\1")
"""The extension that torch is to build and load."""
_DATABASE = re.compile(r"(.+)(-shm|-wal|-journal)")
_FROZEN = frozenset({"percpu_rwsem_wait", "__percpu_down_read", "__sb_start_write"})
"""Where the kernel keeps who wants to write until a file system is thawed."""
WHY_SLOW = "look why that file system is slow: its server, its quota of requests, the network"
_PIPES = frozenset({"pipe-read", "pipe-write", "fifo-open"})
_READS = frozenset({"io", "inline-data", "importing"})


def _file_lock(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    waiting = [s for s in left if s.activity.kind == "file-lock"]
    for group in alike(waiting, lambda s: (s.activity.site, wanted(case, s).target)):
        first, wants = group[0], wanted(case, group[0])
        lock = wants.lock
        holders = [h for h in lock.holders if "lock" in h.how] if lock is not None else []
        told, names = _held_by(case, first, holders), case.owners.names(first.rank.node)
        shown = [name_descriptor(lock, names=names)] if lock else []
        shown += [
            f"locked here: {name_descriptor(one, names=names)}" for one in wants.others[:SHOWN]
        ]
        if not told and lock is not None and lock.server:
            told = f"a process of another node, as far as this one knows; {lock.server} knows whose"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'waits', 'wait')} for the lock of {wants.target} at "
                f"{first.activity.at}",
                f"{case.since(first)}: held by {told}" if told else case.since(first),
                "(it is there until whoever made it deletes it: it may be an old one)"
                if by_being_there(first)
                else "",
            ),
            evidence=(
                *(fact("process", first.number, text) for text in shown),
                *server_facts(first),
                *common_facts(case, group),
            ),
            steps=(
                *(on(first, f"ps -o pid,user,etime,stat,args -p {h.pid}") for h in holders[:2]),
                *(_baton_steps(first) if by_being_there(first) and lock is None else ()),
                _lslocks(first, wants.lock),
            ),
        )


def _lslocks(subject: Subject, lock: Descriptor | None) -> Command:
    quoted = word(lock.target) if lock is not None else None
    return on(subject, f"lslocks | grep -F {quoted}" if quoted else "lslocks")


class _Wanted(NamedTuple):
    """The file whose lock a rank waits for."""

    lock: Descriptor | None
    target: str
    others: tuple[Descriptor, ...]
    """Files that are locked, of which it may be one."""


def wanted(case: Case, subject: Subject) -> _Wanted:
    """The file whose lock a rank waits for, as far as its descriptors tell."""
    table = subject.rank.descriptors
    waited = table.waiting_locks if table is not None else ()
    lock = waited[0] if waited else descriptor(subject)
    if lock is not None:
        return _Wanted(lock, lock.target, ())
    if by_being_there(subject):
        site = subject.activity.site
        built = _BUILDS.search(site.source or "") if site is not None else None
        return _Wanted(None, _lock_of(subject, built) if built else "a file", ())
    if table is None:
        return _Wanted(None, "a file", ())
    tried = table.lock_files
    node = subject.rank.node
    own = [one for one in tried if any(case.owners.of(node, h.pid) for h in one.holders)]
    # A daemon may have a lock file, too: of several the job's own is more likely.
    for some in (tried, own):
        if len(some) == 1:
            return _Wanted(some[0], f"a file, most likely {some[0].target},", ())
    return _Wanted(None, "a file", tried)


def _lock_of(subject: Subject, built: re.Match[str]) -> str:
    """The lock file of an extension: where torch builds it, unless its line gives a directory.

    Source: _get_build_directory of torch 2.13, torch/utils/cpp_extension.py.
    """
    env, name = subject.rank.process.env, built[2]
    home = env.get("HOME")
    cache = env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    root = env.get("TORCH_EXTENSIONS_DIR") or (f"{cache}/torch_extensions/py*" if cache else "")
    if not root or "build_directory" in built.string:
        return f"a file (where {name} is built)"
    return f"a file, most likely {clean(f'{root}/{name}/lock', 200)},"


def _baton_steps(subject: Subject) -> Iterator[Step]:
    yield on(
        subject,
        f"hangtop dump --pid {subject.pid} --locals",
        words="see which folder that is: `build_directory` of _jit_compile",
    )
    yield _BATON_STEP


def by_being_there(subject: Subject) -> bool:
    """Whether it waits until a file is gone (torch's FileBaton): nobody has that file locked."""
    top = subject.activity.top
    return top is not None and top.file.endswith("/torch/utils/file_baton.py")


def _held_by(case: Case, subject: Subject, holders: Sequence[Holder]) -> str:
    """Who has a lock; what the rank does that has it, where it is one of this job."""
    for one in holders:
        rank = case.owners.rank(subject.rank.node, one.pid)
        if rank is not None and rank is not subject:
            return (
                f"rank {rank.number} (pid {one.pid}), which {rank.activity.text.rstrip(',')} at "
                f"{rank.activity.at} meanwhile"
            )
    names = case.owners.names(subject.rank.node)
    return ", ".join(named_holder(one, names) for one in holders[:3])


def _tried_lock(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Who tries a lock again and again by calls that do not block: SQLite, lockf with LOCK_NB."""
    tries = [s for s in left if s.activity.kind == "sleep" and locked_by_others(s)]
    for group in alike(tries, lambda s: (s.activity.site, locked_by_others(s)[0].target)):
        first = group[0]
        locked = locked_by_others(first)
        lock = locked[0]
        told = _held_by(case, first, lock.holders)
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'sleeps', 'sleep')} at {first.activity.at} "
                f"{case.since(first)} with {_opened(lock)}, and most likely "
                f"{is_are(group, 'tries', 'try')} to lock it again and again: it is locked by "
                f"{told or 'another process'}",
            ),
            evidence=(
                *(fact("process", first.number, name_descriptor(one)) for one in locked[:SHOWN]),
                *common_facts(case, group),
            ),
            steps=(
                *(on(first, f"ps -o pid,user,etime,stat,args -p {h.pid}") for h in lock.holders),
                _lslocks(first, lock),
            ),
        )


def _opened(lock: Descriptor) -> str:
    """`/data/cache.db open (fd 12)`: of the files that SQLite has beside a database, that one."""
    whole = _DATABASE.fullmatch(lock.target)
    if whole is None:
        return f"{lock.target} open (fd {lock.fd})"
    return f"the database {whole[1]} open (its {whole[2]} file is fd {lock.fd})"


def locked_by_others(subject: Subject) -> list[Descriptor]:
    """Files that it has open and that other processes have locked."""
    return [one for one in subject.rank.opened if one.locked == "by others"]


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
    if case.waited_s < FLOOR_S:
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
                on(subject, f"grep pos {path}; sleep 5; grep pos {path}"),
                WHY_SLOW,
                "if it is to be so: raise the process group's timeout",
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
        told = f"timeout 5 stat {mount} || echo the file system does not answer"
        steps.append(on(subject, told))
    if main is not None and main.fd is not None:
        steps.append(on(subject, f"ls -l /proc/{subject.pid}/fd/{main.fd}"))
    elif not steps:  # what is being opened is no descriptor yet
        steps.append(on(subject, f"ls -l /proc/{subject.pid}/fd/"))
    steps.append(on(subject, f"cat /proc/{subject.pid}/stack"))
    if main is not None and main.state == "D":
        return (*steps, on(subject, f"{KERNEL_LOG} | tail -n 50"))
    return (*steps, *trace_steps(subject))


FILE_LOCK = Rule(
    cause="file-lock",
    title="A rank waits for a file lock",
    seen="flock, fcntl or a lock file library in the stack, or the kernel's lock wait.",
    excluded="None.",
    confidence=0.95,
    next_steps=("Look at the holder", "Remove a stale lock file"),
    find=_file_lock,
    needs=(More("descriptors", "who holds the lock"),),
)
TRIED_LOCK = Rule(
    cause="file-lock",
    title="A rank sleeps with a file open that another process has locked",
    seen="The main thread sleeps in code of the user or in C that it called, and another process "
    "has an exclusive lock (/proc/locks) on a file that it has open: so SQLite waits, and who "
    "tries flock or lockf with LOCK_NB in a loop.",
    excluded="The rank has an exclusive lock on that file itself. A lock that is waited for in the "
    "kernel: see above.",
    confidence=0.8,
    next_steps=("Look at the holder",),
    find=_tried_lock,
    needs=(More("descriptors", "who holds the lock"),),
)
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
