"""How far ranks are in the files that they read and write, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.text.clean import duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.descriptors import FilePosition
    from hangtop_core.model.snapshot import Rank

MOVES_S = 10.0
"""What moved so lately gets on: the table of processes may be some seconds old."""


def position_text(case: Case, subject: Subject) -> str:
    """`4.0 MiB of 64 MiB of FILE, and has not moved for 0:45`: how far it is in what it reads."""
    file, moved = subject.rank.process.file, subject.rank.file_moved_at
    if file is None:
        return ""
    text = (
        f"{size(file.position)}{f' of {size(file.whole)}' if file.whole else ''} of {place(file)}"
    )
    if moved is not None and case.at - moved < MOVES_S:
        by = speed(subject.rank)
        last = f"last moved {duration(case.at - moved)} ago"
        return f"{text}, and {f'moves by {by}' if by else last}"
    since = max(moved or 0.0, subject.standing.since)
    return f"{text}, and has not moved {case.lasting(since)}".rstrip()


def position_facts(case: Case, group: Sequence[Subject]) -> Iterator[Evidence]:
    """How far those of a group are that get on in a file, also where they are met elsewhere."""
    for subject in group[:SHOWN]:
        moved = subject.rank.file_moved_at
        if moved is not None and case.at - moved < MOVES_S and subject.rank.process.file:
            text = f"its position is {position_text(case, subject)}"
            yield fact("process", subject.number, text)


def speed(rank: Rank) -> str:
    """`2.0 MiB a second`, how fast it comes on in its file; empty where that does not show yet.

    It has just come to that file, or a long read or write has not returned.
    """
    rate = rank.file_rate
    return f"{size(rate)} a second" if rate is not None and rate >= 1.0 else ""


def place(file: FilePosition) -> str:
    """`/data/shard-17 on /data (nfs4, filer)`."""
    far = f", {file.server}" if file.server else ""
    return f"{file.target} on {file.mount} ({file.fstype}{far})" if file.mount else file.target


def reads(subject: Subject) -> bool:
    """Whether its main thread is in the file whose position is known."""
    file, main = subject.rank.process.file, subject.activity.main
    return file is not None and main is not None and main.fd == file.fd
