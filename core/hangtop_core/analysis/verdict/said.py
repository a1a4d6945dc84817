"""What the logs of a job say, for all rules; worked out once for one set of files."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.reading.of_jobs import alive_of, of_job, of_run
from hangtop_core.model.node.facts import KernelLine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judging.judged import Fold, Judged
    from hangtop_core.model.file_log import Record
    from hangtop_core.model.snapshot import Job, Snapshot

_KERNEL = frozenset({"K1", "K2", "K5"})
"""Lines of kernels that tell of an event of one process or GPU."""


class Said:
    """What the logs of a job say."""

    def __init__(self, snapshot: Snapshot, job: Job) -> None:
        files = of_run(of_job(snapshot.outputs, job), job)
        pids = {(one.node, str(one.process.pid)): one.rank for one in job.ranks}
        self.judged: Judged | None = judge(files, pids, alive_of(job)) if files else None
        self.written = tuple(one.changed for one in files)
        """When each file was last written, by the number that records have of it."""
        self.verdicts: tuple[Verdict, ...] = conclude(self.judged) if self.judged else ()

    @property
    def folds(self) -> tuple[Fold, ...]:
        """All that was printed, the first error first and what only follows last."""
        if self.judged is None:
            return ()
        first = (self.judged.first,) if self.judged.first is not None else ()
        judged = self.judged
        return (*first, *judged.others, *judged.survived, *judged.notes, *judged.follows)

    def times(self, cause: str) -> list[float]:
        """When lines of a cause were printed, as far as they say so themselves."""
        return [
            record.at
            for one in self.folds
            for record in one.members
            if record.cause == cause and record.exact and record.at is not None
        ]

    def texts(self, cause: str) -> list[str]:
        """What lines of a cause say."""
        return [r.text for one in self.folds for r in one.members if r.cause == cause]

    @cached_property
    def kernel_lines(self) -> Mapping[str, tuple[KernelLine, ...]]:
        """Lines of kernels in the logs, by node: a console's output often has them."""
        found: dict[str, list[KernelLine]] = defaultdict(list)
        for one in self.folds:
            for record in one.members:
                if record.code in _KERNEL and record.node is not None and record.at is not None:
                    found[record.node].append(KernelLine(record.at, f"{record.text} (in a log)"))
        return {node: tuple(some) for node, some in found.items()}

    @cached_property
    def nccl(self) -> Mapping[int, str]:
        """Versions of NCCL that ranks have printed."""
        return {
            record.rank: record.fields["nccl"].partition("+")[0]
            for one in self.folds
            for record in one.members
            if record.code == "version" and record.rank is not None
        }

    def first_of(self, ranks: Sequence[int]) -> int | None:
        """Which of some ranks had the first error of its own; None where that is not told."""
        first = self.judged.first if self.judged is not None else None
        if first is None or first.record.part != "root":
            return None
        return next((rank for rank in first.ranks if rank in ranks), None)

    @cached_property
    def gave_up(self) -> frozenset[int]:
        """Ranks that waited in vain until a timeout, where no error came before that.

        What somebody unknown has logged may have been caught, and is no such error.
        """
        first = self.judged.first if self.judged is not None else None
        if self.judged is None or first is None:
            return frozenset()
        caught = first.record.how == "logged" and not first.ranks
        if first.record.part != "timeout" and not caught:
            return frozenset()
        folds = (first, *self.judged.follows)
        return frozenset(r for one in folds if one.record.part == "timeout" for r in one.ranks)

    @cached_property
    def tracebacks(self) -> Mapping[int | None, Sequence[Record]]:
        """All that were printed, by rank; by None those of nobody that is known."""
        found: dict[int | None, list[Record]] = defaultdict(list)
        for record in (r for one in self.folds for r in one.members if r.code == "traceback"):
            found[record.rank].append(record)
        return found

    @cached_property
    def errors(self) -> Mapping[int, Record]:
        """The first error that each rank has printed itself.

        Those that follow from others come after it, and those that it has survived last.
        """
        found: dict[int, Record] = {}
        judged = self.judged
        if judged is None:
            return found
        for one in (judged.first, *judged.others, *judged.follows, *judged.survived):
            for record in one.members if one is not None else ():
                if record.rank is not None and record.code not in LAUNCHERS:
                    found.setdefault(record.rank, record)
        return found


class _Memory:
    """What was worked out last for some jobs: logs are read far less often than jobs are judged."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[str, tuple[tuple[object, ...], object, Said]] = {}

    def said(self, snapshot: Snapshot, job: Job) -> Said:
        """What the logs of a job say; the same object until files or processes are others."""
        processes = (*job.launchers, *(rank.process for rank in job.ranks))
        key = (
            *map(id, snapshot.outputs),
            *((p.node, p.pid, p.outputs, not p.ended) for p in processes),
        )
        found = self._known.pop(job.key, None)
        if found is None or found[0] != key:
            # The files are kept with it, so that no other one gets the place of one of them.
            found = (key, snapshot.outputs, Said(snapshot, job))
        self._known[job.key] = found
        while len(self._known) > self._size:
            del self._known[next(iter(self._known))]
        return found[2]


_MEMORY = _Memory(8)


def said(snapshot: Snapshot, job: Job) -> Said:
    """What the logs of a job say."""
    return _MEMORY.said(snapshot, job)
