"""Ranks that wait for the lock of a file, or try again and again to take one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, named_holder
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact, server_facts
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, on, word
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice, Sign
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor, Holder
    from hangtop_core.text.commands import Command, Step

_BATON_STEP = Advice(
    "delete `lock` where torch.utils.cpp_extension builds, if it is older than the job: in "
    "build_directory, else below TORCH_EXTENSIONS_DIR or ~/.cache/torch_extensions"
)
_BUILDS = re.compile(r"\bload(?:_inline)?\(\s*(?:name\s*=\s*)?(['\"])([\w.-]{1,60})\1")
"""The extension that torch is to build and load."""
_DATABASE = re.compile(r"(.+)(-shm|-wal|-journal)")


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
                *(
                    on(first, "ps", "-o", "pid,user,etime,stat,args", "-p", h.pid)
                    for h in holders[:2]
                ),
                *(_baton_steps(first) if by_being_there(first) and lock is None else ()),
                _lslocks(first, wants.lock),
            ),
        )


def _lslocks(subject: Subject, lock: Descriptor | None) -> Command:
    path = word(lock.target) if lock is not None else None
    return on(subject, "lslocks", *((Sign.PIPE, "grep", "-F", path) if path else ()))


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
    words = "see which folder that is: `build_directory` of _jit_compile"
    yield dump_step(subject, "--locals", why=words)
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
                f"{rank_name(rank.number, pid=one.pid)}, which "
                f"{rank.activity.text.rstrip(',')} at "
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
                *(
                    on(first, "ps", "-o", "pid,user,etime,stat,args", "-p", h.pid)
                    for h in lock.holders
                ),
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
