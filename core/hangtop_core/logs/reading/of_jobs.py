"""A log file of a job, as far as it was read: a noun like those of `hangtop_core.model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.parsing.own_words import in_own_words
from hangtop_core.logs.parsing.parse import Parser
from hangtop_core.logs.parsing.whose import by_own_words
from hangtop_core.logs.reading.siblings import siblings
from hangtop_core.model.file_log import FileLog, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hangtop_core.logs.parsing.parse import Line
    from hangtop_core.model.output import Output
    from hangtop_core.model.snapshot import Job

EARLIER_S = 5.0
"""What was printed so long before the first rank began is of an earlier run."""
MAX_ABSENT = 1 << 16
_ENDED = "T16"
"""The code of the line in which torchrun names who failed, once all of its ranks have ended."""


def of_job(outputs: Iterable[Output], job: Job) -> list[FileLog]:
    """The logs of a job, each with whose it is as its processes tell.

    A file to which one rank alone prints is that rank's, whatever its name.
    """
    found: list[FileLog] = []
    absent = _absent(job)
    for one, rank in with_rank(outputs, job):
        place = Place(rank=rank, node=one.node, std=one.log.place.std)
        records = tuple(msgspec.structs.replace(r, file=len(found)) for r in one.log.records)
        if rank is None and any(in_own_words(r.text) is not None for r in records):
            printing = _printing(one, job)
            if len(printing) > 1:
                records = tuple(by_own_words(r, printing) for r in records)
        ranks = _locals(one, job) if rank is None else ()
        found.append(
            msgspec.structs.replace(
                one.log, place=place, records=records, locals=ranks, absent=absent
            )
        )
    return found


def _absent(job: Job) -> frozenset[int]:
    """Ranks of which no process was seen: to what these have printed is not known."""
    return frozenset(range(min(job.world_size or 0, MAX_ABSENT))) - {r.rank for r in job.ranks}


def _locals(one: Output, job: Job) -> tuple[tuple[int, int], ...]:
    """Global ranks by local rank of a node, if a launcher of that node alone prints to a file."""
    origins = [stream.origin for stream in one.log.streams if stream.origin.local is not None]
    if len({(origin.node, origin.task) for origin in origins}) != 1:
        return ()
    here = (rank for rank in job.ranks if rank.node == one.node)
    return tuple((r.local_rank, r.rank) for r in here if r.local_rank is not None)


def _printing(one: Output, job: Job) -> frozenset[int]:
    """The ranks of a job that print to a file."""
    return frozenset(
        r.rank
        for r in job.ranks
        if r.node == one.node and (r.process.pid in one.pids or one.path in r.process.outputs)
    )


def of_run(files: Iterable[FileLog], job: Job) -> list[FileLog]:
    """Files without what they hold of earlier runs, and of earlier attempts of torchrun.

    What torchrun has printed of the end of an attempt stands below all that its ranks printed, most
    of which has no time: whatever rank runs there now was started afterwards.
    """
    began = [r.process.started_at for r in job.ranks if r.process.started_at]
    since = min(began, default=0.0) - EARLIER_S
    alive: dict[str | None, float] = {}
    for rank in job.ranks:
        at = rank.process.started_at
        if at and not rank.ended:
            alive[rank.node] = min(alive.get(rank.node, at), at)
    return [_since(one, since, alive.get(one.place.node, 0.0)) for one in files]


def _since(one: FileLog, since: float, now: float) -> FileLog:
    """Without what is older than ``since``, or ended before ``now``, when its ranks began."""
    timed = [r for r in one.records if r.exact and r.at is not None]
    ended = max((r.order for r in timed if r.code == _ENDED and (r.at or 0.0) < now), default=-1)
    old = {r.order for r in timed if (r.at or 0.0) < since}
    kept = tuple(r for r in one.records if r.order > ended and r.order not in old)
    return one if len(kept) == len(one.records) else msgspec.structs.replace(one, records=kept)


def alive_of(job: Job) -> frozenset[int | None]:
    """Ranks of a job whose processes are there; with None where all are that it should have."""
    there = [r.rank for r in job.ranks if not r.ended]
    whole = len(there) == len(job.ranks) >= (job.world_size or 0)
    return frozenset([*there, None] if whole else there)


def outputs_of(outputs: Iterable[Output], job: Job) -> list[Output]:
    """The files of a job, in the order of `of_job`."""
    return [one for one, _ in with_rank(outputs, job)]


def lines_of(one: Output, keep: Callable[[Line], None]) -> None:
    """Give the lines of a file's text, told apart; one that is cut at its beginning is left out."""
    parsed(one.text, one.start, one.changed, keep)


def parsed(
    text: str, start: int, changed: float, keep: Callable[[Line], None] | None = None
) -> Parser:
    """Parse the end of a file that begins at ``start``; ``keep`` gets its lines."""
    parser = Parser(0, changed, keep)
    parser.feed(text.partition("\n")[2] if start else text)
    parser.finish()
    return parser


def with_rank(outputs: Iterable[Output], job: Job) -> Iterator[tuple[Output, int | None]]:
    """The files of a job, each with the one rank that prints there, if it is one alone."""
    printers = _Printers(job)
    beside = siblings(job)
    began = min((rank.process.started_at for rank in job.ranks), default=0.0)
    for output in outputs:
        rank = beside.get((output.node, output.path))
        if rank is not None and output.changed >= began:
            yield output, rank
            continue
        ranks, shared = printers.of(output)
        if ranks or shared:
            yield output, next(iter(ranks)) if len(ranks) == 1 and not shared else None


class _Printers:
    """The ranks and launchers of a job, by process and by the files that they print to."""

    def __init__(self, job: Job) -> None:
        self._ranks = {(rank.node, rank.process.pid): rank.rank for rank in job.ranks}
        self._paths = {(r.node, path): r.rank for r in job.ranks for path in r.process.outputs}
        self._launchers = {(process.node, process.pid) for process in job.launchers}
        self._launcher_paths = {(p.node, path) for p in job.launchers for path in p.outputs}

    def of(self, output: Output) -> tuple[set[int], bool]:
        """Return the ranks that print to a file, and whether a launcher does."""
        keys = {(output.node, pid) for pid in output.pids}
        ranks = {self._ranks[key] for key in keys if key in self._ranks}
        file = (output.node, output.path)
        by_launcher = file in self._launcher_paths
        if file in self._paths and not by_launcher:
            ranks.add(self._paths[file])
        return ranks, by_launcher or bool(keys & self._launchers)
