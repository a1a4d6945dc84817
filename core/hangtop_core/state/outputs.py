"""The log files of jobs: when they are read, and what was read of them.

Cheap enough for big jobs: files are read when a job stalls or fails, and once where ranks of it are
not there; the last 64 KiB of each, at most 32 of a node and 128 of a job, and again only what is
new. Their text is kept within a bound for all together.
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
"""Processes of one job whose outputs are read by themselves."""
STALLED = 2.0
"""Seconds of observing after which the logs of a job are read that is not seen to get on."""
AGAIN = 15.0
"""Seconds until they are read again while it stalls."""
KEPT = 1 << 18
"""Characters of one file that are kept."""
KEPT_ALL = 64 << 20
"""Of all files together; those that were read longest ago lose theirs, but not what it said."""

PIDS = 512
"""Processes that are remembered to have printed to one file: restarts bring ever new ones."""
FILES = 2048
"""Files that are remembered; those that were read longest ago are forgotten."""


class Wanted(NamedTuple):
    """Whose outputs are to be read on one node."""

    node: str
    pids: tuple[int, ...]
    paths: tuple[str, ...]
    """Of processes that have left."""


class Outputs:
    """What was read of log files, by node and inode. On the session's thread."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], Output] = {}
        self._asked: dict[str, tuple[float, frozenset[int]]] = {}
        """By job: when its logs were asked for, and which of its processes had left by then."""

    def fold(self, node: str, piece: LogPiece, skew: float) -> bool:
        """Take in a piece of a file, or that another process prints to it; return if it is new."""
        inode = piece.inode or f"? {piece.path}"
        key = (node, inode)
        before = self._files.get(key)
        known = before or Output(node, inode, piece.path)
        pids = dict.fromkeys(known.pids)
        if piece.pid is not None:
            pids.pop(piece.pid, None)
            pids[piece.pid] = None
        known = msgspec.structs.replace(known, pids=tuple(pids)[-PIDS:], at=piece.at - skew)
        if piece.failure is not None:
            known = msgspec.structs.replace(known, why=piece.failure.text)
        elif piece.text is not None and not _was_read(known, piece):
            known = _with(known, piece, skew)
        self._files.pop(key, None)
        self._files[key] = known
        self._trim()
        return before is None or known != msgspec.structs.replace(before, at=known.at)

    def _trim(self) -> None:
        while len(self._files) > FILES:
            del self._files[next(iter(self._files))]
        total = sum(len(one.text) for one in self._files.values())
        for key, one in self._files.items():
            if total <= KEPT_ALL:
                return
            total -= len(one.text)
            self._files[key] = msgspec.structs.replace(one, text="")

    def read(self) -> tuple[Output, ...]:
        """All files that were read, those read last at the end."""
        return tuple(self._files.values())

    def since(self, node: str) -> dict[str, int]:
        """How much of each file of a node was read."""
        return {
            inode: one.size
            for (name, inode), one in self._files.items()
            if name == node and one.why is None
        }

    def due(
        self, snapshot: Snapshot, diagnoses: Mapping[str, Diagnosis], now: float
    ) -> list[Wanted]:
        """Whose logs are to be read now: of jobs that stall, or of which a process has left."""
        due: list[Wanted] = []
        for job in snapshot.jobs:
            diagnosis = diagnoses.get(job.key)
            gone = _gone(job)
            if self._is_due(job, diagnosis, gone, now):
                self._asked[job.key] = (now, gone)
                due += wanted(job, ALL, _blamed(diagnosis))
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
        # What ranks have printed that are not there any more may tell of those that are.
        lacks = diagnosis.state not in MAKES_PROGRESS or (not asked and _lacks(job))
        return diagnosis.observed_for_s >= STALLED and lacks


def wanted(job: Job, most: int | None = None, blamed: Collection[int | None] = ()) -> list[Wanted]:
    """The processes of a job whose outputs may tell something, by node.

    Args:
        job: whose.
        most: so many processes at most: those that say most.
        blamed: ranks that are to blame.
    """
    nodes: dict[str, list[Process]] = {}
    for node, process in _most_telling(job, blamed)[:most]:
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


def _most_telling(job: Job, blamed: Collection[int | None]) -> list[tuple[str, Process]]:
    """Return node and process of all: whoever has left, then culprits, rank 0, launchers."""
    places = {rank.node for rank in job.ranks if rank.rank in blamed}
    members = [(p.node in places, 1, p.node, p) for p in job.launchers]
    members += [
        (rank.rank in blamed, 2 if rank.rank else 0, rank.node, rank.process) for rank in job.ranks
    ]
    members.sort(key=lambda m: (m[3].gone_at is None, not m[0], m[1]))
    return [(node, process) for _, _, node, process in members]


def _paths_of_gone(processes: Sequence[Process]) -> dict[str, None]:
    """Return the output files of processes that have left, each once."""
    gone = (process for process in processes if process.gone_at is not None)
    return dict.fromkeys(path for process in gone for path in process.outputs if path[:1] == "/")


def _blamed(diagnosis: Diagnosis | None) -> frozenset[int | None]:
    verdicts = diagnosis.verdicts if diagnosis is not None else ()
    return frozenset(one.rank for verdict in verdicts for one in verdict.culprits)


def _lacks(job: Job) -> bool:
    """Whether a launcher has started more ranks on a node than are there."""
    if len(job.ranks) >= (job.world_size or 0):
        return False
    here = Counter(rank.node for rank in job.ranks)
    sizes = ((number_in(r.process.env, LOCAL_SIZES), here[r.node]) for r in job.ranks)
    return any((size or 0) > count for size, count in sizes)


def _gone(job: Job) -> frozenset[int]:
    return frozenset(rank.process.pid for rank in job.ranks if rank.process.ended)


def _was_read(known: Output, piece: LogPiece) -> bool:
    """Whether it answers an earlier question, and another answer said the most of it already.

    What has come since is told by the next one, which begins where what is known ends.
    """
    goes_on = known.text and known.why is None and not piece.cut
    return bool(goes_on) and piece.start < known.size <= piece.size


def _with(known: Output, piece: LogPiece, skew: float) -> Output:
    """A file with its newest text, added to what was read before where it goes on from there."""
    text = piece.text or ""
    start = piece.start
    if known.text and not piece.cut and known.size == piece.start:
        text, start = known.text + text, known.start
    if len(text) > KEPT:
        left = text[:-KEPT]
        start, text = start + len(left.encode()), text[-KEPT:]
    changed = piece.changed - skew
    return msgspec.structs.replace(
        known,
        path=piece.path,
        size=piece.size,
        changed=changed,
        start=start,
        text=text,
        why=None,
        log=parse(known.node, piece.path, text, start, piece.size, changed),
    )


def parse(node: str, path: str, text: str, start: int, size: int, changed: float) -> FileLog:
    """What the end of a file says."""
    parser = parsed(text, start, changed)
    place = msgspec.structs.replace(places([path])[path], node=node)
    return parser.log(path, place, size, changed, ((0, start),) if start else ())
