"""Folds what probes answer to requests into the store: stacks, descriptors, recorders, logs.

The process table, which flows by itself, is folded by the store.
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
    """Writes answers into a store. On the session's thread, as all that writes there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.shared = Shared()

    def stacks(self, name: str, piece: messages.StackPiece) -> StackSample:
        """Fold one process's stacks and return its sample.

        Without a new stack that is the failure, also where the one before still holds.

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
        self._take_sample(name, known, sample)
        folded = known.sample
        return folded if folded is not None and sample.failure is None else sample

    def failure(self, name: str, pid: int, sample: StackSample) -> None:
        """Note that a process that was asked for gave no sample, and why."""
        known = self._store.live(name, pid)
        if known is not None:
            self._take_sample(name, known, sample)

    def _take_sample(self, name: str, known: Tracked, sample: StackSample) -> None:
        """Give a process its sample; one that says what the last one did is no news."""
        last = known.sample
        known.take_sample(sample, self._store.stacks)
        same = last is not None and _said(last) == _said(sample)
        (self._store.aged if same else self._store.touched)(self._store.nodes[name], known)

    def renew(self, name: str, pid: int, at: float) -> None:
        """Count a sample once more without taking it: the main thread has not run since."""
        known = self._store.live(name, pid)
        if known is not None:
            known.renew(at)
            self._store.aged(self._store.nodes[name], known)

    def descriptors(self, name: str, piece: messages.DescriptorPiece) -> None:
        """Fold one process's descriptors."""
        view = self._store.nodes[name]
        known = self._store.live(name, piece.pid, piece.start)
        if known is not None:
            last = known.descriptors
            new = messages.descriptor_table(piece, view.skew).after(last)
            known.descriptors = new
            same = last is not None and replace(last, at=new.at, earlier=new.earlier) == new
            (self._store.aged if same else self._store.touched)(view, known)

    def recorder(self, name: str, piece: messages.RecorderPiece, unpacker: Unpacker) -> None:
        """Fold one rank's flight recorder.

        Raises:
            BadPieceError: when its parts do not fit together.
        """
        view = self._store.nodes[name]
        known = self._store.live(name, piece.pid, piece.start)
        rank = known.process.number if known is not None else None
        # What it brings for others counts, whoever it is about.
        began = known.process.started_at if known is not None else None
        made = messages.recorder(piece, view.skew, -1 if rank is None else rank, unpacker, began)
        if known is not None:
            known.recorder_asked = piece.at if made.asked_at is None else made.asked_at
            if _still_nothing(known.recorder, made) or outlasts(known.recorder, made):
                return
            known.recorder = made
            self._store.touched(view, known)

    def numerics(self, name: str, piece: reports.NumericsPiece) -> None:
        """Fold what a rank has found that is not finite."""
        view = self._store.nodes[name]
        known = self._store.live(name, piece.pid, piece.start)
        if known is not None:
            known.numerics = Numerics(
                rank=known.process.rank,
                node=name,
                pid=piece.pid,
                path=piece.path,
                attempt=piece.header.attempt,
                firsts=tuple(one for one in piece.lines if isinstance(one, reports.FirstLine)),
                seen=piece.seen,
                notes=tuple(one.text for one in piece.lines if isinstance(one, reports.NoteLine)),
                failure=piece.failure.text if piece.failure else _CUT if piece.cut else None,
            )
            self._store.touched(view, known)

    def log(self, name: str, piece: reports.LogPiece) -> None:
        """Fold the end of a log file."""
        self._store.read_output(name, piece)

    def ras(self, name: str, end: reports.RasEnd, text: str) -> Ras:
        """Fold the report of NCCL's RAS: it stays with the rank that gave it."""
        view = self._store.nodes[name]
        at = end.at - view.skew
        try:
            report = from_json(text, at) if end.form == "json" else from_text(text, at)
        except BadReportError as error:
            report = Ras(at, failure=clean(f"the answer of RAS at {end.address} {error}", 300))
        told = clean(end.address, 80), report.version or clean(end.version, 40)
        report = replace(report, address=told[0], version=told[1], took_s=end.took)
        self.note_ras(name, end.pid, report, end.start)
        return report

    def note_ras(self, name: str, pid: int, report: Ras, start: int | None = None) -> None:
        """Keep a report, or why there is none, with the rank that was asked for it."""
        known = self._store.live(name, pid, start)
        if known is not None:
            known.ras = report
            self._store.touched(self._store.nodes[name], known)


def _said(sample: StackSample) -> tuple[object, ...]:
    return sample.mode, sample.threads, sample.failure


KEPT_S = 60.0
"""How long what a rank was made to say stays beside later answers that say nothing."""


def outlasts(old: Recorder | None, new: Recorder) -> bool:
    """Whether a recorder that was read by force stays although another request got nothing.

    The requests that are made by themselves do not use force; one that was under way when a
    person's was answered would otherwise wipe that answer out.
    """
    if old is None or old.trace is None or not old.triggered or new.trace is not None:
        return False
    return new.at - old.at < KEPT_S


def _still_nothing(old: Recorder | None, new: Recorder) -> bool:
    """Whether a recorder gave nothing once more, for the same reasons: no news to anybody."""
    if old is None or old.trace is not None or new.trace is not None:
        return False
    return (old.failure, old.ways) == (new.failure, new.ways)
