"""Causes that only logs tell, and what logs add to the verdicts of other rules."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from hangtop_core.analysis.standing import GONE
from hangtop_core.analysis.verdict.base import START_OR_END, Hit, Rule, Subject
from hangtop_core.analysis.verdict.endings import aborted, by_segment
from hangtop_core.analysis.verdict.evidence import SHOWN, absent, fact, sentence
from hangtop_core.analysis.verdict.leftover import apart
from hangtop_core.analysis.verdict.linesneed import COMPLETE, NEEDS
from hangtop_core.analysis.verdict.steps import as_host, on
from hangtop_core.analysis.verdict.storeaway import known_who
from hangtop_core.analysis.verdict.storetaken import Binder, binder, port_holder
from hangtop_core.kernelline import KernelLine
from hangtop_core.logs.conclude import conclude
from hangtop_core.logs.judge import Judged, judge
from hangtop_core.logs.known import LAUNCHERS
from hangtop_core.logs.output import alive_of, of_job, of_run
from hangtop_core.logs.steps import FIRST, HERE, LIVE, STEPS
from hangtop_core.text import clean, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.steps import Step
    from hangtop_core.diagnosis import Evidence, Verdict
    from hangtop_core.logs.judge import Fold
    from hangtop_core.logs.record import Record
    from hangtop_core.model import Job, Snapshot

_AT_START = frozenset({"store-unreachable", "store-port-taken", "wrong-interface"})
"""Causes that matter only until ranks have met."""
_BY_DRIVER = frozenset({"gpu-xid", "gpu-ecc", "gpu-nvlink"})
"""Causes that other rules tell of where a GPU's driver can be asked."""
TOLD_WHY = 0.96
"""Why a rank has left, or lost what it waits for, is worth more than that it has."""
SHORTLY_S = 60.0
"""Seconds before the last progress within which a line may have to do with a hang."""
_KERNEL = frozenset({"K1", "K2", "K5"})
"""Lines of kernels that tell of an event of one process or GPU."""
_ABORTS = frozenset({"mismatched-size"})


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


def log_facts(case: Case, subjects: Sequence[Subject]) -> Iterator[Evidence]:
    """What logs say of ranks that are to blame: their error, position, and last line."""
    judged = case.said.judged
    if judged is None:
        return
    for subject in subjects[:SHOWN]:
        rank = subject.number
        error = case.said.errors.get(rank)
        if error is not None:
            yield fact("log", rank, f"it printed {error.text}{error.from_where}")
        for one in judged.positions:
            if one.rank == rank:
                text = f"begun #{one.enqueued} of group {one.group}, completed #{one.completed}"
                yield fact("log", rank, f"its watchdog said: {text}")
        if error is None and rank in judged.last:
            line, at = judged.last[rank]
            ago = f", {duration(case.at - at)} ago" if at is not None and at <= case.at else ""
            yield fact("log", rank, f"its last line{ago}: {clean(line, 200)}")


def overtaken(case: Case, times: Iterable[float | None]) -> bool:
    """Whether the job was seen to get on well after all these moments, so far as they are known."""
    known = [at for at in times if at is not None]
    return bool(known) and case.last_move is not None and max(known) < case.last_move - SHORTLY_S


def error_text(case: Case, rank: int) -> str:
    """`KeyError: 'labels' at job.py:13 (step)`, what a rank printed that has left; or empty."""
    error = case.said.errors.get(rank)
    if error is None or error.code != "traceback":
        return ""
    return clean(error.text + error.from_where, 300)


