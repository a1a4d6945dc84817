"""Ranks that sleep until a file is gone: a lock file, or one by which somebody pauses the run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import common_facts
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.retrying import (
    BY_NAME,
    attempts,
    goes_round,
    round_facts,
)
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, on, trace_steps
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.retrying import Round
    from hangtop_core.text.commands import Step

_LOCK = re.compile(r"(?:(?<![A-Za-z])lock|(?<![A-Z])Lock|(?<![A-Za-z])LOCK)(?!step|down)")
"""Names of locks: LockFile, acquire_lock, .lock; not block, clock, unlock."""
_ONLY_ONE = re.compile(
    r"O_EXCL|FileExistsError|EEXIST|open\([^)]*,\s*(?:mode=)?['\"]x|\bmkdir\((?!.*exist_ok=True)"
    r"|\bos\.link\(|\bsymlink\(|exist_ok=False"
)
"""What can be made by one process only: whoever has made it has the lock."""
_IS_THERE = re.compile(r"^(?:while|if)\b(?!.*\bnot\b).*(?:exists|isfile|isdir|is_file|is_dir)\(")
_PAUSED = re.compile(r"paus|suspend|maintenance|(?<![a-z])(?:hold|halt|freeze)", re.IGNORECASE)
"""Names of what an operator makes to have a run wait."""
_FILE = re.compile(
    r"(?:exists|isfile|isdir|Path)\(\s{0,9}(?P<q>['\"])(?P<path>[\w./-]{1,200})(?P=q)\s{0,9}\)"
)
"""A file that a loop looks for, where its line has the whole path."""
_THREADS = re.compile(r"\.(acquire|locked)\(")


def _lock_file(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = [(s, one, _told(one, s)) for s, one in goes_round(case, left)]
    yield from _hits(case, found)


def _paused(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """All ranks, none of which is kept by another one: nothing else moves either."""
    if any(s.activity.kind != "sleep" for s in case.live):
        return
    found = [(s, one, _told(one, s)) for s, one in goes_round(case, left)]
    if found and len(found) == len(case.live) and all(told == "pause" for *_, told in found):
        yield from _hits(case, found)


def _hits(case: Case, found: Sequence[tuple[Subject, Round, str | None]]) -> Iterator[Hit]:
    rounds = {id(s): (one, told) for s, one, told in found if told is not None}
    for group in alike((s for s, _, told in found if told), lambda s: s.activity.site):
        first, (one, sure) = group[0], rounds[id(group[0])]
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'sleeps', 'sleep')} at {first.activity.at}",
                case.since(first),
                f"between two {_FOR_WHAT[sure][0]}: {attempts(one)}{_FOR_WHAT[sure][1]}",
            ),
            evidence=(
                *round_facts(first, one),
                *common_facts(case, group),
            ),
            steps=(
                *_look_at(first, one),
                _PAUSE_STEP if sure == "pause" else _LOCK_STEP,
                *trace_steps(first)[-1:],
            ),
            confidence=BY_NAME if sure == "name" else None,
        )


_FOR_WHAT = {
    "file": (
        "attempts, most likely for a lock file that is there",
        " (it stays there when who made it has died)",
    ),
    "pause": (
        "looks at what pauses it",
        "; somebody has most likely paused the run, which goes on once that is gone",
    ),
    "name": ("attempts, most likely for a lock that it does not get", ""),
}
"""What it pauses between and for, by what tells that, and what is to be said of that."""
_LOCK_STEP = Advice(
    "look when that file was made and by whom: a pid in it, its owner, its age; delete it once "
    "nobody is left who has the lock"
)
_PAUSE_STEP = Advice(
    "ask who made that file, its owner, whether the run may go on; if so delete it: nothing else "
    "is wrong as far as this shows"
)


def _look_at(subject: Subject, one: Round) -> Iterator[Step]:
    """How to see the file that is looked for: itself, where the line tells which it is."""
    named = next(
        (m for _, text in filter(None, (one.loop, *one.asked)) if (m := _FILE.search(text))), None
    )
    if named is not None:
        # As the rank sees it: from its folder, and in its mount namespace.
        path = f"root{named['path']}" if named["path"][0] == "/" else f"cwd/{named['path']}"
        yield on(
            subject, "ls", "-l", f"/proc/{subject.pid}/{path}", why="see whose it is, since when"
        )
    else:
        words = "see which file it is, in the locals there"
        yield dump_step(subject, "--each --locals", why=words)


def _told(one: Round, subject: Subject) -> str | None:
    """Whether a loop waits for a lock file, by what it does (`file`) or by names (`name`).

    Or for one that pauses the run to be gone (`pause`).
    """
    if _THREADS.search(one.texts):
        return None  # of threads or processes: not for a file
    site = subject.activity.site
    names = " ".join([one.texts, one.frame.name, site.name if site else ""])
    named = _LOCK.search(names) is not None
    if _ONLY_ONE.search(one.texts):
        return "file"
    around = one.loop[1] if one.loop is not None else ""
    if _IS_THERE.search(around) and _PAUSED.search(around):
        return "pause"
    if _IS_THERE.search(around) or (named and any(_IS_THERE.search(text) for _, text in one.asked)):
        return "file"
    return "name" if named else None


LOCK_FILE = Rule(
    cause="file-lock",
    title="A rank sleeps until a file is gone: a lock file, or one that pauses the run",
    seen="The main thread sleeps by turns in a loop that tries to make what only one can make "
    "(O_EXCL, mkdir, link), or looks whether a lock file is still there, or one that pauses the "
    f"run by its name. With confidence {BY_NAME} only names of functions or files say that it is "
    "a lock.",
    excluded="A file that it has open is locked by another process: see above. A lock of threads.",
    confidence=0.88,
    next_steps=("Look at the file: its age, its owner, a pid in it", "Remove a stale lock file"),
    find=_lock_file,
    needs=(More("descriptors", "whether a file that it has open is locked by others"),),
)
PAUSED = Rule(
    cause="long-phase",
    title="All ranks sleep until a file is gone by which somebody pauses the run",
    seen="The main threads of all ranks sleep by turns in a loop that looks whether a file is "
    "still there, whose name says that it pauses them.",
    excluded="A rank is elsewhere: `file-lock`.",
    confidence=0.88,
    next_steps=("Look whose file that is", "Delete it, if the run may go on"),
    find=_paused,
    states=ALWAYS,
    complete="the loop and what it looks for stand in the program, and nothing else keeps a rank",
)
