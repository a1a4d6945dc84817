"""Log files of jobs: when they are read, and their contents.

The cost is bounded for big jobs: files are read when a job stalls or fails, and once where ranks of
it are missing; the last 64 KiB of each, at most 32 of a node and 128 of a job, and later only new
text. A common bound limits the text that is kept.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hangtop_core.diagnosis import MAKES_PROGRESS
from hangtop_core.logs.reading.names import places
from hangtop_core.logs.reading.of_jobs import parsed
from hangtop_core.logs.reading.siblings import siblings
from hangtop_core.model.output import Output
from hangtop_core.text.launchers import LOCAL_SIZES, number_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hangtop_core.attach.wire.reports import LogPiece
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.file_log import FileLog
    from hangtop_core.model.snapshot import Job, Process, Snapshot

AT_ONCE = 32
"""Processes of one node whose outputs are read at a time."""
ALL = 128
"""Processes of one job whose outputs are read unasked."""
STALLED = 2.0
"""Seconds of observing after which the logs of a job without visible progress are read."""
AGAIN = 15.0
"""Seconds between two readings of the logs while the job stalls."""
KEPT = 1 << 18
"""Maximum characters that are kept of one file."""
KEPT_ALL = 64 << 20
"""Maximum characters of all files; the least recently read ones lose their text, but not the parsed
records."""

PIDS = 512
"""Maximum processes per file that are remembered to print to it: restarts bring ever new ones."""
FILES = 2048
"""Maximum number of files; the least recently read ones are forgotten."""


class Wanted(NamedTuple):
    """Outputs to read on one node."""

    node: str
    pids: tuple[int, ...]
    paths: tuple[str, ...]
    """Output files of exited processes."""


class Outputs:
    """The log files that were read, by node and inode. Used on the session's thread."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], Output] = {}
        self._asked: dict[str, tuple[float, frozenset[int]]] = {}
        """By job: when its logs were requested, and which of its processes had exited by then."""

    def fold(self, node: str, piece: LogPiece, skew: float) -> bool:
        """Fold a piece of a file, or a further process that prints to it; return if it is new."""
        inode = piece.inode or f"? {piece.path}"
        key = (node, inode)
        before = self._files.get(key)
        output = before or Output(node, inode, piece.path)
        pids = dict.fromkeys(output.pids)
        if piece.pid is not None:
            pids.pop(piece.pid, None)
            pids[piece.pid] = None
        output = msgspec.structs.replace(output, pids=tuple(pids)[-PIDS:], at=piece.at - skew)
        if piece.failure is not None:
            output = msgspec.structs.replace(output, why=piece.failure.text)
        elif piece.text is not None and not _was_read(output, piece):
            output = _with(output, piece, skew)
        self._files.pop(key, None)
        self._files[key] = output
        self._trim()
        return before is None or output != msgspec.structs.replace(before, at=output.at)

    def _trim(self) -> None:
        while len(self._files) > FILES:
            del self._files[next(iter(self._files))]
        total = sum(len(output.text) for output in self._files.values())
        for key, output in self._files.items():
            if total <= KEPT_ALL:
                return
            total -= len(output.text)
            self._files[key] = msgspec.structs.replace(output, text="")

    def read(self) -> tuple[Output, ...]:
        """Return all files that were read, the most recently read ones last."""
        return tuple(self._files.values())

    def since(self, node: str) -> dict[str, int]:
        """Return how much of each file of a node was read."""
        return {
            inode: output.size
            for (name, inode), output in self._files.items()
            if name == node and output.why is None
        }

    def due(
        self, snapshot: Snapshot, diagnoses: Mapping[str, Diagnosis], now: float
    ) -> list[Wanted]:
        """Return the logs to read now: of jobs that stall, or that a process has left."""
        due: list[Wanted] = []
        for job in snapshot.jobs:
            diagnosis = diagnoses.get(job.key)
            gone = _gone(job)
            if self._is_due(job, diagnosis, gone, now):
                self._asked[job.key] = (now, gone)
                due += wanted(job, ALL, _culprits(diagnosis))
        keys = {job.key for job in snapshot.jobs}
        self._asked = {key: asked for key, asked in self._asked.items() if key in keys}
        return due

    def _is_due(
        self, job: Job, diagnosis: Diagnosis | None, gone: frozenset[int], now: float
    ) -> bool:
        asked, before = self._asked.get(job.key, (0.0, frozenset()))
        if gone - before:
            return True
        if diagnosis is None:
            return False
        again = now - asked >= AGAIN and diagnosis.state != "exited"
        if asked and not again:
            return False
        if diagnosis.state in ("hung", "exited"):
            return True
        # The output of missing ranks may explain the state of the present ones.
        needs_logs = diagnosis.state not in MAKES_PROGRESS or (
            not asked and _has_missing_ranks(job)
        )
        return diagnosis.observed_for_s >= STALLED and needs_logs


