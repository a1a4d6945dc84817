"""Ranks that finished while others still waited for them, by a launcher's report. Pure.

torchrun's report names all failed ranks of its node. A rank that it neither names nor had to end
has exited with status 0, also if it exited before the others lost the connection to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.logs.judging.ended import status
from hangtop_core.logs.judging.wording import evidence, verdict
from hangtop_core.logs.meaning.steps import FINISHED
from hangtop_core.logs.parsing.first_ranks import REPORT
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judging.judged import Fold, Judged
    from hangtop_core.logs.parsing.owners import Owners
    from hangtop_core.model.file_log import FileLog, Record


def not_reported(
    files: Sequence[FileLog], owners: Owners, records: Sequence[Record]
) -> frozenset[int]:
    """Return the ranks that their node's torchrun neither reported as failed nor ended."""
    hosts = {_short(r.fields["host"]) for r in records if r.fields.keys() >= REPORT}
    if not hosts or any(map(_is_told_to_end, records)):
        return frozenset()
    failed = {record.rank for record in records if status(record) is not None}
    nodes = dict(_nodes(files, owners))
    is_one_node = len(set(nodes.values())) == 1
    printed = {rank for rank, node in nodes.items() if is_one_node or node in hosts}
    return frozenset(printed - failed)


def _nodes(files: Sequence[FileLog], owners: Owners) -> Iterator[tuple[int, str]]:
    """Yield the ranks whose labels a launcher has written, each with its node."""
    for number, file in enumerate(files):
        for origin in (stream.origin for stream in file.streams):
            rank = owners.rank(number, origin)
            if rank is not None and owners.local(number, origin) is not None:
                yield rank, _short(owners.node(number, origin) or "")


def _is_told_to_end(record: Record) -> bool:
    """Whether torchrun got a signal or ends ranks itself, which its report omits."""
    fields = record.fields
    return record.code == "T16" and "signal" in fields and "exit" not in fields


def _short(host: str) -> str:
    return host.partition(".")[0]


def of_finished(judged: Judged, fold: Fold, lost: Collection[int]) -> Verdict | None:
    """Return the verdict where all ranks that lost no connection had finished; else None.

    Where most have finished, the few that waited issued one collective more.
    """
    finished = sorted(set(judged.ranks) - set(lost))
    if not lost or not finished or not judged.finished.issuperset(finished):
        return None
    facts = [evidence(fold), Evidence("log", None, f"{names(finished)} finished without an error")]
    at, waiting = fold.record.from_where, sorted(lost)
    if len(finished) <= len(waiting):
        text = f"{names(finished)} finished without an error, and {names(waiting)} still waited{at}"
        return verdict("missing-collective", 0.8, finished, waiting, text, facts, steps=FINISHED)
    text = f"{names(waiting)} still waited{at} when {names(finished)} had finished without an error"
    return verdict("rank-conditional-collective", 0.6, waiting, (), text, facts)
