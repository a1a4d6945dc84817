"""The content of a job's logs: errors, the progress of ranks, causes and consequences."""

from __future__ import annotations

from msgspec import Struct

from hangtop_core.logs.parsing.ambiguous import Ambiguity
from hangtop_core.model.file_log import Record


class Fold(Struct, frozen=True):
    """An event, with all ranks that it happened to."""

    record: Record
    """The earliest of the records."""
    ranks: tuple[int, ...]
    """Ascending; empty for launchers and for unknown ranks."""
    nodes: tuple[str, ...]
    count: int
    """Number of times that the line was printed."""
    members: tuple[Record, ...]


class Position(Struct, frozen=True, gc=False):
    """The progress of a rank in a process group, as its watchdog printed it."""

    rank: int
    group: str
    enqueued: int
    completed: int
    op: str = ""
    at: float | None = None
    """Time of the watchdog's line."""


class Judged(Struct, frozen=True):
    """The content of a job's logs."""

    first: Fold | None
    """The first error that the logs show."""
    others: tuple[Fold, ...]
    """Other errors that follow from no error, by time."""
    survived: tuple[Fold, ...]
    """Errors that their processes survived, by time."""
    follows: tuple[Fold, ...]
    """Consequences of errors."""
    notes: tuple[Fold, ...]
    """Settings, and other known lines."""
    positions: tuple[Position, ...]
    ranks: tuple[int, ...]
    """All ranks with a line in the logs."""
    last: dict[int, tuple[str, float | None]]
    """The last line of every rank, and its time."""
    unheard: tuple[int, ...] = ()
    """Ranks below the highest without a line, where several ranks print to one file."""
    ambiguities: tuple[Ambiguity, ...] = ()
    """Reasons why some lines belong to no known rank, and remedies."""
    finished: frozenset[int] = frozenset()
    """Ranks that exited without an error, by torchrun's report or by what they left behind."""
    earlier: int = 0
    """Number of omitted records of earlier attempts of torchrun."""

    @property
    def victims(self) -> set[int]:
        """Return the ranks that only suffer from the errors of others."""
        return {rank for fold in self.follows for rank in fold.ranks if fold.record.part != "exit"}

    def folds(self) -> tuple[Fold, ...]:
        """Return all events."""
        first = (self.first,) if self.first is not None else ()
        return (*first, *self.others, *self.survived, *self.follows, *self.notes)
