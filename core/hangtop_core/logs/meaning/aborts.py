"""The cause of an abort by the C++ runtime, which prints it only in the next line.

`terminate called after throwing an instance of 'std::runtime_error'`, and behind `  what():  ` the
message: in torch 1.x and 2.0 that of the watchdog after a timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.meaning.asynchronous import HOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.file_log import Record

_TERMINATE = "T7"
_WHAT = "what():"


class Aborts:
    """C++ exceptions that have ended processes of one stream."""

    __slots__ = ("_at", "_count", "_explained")

    def __init__(self) -> None:
        self._at: int | None = None
        """Index of the record of the unexplained exceptions."""
        self._count = self._explained = 0

    def take(self, record: Record, at: int, line: str) -> None:
        """Take a known line, and the record of all lines like it, with its index."""
        if record.code == _TERMINATE and record.part == "root":
            self._at, self._count = at, self._count + 1
        elif line.lstrip().startswith(_WHAT):
            self._explained += 1

    @property
    def explained(self) -> int | None:
        """Index of the exceptions' record, if all of them are explained."""
        return self._at if self._explained >= self._count else None


def demoted(records: Sequence[Record]) -> Iterable[Record]:
    """Yield records; aborts that the watchdog caused are consequences.

    Likewise the end by a C++ exception whose next line is known, and a watchdog's report on a rank
    that found an error instead of a timeout.
    """
    failed = _failed_by_error(records)
    named = {(r.file, r.order - 1) for r in records if r.text.startswith("what():")}
    waited = any(record.code in ("T1", "T2", "T7") for record in records)
    vain = _waited_in_vain(records)
    for record in records:
        aborted = _is_rank_abort(record) and (
            waited if record.code == "T16" else record.rank in vain
        )
        told_next = record.code == "T7" and (record.file, record.order) in named
        by_error = record.code == "T2" and record.rank in failed
        if aborted or told_next or by_error:
            yield msgspec.structs.replace(record, part="cascade")
        else:
            yield record


def _failed_by_error(records: Sequence[Record]) -> set[int]:
    """Return the ranks whose watchdog found an error, and no collective that timed out."""
    failed = {record.rank for record in records if record.how == HOW and record.rank is not None}
    return failed - {record.rank for record in records if record.code == "T1"}


def _waited_in_vain(records: Sequence[Record]) -> set[int | None]:
    """Return the ranks that waited until a timeout; None where a watchdog names no rank."""
    ranks = {r.rank for r in records if r.code in ("T1", "T2")}
    if ranks and any(r.code == "T7" and r.part == "cascade" and r.rank is None for r in records):
        ranks.add(None)
    return ranks


def _is_rank_abort(record: Record) -> bool:
    return record.part == "root" and _is_abort(record)


def _is_abort(record: Record) -> bool:
    """Whether SIGABRT ended a process, as the watchdog and faulthandler cause it."""
    fields = record.fields
    return (record.code == "T16" and fields.get("exit") == "-6") or (
        record.code in ("SEGV", "SLURM", "MPI") and fields.get("error", "").startswith("Aborted")
    )
