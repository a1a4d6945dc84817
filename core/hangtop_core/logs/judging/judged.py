"""What the logs of a job say, as nouns: errors, how far ranks had come, what follows from what."""

from __future__ import annotations

from msgspec import Struct

from hangtop_core.logs.parsing.ambiguous import Ambiguity
from hangtop_core.model.file_log import Record


class Fold(Struct, frozen=True):
    """One thing that happened, and all ranks it happened to."""

    record: Record
    """The earliest of them."""
    ranks: tuple[int, ...]
    """Ascending; empty for launchers and where nothing tells the rank."""
    nodes: tuple[str, ...]
    count: int
    """How often it was printed."""
    members: tuple[Record, ...]


class Position(Struct, frozen=True, gc=False):
    """How far a rank had come in a process group, as its watchdog has printed."""

    rank: int
    group: str
    enqueued: int
    completed: int
    op: str = ""
    at: float | None = None
    """When it was printed."""


class Judged(Struct, frozen=True):
    """What the logs of a job say."""

    first: Fold | None
    """The error that was first, as far as they tell."""
    others: tuple[Fold, ...]
    """Other errors that follow from no other, by time."""
    survived: tuple[Fold, ...]
    """Errors after which those who printed them went on, by time."""
    follows: tuple[Fold, ...]
    """What only follows."""
    notes: tuple[Fold, ...]
    """What was set up, and other lines that are known."""
    positions: tuple[Position, ...]
    ranks: tuple[int, ...]
    """All ranks of which there is a line."""
    last: dict[int, tuple[str, float | None]]
    """The last line of every rank, and its time."""
    unheard: tuple[int, ...] = ()
    """Ranks below the highest of which there is no line, where several print to one file."""
    ambiguities: tuple[Ambiguity, ...] = ()
    """Why it cannot be told who printed some lines, and what helps."""
    finished: frozenset[int] = frozenset()
    """Ranks that left without an error, as a report of torchrun or what they left shows."""
    earlier: int = 0
    """Records of earlier attempts of torchrun, which are left out."""

    @property
    def victims(self) -> set[int]:
        """Ranks that only suffer from what others did."""
        return {rank for one in self.follows for rank in one.ranks if one.record.part != "exit"}

    def folds(self) -> tuple[Fold, ...]:
        """All that happened."""
        first = (self.first,) if self.first is not None else ()
        return (*first, *self.others, *self.survived, *self.follows, *self.notes)
