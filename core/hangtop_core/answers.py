"""Folds what probes answer to requests into the store: stacks, descriptors, recorders, logs.

The process table, which flows by itself, is folded by the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hangtop_core.attach import messages
from hangtop_core.attach.messages import BadPieceError
from hangtop_core.model import StackSample, ThreadStack

if TYPE_CHECKING:
    from hangtop_core.store import Store

Mode = Literal["nonblocking", "blocking", "native"]

_MODES: dict[str, Mode] = {"nonblocking": "nonblocking", "blocking": "blocking", "native": "native"}


class Answers:
    """Writes answers into a store. On the session's thread, as all that writes there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def stacks(self, name: str, piece: messages.StackPiece) -> StackSample:
        """Fold one process's stacks and return its sample.

        Raises:
            BadPieceError: when it refers to a stack that was never sent.
        """
        view = self._store.nodes[name]
        for key, rows in piece.stacks.items():
            self._store.stacks.add(key, messages.frames(rows))
        missing = next((t.stack for t in piece.threads if t.stack not in self._store.stacks), None)
        if missing is not None:
            raise BadPieceError(f"stack {missing!r} was never sent")
        threads = [
            ThreadStack(t.tid, t.name, t.active, t.gil, t.stack, t.locals) for t in piece.threads
        ]
        threads.sort(key=lambda thread: thread.tid != piece.pid)
        sample = StackSample(
            at=piece.at - view.skew,
            took_s=piece.took,
            mode=_MODES.get(piece.mode, "nonblocking"),
            threads=tuple(threads),
            failure=piece.failure,
        )
        known = self._store.live(name, piece.pid, piece.start)
        if known is None:
            return sample
        known.take_sample(sample, self._store.stacks)
        self._store.touched(view, known)
        return known.sample if known.sample is not None else sample

    def failure(self, name: str, pid: int, sample: StackSample) -> None:
        """Note that a process that was asked for gave no sample, and why."""
        known = self._store.live(name, pid)
        if known is not None:
            known.take_sample(sample, self._store.stacks)
            self._store.touched(self._store.nodes[name], known)

    def renew(self, name: str, pid: int, at: float) -> None:
        """Count a sample once more without taking it: the main thread has not run since."""
        known = self._store.live(name, pid)
        if known is not None:
            known.renew(at)
            self._store.touched(self._store.nodes[name], known)

    def descriptors(self, name: str, piece: messages.DescriptorPiece) -> None:
        """Fold one process's descriptors."""
        view = self._store.nodes[name]
        known = self._store.live(name, piece.pid, piece.start)
        if known is not None:
            known.descriptors = messages.descriptor_table(piece, view.skew)
            self._store.touched(view, known)

    def recorder(self, name: str, piece: messages.RecorderPiece) -> None:
        """Fold one rank's flight recorder."""
        view = self._store.nodes[name]
        known = self._store.live(name, piece.pid, piece.start)
        if known is not None:
            known.recorder = messages.recorder(piece, view.skew)
            self._store.touched(view, known)

    def log(self, name: str, piece: messages.LogPiece) -> None:
        """Fold the end of a log file."""
        self._store.outputs.fold(name, piece, self._store.nodes[name].skew)
