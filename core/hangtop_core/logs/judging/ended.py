"""Whether an error ended its rank, or the rank survived it. Pure: from all logs of a job.

A traceback alone does not prove an end: a rank may have caught and logged the exception. Evidence,
in this order: torch's hook printed it, which only happens when the main thread ends; a launcher
reports the rank's exit; the rank printed on; its launcher's report of all failed ranks omits it.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.meaning.life import SURVIVABLE
from hangtop_core.logs.parsing.blocks import FATAL, GOES_ON
from hangtop_core.model.file_log import After, Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hangtop_core.logs.parsing.owners import Owners
    from hangtop_core.model.file_log import FileLog, Record

LATER = 5.0
"""Seconds within which a process ends after its error, and within which the clocks of nodes
agree."""
FEW = 3
"""Maximum number of lines that a process usually prints after an error that ends it."""
BUFFER = 8192
"""Bytes that an ending Python process still writes from its buffer (`io.DEFAULT_BUFFER_SIZE`).
torchrun's ranks have no such buffer (`python -u`)."""
LONG = 60.0
"""Seconds after which a rank that exited with an error did so because of another error."""
_PARTS = frozenset({"root", "timeout", "cascade"})
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals of a crashed process."""
TOLD_TO = (-15, -2, 0)
"""Exit statuses of ranks that no error of their own ended: SIGTERM, SIGINT, success."""


def weigh(
    records: Iterable[Record],
    owners: Owners,
    files: Sequence[FileLog],
    alive: Collection[int | None] = (),
) -> list[Record]:
    """Return the records with the confidence that each error ended its rank.

    The part of an error that its rank survived is `survived`; ``alive`` are ranks seen alive.
    """
    listed = list(records)
    scene = _Scene(listed, owners, files, alive)
    weighed = []
    for record in listed:
        if record.code in SURVIVABLE and record.part in _PARTS:
            last = _last(record)
            sure = scene.sure(last)
            if not sure:
                record = msgspec.structs.replace(last, part="survived")
            elif record.part == "root" and _ends(record):
                rank = record.rank if record.rank is not None else scene.only
                record = msgspec.structs.replace(last, sure=sure, rank=rank)
        weighed.append(record)
    return weighed


def status(record: Record) -> int | None:
    """Return the exit status of a rank by its launcher's line, negative for a signal."""
    if record.code not in LAUNCHERS:
        return None
    if "exit" in record.fields:
        number = int(record.fields["exit"])
        # mpirun names the signal that ended a rank by its number.
        return -number if record.code == "MPI" else number
    if record.code not in ("SLURM", "SPAWN"):
        return None
    signal_text = record.fields.get("signal") or record.fields.get("error") or ""
    ends = -signal.SIGTERM if record.part == "cascade" else -signal.SIGKILL
    return next((-crash for crash in CRASHES if signal_text.startswith(_names(crash))), ends)


def _names(crash: signal.Signals) -> tuple[str, ...]:
    """Return a launcher's names of a signal: `SIGSEGV`, or `Segmentation fault` as in a shell."""
    return crash.name, signal.strsignal(crash) or crash.name


def _changed(files: Sequence[FileLog], owners: Owners) -> dict[int, float]:
    """Return by rank the last change of the files of a single rank."""
    times: dict[int, float] = {}
    for number, file in enumerate(files):
        rank = owners.rank(number, Origin())
        if rank is not None and file.changed is not None:
            times[rank] = max(times.get(rank, 0.0), file.changed)
    return times


def _has_ended_rank(record: Record) -> bool:
    return record.part == "root" and record.how in FATAL and record.rank is not None


