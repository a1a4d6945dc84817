"""Ranks that write a checkpoint while the others wait: by torch, or piece by piece themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.dictionary import match
from hangtop_core.analysis.frames import is_library, where
from hangtop_core.analysis.standing import FLOOR_S
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.evidence import (
    MOVES_S,
    alike,
    common_facts,
    is_are,
    position_text,
    sentence,
    who,
)
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.steps import on
from hangtop_core.analysis.verdict.storage import saves_to_nowhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case

_IN_PIECES = frozenset({"sleep", "waiting", "busy", "io"})
_SAVES = re.compile(
    r"(?:save|write|dump)\w*(?:checkpoint|ckpt|model|state|weights|shards)"
    r"|(?:checkpoint|ckpt)\w*\.(?:save|write|dump)"
    r"|\._?save$",
    re.IGNORECASE,
)
"""Names of functions of the program that save checkpoints, and of methods that save what they are
of."""
_SAVE = re.compile(r"\((?!.*(?:checkpoint|ckpt)).*\._?save\)$", re.IGNORECASE)
"""Of those what does not tell what it saves, as `where` spells it."""
BY_NAME = 0.7
"""Confidence where only the name of a function tells that it is a checkpoint."""


def _checkpoint(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.progress.state == "progressing" and case.waited_s < FLOOR_S:
        return
    named = {id(s): name for s in left if (name := _by_whom(case, s)) is not None}
    writing = [s for s in left if id(s) in named and not saves_to_nowhere(s)]
    for group in alike(writing, lambda s: (s.activity.site, named[id(s)])):
        first = group[0]
        by = named[id(first)]
        does, what = ("write", " a checkpoint") if not _SAVE.search(by) else ("save", "")
        named_so = f", as {by} is named,{what}" if by else what
        moved = first.rank.io_moved_at
        told = "and no bytes move"
        if moved is not None and case.at - moved < MOVES_S:
            told = f"and {is_are(group, 'its', 'their')} bytes written grow: not a hang"
        file = first.rank.process.file
        if file is not None and file.writes:
            told += f"; its position is {position_text(case, first)}"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, f'{does}s', does)}{named_so} at "
                f"{first.activity.at} {told}",
            ),
            evidence=common_facts(case, group),
            steps=(
                on(
                    first,
                    f"grep wchar /proc/{first.pid}/io; sleep 5; grep wchar /proc/{first.pid}/io",
                ),
                "raise the process group's timeout, or save asynchronously",
            ),
            confidence=BY_NAME if by else None,
        )


def _by_whom(case: Case, subject: Subject) -> str | None:
    """The function that saves, of a rank that writes much and rests in between; empty for torch's.

    None where nothing is saved.
    """
    if subject.activity.kind == "checkpoint":
        return ""
    wrote = subject.rank.wrote_at
    if wrote is None or case.at - wrote >= MOVES_S or subject.activity.kind not in _IN_PIECES:
        return None
    for frame in stack_of(case.snapshot.stacks, subject):
        found = match((frame,))
        if found is not None and found[0].kind == "checkpoint":
            return ""
        if not is_library(frame) and _SAVES.search(frame.name):
            return where(frame)
    return None


CHECKPOINT = Rule(
    cause="checkpoint-slow",
    title="A rank is writing a checkpoint",
    seen="torch.save or torch.distributed.checkpoint in the stack of a minority; also below a file "
    "of the program's own, where the rank has written much in the last "
    f"{MOVES_S:.0f} s. With confidence {BY_NAME} a function of the program that is named so.",
    excluded="It is in state D, and the server of its file system does not answer: `io-wait`.",
    confidence=0.8,
    next_steps=("Wait; raise the timeout; save asynchronously",),
    find=_checkpoint,
    needs=(More("descriptors", "which file it is, and whether its server answers"),),
    states=ALWAYS,
)
