"""Folding of answers to requests into the store: stacks, descriptors, recorders, logs.

The process table, which is sent unasked, is folded by the store itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from hangtop_core.attach.wire import messages, reports
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_core.model.numerics import Numerics
from hangtop_core.model.recorder.columns import Shared
from hangtop_core.model.recorder.ras import BadReportError, Ras, from_json
from hangtop_core.model.recorder.ras_text import from_text
from hangtop_core.model.snapshot import StackSample, ThreadStack
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.model.recorder.columns import Unpacker
    from hangtop_core.model.snapshot import Recorder
    from hangtop_core.state.store import Store
    from hangtop_core.state.tracked import Tracked

Mode = Literal["nonblocking", "blocking", "native"]

_CUT = "its file is long, and only the beginning was read"
_MODES: dict[str, Mode] = {"nonblocking": "nonblocking", "blocking": "blocking", "native": "native"}


class Answers:
    """Writes answers into a store. Used on the session's thread, as every writer of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.shared = Shared()

    def stacks(self, name: str, piece: messages.StackPiece) -> StackSample:
        """Fold one process's stacks and return its sample.

        Without a new stack the sample is the failure, even where the last stack is still valid.

        Raises:
            BadPieceError: the piece refers to a stack that was never sent.
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
        sample = StackSample(
            at=piece.at - view.skew,
            took_s=piece.took,
            mode=_MODES.get(piece.mode, "nonblocking"),
            threads=tuple(threads),
            failure=piece.failure,
        )
        tracked = self._store.live(name, piece.pid, piece.start)
        if tracked is None:
            return sample
        self._take_sample(name, tracked, sample)
        folded = tracked.sample
        return folded if folded is not None and sample.failure is None else sample

    def failure(self, name: str, pid: int, sample: StackSample) -> None:
        """Note that a requested process gave no sample, and why."""
        tracked = self._store.live(name, pid)
        if tracked is not None:
            self._take_sample(name, tracked, sample)

    def _take_sample(self, name: str, tracked: Tracked, sample: StackSample) -> None:
        """Set the sample of a process; one equal to the last sample is no news."""
        last = tracked.sample
        tracked.take_sample(sample, self._store.stacks)
        same = last is not None and _content(last) == _content(sample)
        (self._store.aged if same else self._store.touched)(self._store.nodes[name], tracked)

    def renew(self, name: str, pid: int, at: float) -> None:
        """Count a sample once more without py-spy: the main thread has not run since."""
        tracked = self._store.live(name, pid)
        if tracked is not None:
            tracked.renew(at)
            self._store.aged(self._store.nodes[name], tracked)

    def descriptors(self, name: str, piece: messages.DescriptorPiece) -> None:
        """Fold one process's descriptors."""
        view = self._store.nodes[name]
        tracked = self._store.live(name, piece.pid, piece.start)
        if tracked is not None:
            last = tracked.descriptors
            new = messages.descriptor_table(piece, view.skew).after(last)
            tracked.descriptors = new
            same = last is not None and replace(last, at=new.at, earlier=new.earlier) == new
            (self._store.aged if same else self._store.touched)(view, tracked)

    def recorder(self, name: str, piece: messages.RecorderPiece, unpacker: Unpacker) -> None:
        """Fold one rank's flight recorder.

        Raises:
            BadPieceError: its parts do not fit together.
        """
        view = self._store.nodes[name]
        tracked = self._store.live(name, piece.pid, piece.start)
        rank = tracked.process.number if tracked is not None else None
        # Its parts may be shared with other ranks, so they are taken in any case.
        began = tracked.process.started_at if tracked is not None else None
        made = messages.recorder(piece, view.skew, -1 if rank is None else rank, unpacker, began)
        if tracked is not None:
            tracked.recorder_asked = piece.at if made.asked_at is None else made.asked_at
            if _still_nothing(tracked.recorder, made) or outlasts(tracked.recorder, made):
                return
            tracked.recorder = made
            self._store.touched(view, tracked)

    def numerics(self, name: str, piece: reports.NumericsPiece) -> None:
        """Fold the non-finite values that a rank has detected."""
        view = self._store.nodes[name]
        tracked = self._store.live(name, piece.pid, piece.start)
        if tracked is not None:
            tracked.numerics = Numerics(
                rank=tracked.process.rank,
                node=name,
                pid=piece.pid,
                path=piece.path,
                attempt=piece.header.attempt,
                firsts=tuple(line for line in piece.lines if isinstance(line, reports.FirstLine)),
                seen=piece.seen,
                notes=tuple(
                    line.text for line in piece.lines if isinstance(line, reports.NoteLine)
                ),
                failure=piece.failure.text if piece.failure else _CUT if piece.cut else None,
            )
            self._store.touched(view, tracked)

    def log(self, name: str, piece: reports.LogPiece) -> None:
        """Fold the end of a log file."""
        self._store.read_output(name, piece)

    def ras(self, name: str, end: reports.RasEnd, text: str) -> Ras:
        """Fold the report of NCCL's RAS, and keep it with the rank that gave it."""
        view = self._store.nodes[name]
        at = end.at - view.skew
        try:
            report = from_json(text, at) if end.form == "json" else from_text(text, at)
        except BadReportError as error:
            report = Ras(at, failure=clean(f"the answer of RAS at {end.address} {error}", 300))
        labels = clean(end.address, 80), report.version or clean(end.version, 40)
        report = replace(report, address=labels[0], version=labels[1], took_s=end.took)
        self.note_ras(name, end.pid, report, end.start)
        return report

    def note_ras(self, name: str, pid: int, report: Ras, start: int | None = None) -> None:
        """Keep a report, or the reason for its absence, with the rank that was asked."""
        tracked = self._store.live(name, pid, start)
        if tracked is not None:
            tracked.ras = report
            self._store.touched(self._store.nodes[name], tracked)


def _content(sample: StackSample) -> tuple[object, ...]:
    return sample.mode, sample.threads, sample.failure


KEPT_S = 60.0
"""Seconds for which a forced reading of a recorder stays beside later empty answers."""


def outlasts(old: Recorder | None, new: Recorder) -> bool:
    """Return whether a recorder that was read by force stays although another request got nothing.

    Unattended requests do not use force; one under way while a person's request was answered would
    otherwise erase that answer.
    """
    if old is None or old.trace is None or not old.triggered or new.trace is not None:
        return False
    return new.at - old.at < KEPT_S


def _still_nothing(old: Recorder | None, new: Recorder) -> bool:
    """Return whether a recorder gave nothing once more, for the same reasons, which is no news."""
    if old is None or old.trace is not None or new.trace is not None:
        return False
    return (old.failure, old.ways) == (new.failure, new.ways)