def wanted(
    job: Job, limit: int | None = None, culprits: Collection[int | None] = ()
) -> list[Wanted]:
    """Return the processes of a job whose outputs may be relevant, by node.

    Args:
        job: the job.
        limit: maximum number of processes, the most relevant first.
        culprits: ranks that are culprits.
    """
    nodes: dict[str, list[Process]] = {}
    for node, process in _by_relevance(job, culprits)[:limit]:
        nodes.setdefault(node, []).append(process)
    beside = siblings(job)
    outputs = []
    for node, processes in nodes.items():
        pids = [process.pid for process in processes if process.gone_at is None][:AT_ONCE]
        paths = _paths_of_gone(processes)
        paths |= dict.fromkeys(path for at, path in beside if at == node)
        if pids or paths:
            outputs.append(Wanted(node, tuple(pids), tuple(paths)[:AT_ONCE]))
    return outputs


def _by_relevance(job: Job, culprits: Collection[int | None]) -> list[tuple[str, Process]]:
    """Return node and process of all: exited ones first, then culprits, rank 0, launchers."""
    places = {rank.node for rank in job.ranks if rank.rank in culprits}
    members = [(p.node in places, 1, p.node, p) for p in job.launchers]
    members += [
        (rank.rank in culprits, 2 if rank.rank else 0, rank.node, rank.process)
        for rank in job.ranks
    ]
    members.sort(key=lambda m: (m[3].gone_at is None, not m[0], m[1]))
    return [(node, process) for _, _, node, process in members]


def _paths_of_gone(processes: Sequence[Process]) -> dict[str, None]:
    """Return the output files of exited processes, each once."""
    gone = (process for process in processes if process.gone_at is not None)
    return dict.fromkeys(path for process in gone for path in process.outputs if path[:1] == "/")


def _culprits(diagnosis: Diagnosis | None) -> frozenset[int | None]:
    verdicts = diagnosis.verdicts if diagnosis is not None else ()
    return frozenset(culprit.rank for verdict in verdicts for culprit in verdict.culprits)


def _has_missing_ranks(job: Job) -> bool:
    """Return whether a launcher has started more ranks on a node than are present."""
    if len(job.ranks) >= (job.world_size or 0):
        return False
    counts = Counter(rank.node for rank in job.ranks)
    sizes = ((number_in(r.process.env, LOCAL_SIZES), counts[r.node]) for r in job.ranks)
    return any((size or 0) > count for size, count in sizes)


def _gone(job: Job) -> frozenset[int]:
    return frozenset(rank.process.pid for rank in job.ranks if rank.process.ended)


def _was_read(output: Output, piece: LogPiece) -> bool:
    """Return whether the piece answers an earlier request, and is mostly known already.

    Newer text comes with the next piece, which begins where the known text ends.
    """
    goes_on = output.text and output.why is None and not piece.cut
    return bool(goes_on) and piece.start < output.size <= piece.size


def _with(output: Output, piece: LogPiece, skew: float) -> Output:
    """Return a file with its newest text, appended where it continues the known text."""
    text = piece.text or ""
    start = piece.start
    if output.text and not piece.cut and output.size == piece.start:
        text, start = output.text + text, output.start
    if len(text) > KEPT:
        left = text[:-KEPT]
        start, text = start + len(left.encode()), text[-KEPT:]
    changed = piece.changed - skew
    return msgspec.structs.replace(
        output,
        path=piece.path,
        size=piece.size,
        changed=changed,
        start=start,
        text=text,
        why=None,
        log=parse(output.node, piece.path, text, start, piece.size, changed),
    )


def parse(node: str, path: str, text: str, start: int, size: int, changed: float) -> FileLog:
    """Return the parsed end of a file."""
    parser = parsed(text, start, changed)
    place = msgspec.structs.replace(places([path])[path], node=node)
    return parser.log(path, place, size, changed, ((0, start),) if start else ())
