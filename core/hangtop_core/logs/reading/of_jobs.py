"""Log files of a job, as far as they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.parsing.own_words import in_own_words
from hangtop_core.logs.parsing.owners import by_own_words
from hangtop_core.logs.parsing.parse import Parser
from hangtop_core.logs.reading.siblings import siblings
from hangtop_core.model.file_log import FileLog, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hangtop_core.logs.parsing.parse import Line
    from hangtop_core.model.output import Output
    from hangtop_core.model.snapshot import Job

EARLIER_S = 5.0
"""Seconds before the start of the first rank; older lines are of an earlier run."""
MAX_ABSENT = 1 << 16
_ENDED = "T16"
"""Code of the line in which torchrun names the failed ranks, once all of its ranks have ended."""


def of_job(outputs: Iterable[Output], job: Job) -> list[FileLog]:
    """Return the logs of a job with their ranks, as its processes show them.

    A file to which only one rank prints is that rank's, whatever its name.
    """
    logs: list[FileLog] = []
    absent = _absent(job)
    for output, rank in with_rank(outputs, job):
        place = Place(rank=rank, node=output.node, std=output.log.place.std)
        records = tuple(msgspec.structs.replace(r, file=len(logs)) for r in output.log.records)
        if rank is None and any(in_own_words(r.text) is not None for r in records):
            printing = _printing(output, job)
            if len(printing) > 1:
                records = tuple(by_own_words(r, printing) for r in records)
        ranks = _locals(output, job) if rank is None else ()
        logs.append(
            msgspec.structs.replace(
                output.log, place=place, records=records, locals=ranks, absent=absent
            )
        )
    return logs


def _absent(job: Job) -> frozenset[int]:
    """Return the ranks without a process: the files that these printed to are unknown."""
    return frozenset(range(min(job.world_size or 0, MAX_ABSENT))) - {r.rank for r in job.ranks}


def _locals(output: Output, job: Job) -> tuple[tuple[int, int], ...]:
    """Return global ranks by local rank, if only a launcher of the node prints to a file."""
    origins = [stream.origin for stream in output.log.streams if stream.origin.local is not None]
    if len({(origin.node, origin.task) for origin in origins}) != 1:
        return ()
    ranks = (rank for rank in job.ranks if rank.node == output.node)
    return tuple((r.local_rank, r.rank) for r in ranks if r.local_rank is not None)


def _printing(output: Output, job: Job) -> frozenset[int]:
    """Return the ranks of a job that print to a file."""
    return frozenset(
        r.rank
        for r in job.ranks
        if r.node == output.node
        and (r.process.pid in output.pids or output.path in r.process.outputs)
    )


def of_run(files: Iterable[FileLog], job: Job) -> list[FileLog]:
    """Return files without records of earlier runs and of earlier attempts of torchrun.

    torchrun's report on the end of an attempt follows all lines of its ranks, most of which have no
    time: any rank that runs there now started afterwards.
    """
    began = [r.process.started_at for r in job.ranks if r.process.started_at]
    since = min(began, default=0.0) - EARLIER_S
    alive: dict[str | None, float] = {}
    for rank in job.ranks:
        at = rank.process.started_at
        if at and not rank.ended:
            alive[rank.node] = min(alive.get(rank.node, at), at)
    return [_since(file, since, alive.get(file.place.node, 0.0)) for file in files]


def _since(file: FileLog, since: float, now: float) -> FileLog:
    """Return a file without records before ``since`` and of attempts that ended before ``now``."""
    timed = [r for r in file.records if r.exact and r.at is not None]
    ended = max((r.order for r in timed if r.code == _ENDED and (r.at or 0.0) < now), default=-1)
    old = {r.order for r in timed if (r.at or 0.0) < since}
    kept = tuple(r for r in file.records if r.order > ended and r.order not in old)
    return file if len(kept) == len(file.records) else msgspec.structs.replace(file, records=kept)


def alive_of(job: Job) -> frozenset[int | None]:
    """Return the ranks of a job with a live process, and None if none is missing."""
    alive = [r.rank for r in job.ranks if not r.ended]
    whole = len(alive) == len(job.ranks) >= (job.world_size or 0)
    return frozenset([*alive, None] if whole else alive)


def outputs_of(outputs: Iterable[Output], job: Job) -> list[Output]:
    """Return the files of a job, in the order of `of_job`."""
    return [output for output, _ in with_rank(outputs, job)]


def lines_of(output: Output, keep: Callable[[Line], None]) -> None:
    """Pass the lines of a file's text to ``keep``; a truncated first line is left out."""
    parsed(output.text, output.start, output.changed, keep)


def parsed(
    text: str, start: int, changed: float, keep: Callable[[Line], None] | None = None
) -> Parser:
    """Parse the end of a file that begins at ``start``; ``keep`` gets its lines."""
    parser = Parser(0, changed, keep)
    parser.feed(text.partition("\n")[2] if start else text)
    parser.finish()
    return parser


def with_rank(outputs: Iterable[Output], job: Job) -> Iterator[tuple[Output, int | None]]:
    """Yield the files of a job, each with its rank if only one prints there."""
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
    """The ranks and launchers of a job, by process and by output file."""

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