class _Scene:
    """The records of a job with the evidence of how its ranks ended."""

    def __init__(
        self,
        records: Sequence[Record],
        owners: Owners,
        files: Sequence[FileLog],
        alive: Collection[int | None],
    ) -> None:
        self._files = files
        self._alive = frozenset(alive)
        self._status: dict[int, int] = {}
        """Exit status by rank."""
        self._reports: dict[int, set[int]] = defaultdict(set)
        """By file number: all ranks that torchrun's report in the file names as failed."""
        self._errors: dict[int, list[Record]] = defaultdict(list)
        self._until = {rank: at or 0.0 for rank, (_, at) in owners.last().items()}
        """Time of the last line of each rank."""
        self._changed = _changed(files, owners)
        """Time of the last change of each rank's own files."""
        self._lost: set[int | None] = set()
        """Ranks that have lost the connection to another rank."""
        for record in records:
            if record.code in LAUNCHERS:
                self._launcher(record)
            elif record.part in _PARTS:
                self._error(record)
        hooked = {r for r, errors in self._errors.items() if any(e.how in FATAL for e in errors)}
        self._unexplained = {r for r, s in self._status.items() if s not in TOLD_TO} - hooked
        """Ranks that exited with an error that only a traceback can explain."""
        self._explained = {record.rank for record in records if _has_ended_rank(record)}
        """Ranks with an error that has certainly ended them."""

    def _launcher(self, record: Record) -> None:
        if record.rank is None:
            return
        number = status(record)
        if number is not None:
            self._status[record.rank] = number
        if record.code == "T16" and {"exit", "host"} <= record.fields.keys():
            self._reports[record.file].add(record.rank)

    def _error(self, record: Record) -> None:
        if record.part == "cascade":
            self._lost.add(record.rank)
        if record.rank is not None:
            self._errors[record.rank].append(record)
            latest = max(record.at or 0.0, (record.again.at or 0.0) if record.again else 0.0)
            self._until[record.rank] = max(self._until.get(record.rank, 0.0), latest)

    def sure(self, record: Record) -> float:
        """Return the confidence that an error ended its process; 0 if that survived."""
        if record.how in FATAL:
            return 0.9 if record.at is not None else 0.8
        if record.how in GOES_ON:
            return 0.0
        if record.rank is None:
            return self._of_somebody(record)
        if self._went_on(record, record.rank):
            return 0.0
        if record.rank in self._unexplained:
            return 0.9 if record.at is not None else 0.8
        if record.after is not None:
            return 0.5
        if self._lost - {record.rank}:
            return 0.7 if record.how == "logged" else 0.85
        beside = self._changed.get(record.rank, 0.0) > (self._files[record.file].changed or 0.0)
        return 0.5 if record.how == "logged" else 0.6 if beside else 0.8

    def _went_on(self, record: Record, rank: int) -> bool:
        late = record.at is not None and self._until.get(rank, 0.0) > record.at + LONG
        printed = self._printed_on(record)
        if record.part != "root":
            return late or printed
        status = self._status.get(rank)
        if status in TOLD_TO or (rank in self._alive and _ends(record)):
            return True
        if self._explained - {rank} and self._cut_off(rank):
            return True
        if status is not None and not self._told_otherwise(record, rank):
            # It exited with an error and has no other cause: this error, if not long before.
            return late and printed
        return late or printed or self._outlived_its_file(record, rank)

    def _outlived_its_file(self, record: Record, rank: int) -> bool:
        """Whether a rank printed elsewhere later, or its launcher's report does not name it."""
        report = self._reports.get(record.file, set())
        if report and rank not in report:
            return True
        return self._changed.get(rank, 0.0) > (self._files[record.file].changed or 0.0) + LONG

    def _told_otherwise(self, record: Record, rank: int) -> bool:
        """Whether another, later error of a rank may have ended it."""
        return any(
            later.shape != record.shape
            and (later.how in FATAL or (later.file == record.file and later.order > record.order))
            for later in self._errors[rank]
        )

    def _cut_off(self, rank: int) -> bool:
        """Whether torch's hook shows that a lost connection ended the rank."""
        return any(error.part == "cascade" and error.how in FATAL for error in self._errors[rank])

    def _printed_on(self, record: Record) -> bool:
        """Whether a rank printed more after an error than an ending process does."""
        after = record.after
        if after is None:
            return False
        own = record.part == "root"
        if own and self._explained and record.rank not in self._unexplained:
            return True
        place = self._files[record.file].place
        unbuffered = record.origin.local is not None or place.local is not None
        if after.until is not None and record.at is not None and after.lines >= FEW:
            # Lines that are still in a buffer have an earlier time than the logged error.
            exact = unbuffered or record.how == "logged"
            return after.until > record.at + (0.0 if own and exact else LATER)
        return after.chars > BUFFER or (own and unbuffered and after.lines >= FEW)

    def _of_somebody(self, record: Record) -> float:
        """Return the confidence that an error ended its process, where the rank is unknown.

        Lines of all ranks are mixed there. Many later lines show that no rank is missing, and so
        does a torch hook's report of every rank that exited.
        """
        if None in self._alive and _ends(record):
            return 0.0
        after = record.after or After()
        if self._explained and not self._unexplained and after.lines:
            return 0.0
        if after.until is None or record.at is None:
            went_on = after.chars > BUFFER
        else:
            went_on = after.until > record.at + LATER
        return 0.0 if went_on else 0.7 if self._unexplained else 0.5 if after.lines else 0.6

    @property
    def only(self) -> int | None:
        """The rank whose exit only its launcher explains, if there is exactly one."""
        return next(iter(self._unexplained)) if len(self._unexplained) == 1 else None


def _ends(record: Record) -> bool:
    """Whether an error blocks other ranks by the end of its own; a full /dev/shm does so before."""
    return record.cause in (None, "rank-exited")


def _last(record: Record) -> Record:
    """Return a record with its latest time, which is the one that can have ended the rank."""
    again = record.again
    if again is None:
        return record
    return msgspec.structs.replace(record, order=again.order, at=again.at, exact=again.exact)
