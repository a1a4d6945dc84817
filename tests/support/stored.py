"""A store with one node, which is told of its processes as a probe would tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop_core.attach.wire import messages
from hangtop_core.collect.answers import Answers
from hangtop_core.state.store import Store
from support.pieces import EPOCH, piece, stacks

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank, Snapshot, StackSample


class Bench:
    """The node n1, on the head's clock unless told otherwise; times are after `EPOCH`."""

    def __init__(self, skew: float = 0.0) -> None:
        self.store = Store()
        self.answers = Answers(self.store)
        self.wrong: list[str] = []
        """What did not fit in the pieces of the node."""
        self.store.add_node("n1", EPOCH)
        self.store.connected("n1", EPOCH + skew, False, EPOCH)

    def fold(self, at: float, *processes: dict[str, Any], **fields: Any) -> None:
        """Fold a piece of the process table."""
        raw = piece(at, *processes, **fields)
        self.store.fold_watch("n1", messages.decode(raw, messages.WatchPiece), self.wrong.append)

    def sample(self, pid: int, at: float, *stack: tuple[str, int], **fields: Any) -> StackSample:
        """Fold a stack; return what whoever asked for it is told."""
        raw = stacks(pid, at, *stack, **fields)
        return self.answers.stacks("n1", messages.decode(raw, messages.StackPiece))

    def publish(self, at: float = 0.0) -> Snapshot:
        """What is known."""
        return self.store.publish(EPOCH + at)

    def ranks(self, at: float = 0.0) -> tuple[Rank, ...]:
        """The ranks of the only job."""
        (job,) = self.publish(at).jobs
        return job.ranks
