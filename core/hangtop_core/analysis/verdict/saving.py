"""Who is writing a checkpoint: by torch, or by what its functions or the file are named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.verdict.awaitedthread import thread_activity
from hangtop_core.analysis.verdict.callers import stack_of
from hangtop_core.analysis.verdict.positions import MOVES_S
from hangtop_core.model.frames import is_library, plain_name, where
from hangtop_core.stacks.dictionary import match
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame

_IN_PIECES = frozenset({"sleep", "waiting", "busy", "io"})
_VERB = r"(?:save|write|dump|(?<!re)store|persist|commit|flush)"
_SAVES = re.compile(
    rf"{_VERB}\w{{0,60}}(?:checkpoint|ckpt|snapshot|model|state|weights|params|optimizer|shards)"
    rf"|(?:checkpoint|ckpt|snapshot)\w{{0,60}}\.\w{{0,60}}(?:{_VERB}|take)|take_snapshot"
    r"|\._?save$",
    re.IGNORECASE,
)
"""Names of functions of the program that save checkpoints, and of methods that save what they are
of."""
_SAVE = re.compile(r"\((?![^(]*(?:checkpoint|ckpt|snapshot))[^(]*\._?save\)$", re.IGNORECASE)
"""Of those what does not tell what it saves, as `where` spells it."""
_MODULE = re.compile(r"(?:^|[/_])(?:checkpoint|ckpt)\w*(?:/\w+)?\.py$", re.IGNORECASE)
_OF_MODULE = re.compile(rf"_*{_VERB}", re.IGNORECASE)
"""What a function in a module for checkpoints is named that saves them."""
_BRINGS = re.compile(
    r"download|fetch|copy|copies|pull|stage|mirror|retrieve|extract|unpack|untar|convert|load"
    r"|predict|tokeni|featuri|embed",
    re.IGNORECASE,
)
"""Functions that write files which are named like checkpoints, too, and are none that is saved."""
_DATA = re.compile(
    r"\.(?:arrow|parquet|tfrecords?|jsonl|csv|tsv|txt|log|idx|mp4|wav|png|jpe?g)\b", re.IGNORECASE
)
_UNFINISHED = re.compile(
    r"(?:[.~_-](?:tmp|temp|part|incomplete|unfinished|writing|new)[a-z0-9]*|\.\d+|~)+$",
    re.IGNORECASE,
)
"""What files are named while they are not complete."""
_NAME_MAX = 255
"""Characters at the end of a path that may be a name."""
_KEEPS = r"\.(?:bin|pt|pth|npz|npy|h5|msgpack|pkl|pickle|tar|zst|gz|xz|ckpt|safetensors|distcp)$"
_FILE = re.compile(
    r"\.(?:ckpt|safetensors|distcp|pth)$"
    rf"|(?:checkpoint|ckpt)[^/]*/(?:[^/]+/)*[^/]+{_KEEPS}"
    r"|(?:^|[/_.-])(?:checkpoint|ckpt|(?:pytorch_)?model|weights|optim|mp_rank|zero_pp_rank"
    rf"|consolidated|state_dict|train(?:er|ing)_state)[^/]*{_KEEPS}"
    r"|/(?:(?:global_?)?step|iter|epoch)[a-z]*[_=-]?\d+(?:[^/]*/)*[^/]*\.(?:bin|pt)$",
    re.IGNORECASE,
)
"""Names of files that are parts of a checkpoint, without what `_UNFINISHED` leaves out."""


class Saver(Struct, frozen=True):
    """What tells that a rank writes a checkpoint."""

    function: str = ""
    """The program's own that is named so; empty for torch's, or where only the file tells."""
    file: bool = False
    """Whether the file that it writes is named so."""

    @property
    def by_name(self) -> bool:
        """Whether only one name tells it."""
        return bool(self.function) != self.file

    @property
    def what(self) -> str:
        """`, a checkpoint`, or nothing where it is named for saving, not for what it saves."""
        return " a checkpoint" if self.file or not _SAVE.search(self.function) else ""


def saver(case: Case, subject: Subject) -> Saver | None:
    """What tells that a rank saves, where it does that, or writes much and rests in between."""
    if subject.activity.kind == "checkpoint":
        return Saver()
    rank, file = subject.rank, subject.rank.process.file
    follows = file is not None and file.writes and _lately(case, rank.file_moved_at)
    if subject.activity.kind not in _IN_PIECES or not (follows or _lately(case, rank.wrote_at)):
        return None
    name = file.target if file is not None and follows else ""
    stack = stack_of(case.snapshot.stacks, subject)
    named = bool(name) and _of_checkpoint(name)
    for frame in stack:
        found = match((frame,))
        if found is not None and found[0].kind == "checkpoint":
            return Saver()
        if not is_library(frame) and _saves(frame):
            return None if _DATA.search(name) else Saver(where(frame), named)
    brings = _lately(case, rank.read_at) or any(_BRINGS.search(frame.name) for frame in stack)
    return Saver(file=True) if named and not brings else None


def writes(case: Case, subject: Subject) -> str:
    """What a rank does that saves now: `saves at train.py:30 (put)`; or its thread; or empty."""
    rank, by = subject.rank, saver(case, subject)
    if by is not None:
        what = by.what or (" a checkpoint" if not by.function else "")
        return f"writes{what} at {subject.activity.at}"
    most, own = rank.cpu_share or 0.0, rank.main_cpu_share
    sample = rank.sample
    if sample is None or own is None or 2 * own > most:
        return ""
    for thread in sample.threads[1:]:
        what_it_does = thread_activity(rank.process, sample, thread, case.reader)
        if what_it_does.kind == "checkpoint" and what_it_does.running:
            name = clean(thread.name or str(thread.tid), 60)
            return f"writes a checkpoint in its thread {name!r} at {what_it_does.at}"
    return ""


def _saves(frame: Frame) -> bool:
    """Whether a function is named for saving checkpoints, or is of a module that is."""
    if _SAVES.search(frame.name):
        return True
    return bool(_MODULE.search(frame.file) and _OF_MODULE.match(plain_name(frame.name)))


def _of_checkpoint(path: str) -> bool:
    """Whether a file is named like a part of a checkpoint."""
    end = max(len(path) - _NAME_MAX, 0)
    return _FILE.search(path[:end] + _UNFINISHED.sub("", path[end:])) is not None


def _lately(case: Case, at: float | None) -> bool:
    return at is not None and case.at - at < MOVES_S