def _find(cause: str, case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    found = [one for one in case.said.verdicts if one.cause == cause]
    if not found:
        return
    binds = binder(case, case.said.texts(cause)) if cause == "store-port-taken" else Binder()
    if cause in _AT_START and not (
        not case.waiters
        or binds.notes
        or case.progress.state == "exited"
        or any(s.activity.kind in ("init", "store") for s in case.waiters)
    ):
        return
    if case.waiters and overtaken(case, case.said.times(cause)):
        return
    if cause == "port-blocked" and apart(case) is not None:
        return  # of the attempt before: none tries to connect
    if (cause in _BY_DRIVER and case.xids) or (cause == "store-unreachable" and known_who(case)):
        return  # who it is and where, is known better
    for one in found:
        ranks = {culprit.rank for culprit in one.culprits}
        blamed = tuple(s for s in case.subjects if s.number in ranks)
        if not ranks and cause in _ABORTS:
            # What the C++ runtime prints as it aborts has no rank before it.
            blamed = aborted(case)
        away = [s for s in case.seats if s.rank in ranks and s.unseen is None]
        owner, whose = by_segment(case, one) if not ranks else (None, "")
        blamed = blamed or ((owner,) if owner is not None else ())
        told_why = any(s.activity.kind in GONE for s in blamed) or bool(away or owner)
        notes: list[str] = []
        if cause == "store-port-taken":
            away += [one for one in binds.absent if one not in away]
            blamed, notes = binds.subjects or blamed, [*binds.notes]
            gone = any(s.activity.kind in GONE for s in case.subjects)
            told_why = gone or bool(notes) or any(seat.beside for seat in case.seats)
        has = port_holder(case) if cause == "store-port-taken" else None
        notes += [has.text] if has else []
        yield Hit(
            subjects=blamed,
            absent=absent(away),
            explained=(*case.waiters, *(_ended(case) if told_why else ())),
            summary=sentence(case, "; ".join([whose or one.summary, *notes]), blamed=blamed),
            evidence=(*one.evidence, *(has.facts if has else ())),
            steps=(*(has.steps if has else ()), *live_steps(case, cause, blamed)),
            confidence=max(one.confidence, TOLD_WHY) if told_why else one.confidence,
        )


def live_steps(case: Case, cause: str, blamed: Sequence[Subject]) -> tuple[Step, ...]:
    """What to do about a cause that logs tell, for the nodes and the store that are known here."""
    first = next((s for s in case.subjects if s.number == 0), None)
    steps: list[Step] = []
    for step in STEPS.get(cause, ()):
        if step.startswith(LIVE):
            continue  # that is what is being done
        where = HERE if step.startswith(HERE) else FIRST if step.startswith(FIRST) else ""
        subject = blamed[0] if where == HERE and blamed else first if where == FIRST else None
        command = step.removeprefix(where)
        if where and case.subjects:
            env = (subject or case.subjects[0]).rank.process.env
            host, port = as_host(env.get("MASTER_ADDR", "")), env.get("MASTER_PORT", "")
            command = command.replace("$MASTER_ADDR", host or "$MASTER_ADDR")
            port = port if port.isascii() and port.isdecimal() else "$MASTER_PORT"
            command = command.replace("$MASTER_PORT", port)
        steps.append(on(subject, command) if subject is not None else where + command)
    return tuple(steps)


def _ended(case: Case) -> Iterator[Subject]:
    """In a job that has ended: all of its ranks, which left because of what the log tells."""
    if case.progress.state == "exited":
        yield from case.subjects


def _rule(cause: str, title: str, seen: str, excluded: str, confidence: float) -> Rule:
    return Rule(
        cause=cause,
        title=title,
        seen=seen,
        excluded=excluded,
        confidence=confidence,
        next_steps=STEPS[cause],
        find=lambda case, left: _find(cause, case, left),
        states=START_OR_END,
        needs=NEEDS.get(cause, ()),
        complete=COMPLETE.get(cause, ""),
    )


_NOT_FIRST = (
    "An error of its own that another rank printed before. A line of an earlier run, or from over "
    f"{SHORTLY_S:.0f} seconds before the job was last seen to get on."
)
_ASKED = "The driver's errors are known from NVML or the kernel log: see above. " + _NOT_FIRST

RULES = (
    _rule(
        "nccl-ib-error",
        "InfiniBand gave up on a peer",
        "In a log: `NET/IB : Got completion from peer ... with status=12` (retries exceeded), or "
        "another error than 5, which only follows.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "ib-port-down",
        "An InfiniBand port went down",
        "In a log: `NET/IB : ... async fatal event`, `Device ... marked as failed`.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "wrong-interface",
        "NCCL uses an interface that leads to no other node",
        "In a log: `Bootstrap : Using docker0` or `NET/Socket : Using [0]lo`, also virbr, veth, "
        "cni and the like, in a job of several nodes, with an error or a wait in vain after it.",
        "The job runs on one node. The ranks have met. With less confidence where a communicator "
        "was complete.",
        0.85,
    ),
    _rule(
        "store-port-taken",
        "Another program has the port of the store",
        "In a log: `EADDRINUSE`, or a client whose ping was answered by something that is no store "
        "(`Ping failed, invalid value returned from server`).",
        "The ranks have met.",
        0.9,
    ),
    _rule(
        "store-unreachable",
        "The store cannot be reached",
        "In a log: `failed to connect/validate to host`, `client socket has timed out`, again and "
        "again while ranks are in init_process_group.",
        "The ranks have met. Another program answers there: `store-port-taken`.",
        0.75,
    ),
    _rule(
        "mismatched-size",
        "Ranks exchange what does not fit together",
        "In a log: `Received data size doesn't match expected size`, of gloo, which then aborts. "
        "Sizes and types are both told in bytes.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "shm-too-small",
        "Shared memory is too small",
        "In a log: `unable to allocate shared memory`, `Error while creating shared memory "
        "segment`, `out of shared memory`.",
        _NOT_FIRST,
        0.9,
    ),
    _rule(
        "gpu-xid",
        "A log tells of a GPU's error",
        "In a log: `NVRM: Xid`, as consoles and syslog have it; not 43 and 45, which only follow.",
        _ASKED,
        0.85,
    ),
    _rule(
        "gpu-ecc",
        "A rank was told of an error in its GPU's memory",
        "In a log: `uncorrectable ECC error`.",
        _ASKED,
        0.9,
    ),
    _rule(
        "gpu-nvlink",
        "A rank was told of an error of NVLink",
        "In a log: `uncorrectable NVLink error`.",
        _ASKED,
        0.9,
    ),
)
