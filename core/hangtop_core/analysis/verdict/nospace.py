"""Ranks that try again and again to write where there is no room, as logs, names and disks tell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.attempts import NO_SPACE, fails_again
from hangtop_core.analysis.standing import GONE, wakes_up
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.refusals import refusal, repeated
from hangtop_core.analysis.verdict.retrying import (
    SERVICE,
    again_by,
    attempts,
    pause,
    quoted,
    round_in,
)
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import on, room_steps
from hangtop_core.model.frames import is_library
from hangtop_core.model.node import disk_space
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame

_CALLERS = 4
"""Own frames that may name what is tried."""
_SAVES = re.compile(
    r"save|write|dump|check_?point|ckpt|flush|snapshot|serializ|to_(?:csv|parquet|disk)|copy|mkdir"
    r"|makedirs|touch|mkstemp|tempfile|\bopen\(",
    re.IGNORECASE,
)
"""Names of what needs room on a disk."""
_REMOTE = re.compile(
    r"upload|download|fetch|request|url|http|client|endpoint|connect|login|publish|bucket|\bs3\b"
    r"|\bgcs\b|hub\b|api\b|rpc",
    re.IGNORECASE,
)
BY_NAME = 0.8
"""Confidence where names say that it writes, and a disk of its node is full."""


def _no_room(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind in GONE:
            continue
        node = case.nodes.get(subject.rank.node)
        mounts = disk_space.full_mounts(node, subject.rank.process)
        said = repeated(case, subject, _tells)
        tried, line = "", said
        if said is None and mounts:
            line = repeated(case, subject, fails_again)
            tried = _writes(case, subject, line.line if line is not None else "")
        if said is None and not tried:
            continue
        named = tuple(m for m in mounts if said is not None and f"{m}/" in said.line and m != "/")
        there = (named or disk_space.used(mounts, subject.rank.process) or mounts)[:SHOWN]
        short = disk_space.lacks(node, subject.rank.process, there)
        text = f"{who([subject])} tries again and again to write where there is no room"
        text += "" if said else ", as names let one think"
        text += f": it {subject.activity.text} at {subject.activity.at}"
        text = f"{text} {case.since(subject)}".rstrip()
        text += f" meanwhile: {tried}" if tried else ""
        text += quoted(line, [subject])
        text += f"; {short}" if short else " (a disk, or what one may have of it)"
        look = room_steps(case, subject, there)
        yield Hit(
            subjects=(subject,),
            summary=sentence(case, text),
            evidence=common_facts(case, [subject]),
            steps=(
                *(
                    look
                    or (on(subject, "df", "-h", Sign.THEN, "df", "-i", Sign.THEN, "quota", "-s"),)
                ),
                Advice("make room there; what the rank retries goes on by itself"),
                Advice("let attempts end after some time, with the error that they met"),
            ),
            confidence=None if said else BY_NAME,
        )


def _tells(line: str) -> bool:
    return NO_SPACE.search(line) is not None and "/dev/shm" not in line  # noqa: S108  # a file of it


def _writes(case: Case, subject: Subject, line: str) -> str:
    """What a subject tries, where it pauses between attempts to write; else empty.

    ``line`` is what its log says again and again.
    """
    rests = pause(case, subject)
    if rests is None or not rests.frames:
        return ""
    if subject.activity.kind == "sleep" and not wakes_up(subject.rank, subject.standing):
        return ""
    one, by = round_in(rests.frames), again_by(rests.frames)
    if by is None and (one is None or not (one.tried or one.caught)):
        return ""
    texts = " ".join((one.texts if one is not None else "", line, *_named(rests.frames)))
    if not _SAVES.search(texts) or SERVICE.search(texts) or _REMOTE.search(texts):
        return ""
    if refusal(case, subject) is not None:
        return ""
    return attempts(one) if one is not None else f"{by} calls it again and again"


def _named(frames: Sequence[Frame]) -> Iterator[str]:
    own = [frame for frame in frames if not is_library(frame)]
    for frame in own[:_CALLERS]:
        yield f"{frame.name} {frame.source or ''}"


NO_ROOM = Rule(
    cause="disk-full",
    title="A rank tries again and again to write to a file system that is full",
    seen="The newest lines of its log say more than once that no space or quota is left (Errno 28 "
    "and 122, torch's `unexpected pos`). "
    f"With confidence {BY_NAME} only names tell: it sleeps in a loop with an `except`, "
    "or after a `try`, names there and of its callers say that it saves, and none that it asks a "
    "service; and a local file system of its node is full.",
    excluded="Its log says again and again that a service fails: `remote-service-wait`.",
    confidence=0.9,
    next_steps=("On that mount: df -h; df -i", "Make room there"),
    find=_no_room,
    needs=(More("logs", "whether each attempt fails for want of room"),),
)
