"""Documents about a job: dump, watch, logs, numerics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hangtop_core.diagnosis import Diagnosis, Verdict
from hangtop_core.logs.judging.judged import Position
from hangtop_core.logs.parsing.ambiguous import Ambiguity
from hangtop_core.model.frame import Frame
from hangtop_core.model.node.hardware import Gpu, Nic, Nvml
from hangtop_core.model.numerics import First, Numerics
from hangtop_core.model.snapshot import Failure, Local


class DumpThread(Struct):
    """One thread of a process."""

    tid: int | None
    name: str | None
    active: bool
    """Whether py-spy saw it run, rather than wait."""
    gil: bool
    """Whether it held Python's global interpreter lock (GIL)."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    locals: tuple[tuple[Local, ...], ...]
    """For each frame; without `--locals` at most the ranks that torch sends to or receives from."""


class DumpProcess(Struct):
    """A process and its stacks."""

    pid: int
    role: str
    """`rank`, `dataloader-worker`, `child` and others."""
    label: str
    """What it is, for people."""
    state: str
    """One letter, as in /proc/PID/stat."""
    sampled_at: float | None
    """When its stacks were taken, seconds since the epoch."""
    mode: str | None
    """`nonblocking`, `blocking` or `native`."""
    failure: Failure | None
    """Why it has no stacks."""
    threads: tuple[DumpThread, ...]
    """Only the main thread without `--all-threads`."""


class DumpUnnumbered(DumpProcess, kw_only=True):
    """A rank whose number could not be read."""

    node: str


class DumpRank(DumpUnnumbered, kw_only=True):
    """A rank."""

    rank: int | None
    """Null where its number is unknown."""
    children: tuple[DumpProcess, ...]
    """Its DataLoader workers and other programs that it started."""


class DumpJob(Struct):
    """The job."""

    key: str
    """For `--job-key`; stable while the job runs."""
    id: str | None
    """Run id of torchrun, or Slurm's job id."""
    launcher: str | None
    world_size: int | None


class DumpNode(Struct):
    """A node."""

    name: str
    state: str
    """`ready` and `slow` respond; `connecting`, `unreachable`, `denied`, `no-python`,
    `incompatible` and `lost` do not.
    """
    reason: str | None
    fix: str | None
    """The command or option that fixes the state."""
    nvml: Nvml | None
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]


class Dump(Struct):
    """`hangtop dump --json`, of a running job or a capture."""

    schema: Literal["hangtop.dump/1"]
    at: float
    """Time of the dump, seconds since the epoch."""
    job: DumpJob | None
    nodes: tuple[DumpNode, ...]
    ranks: tuple[DumpRank, ...]
    unnumbered: tuple[DumpUnnumbered, ...]
    """Processes that are ranks, but whose number could not be read."""
    controllers: tuple[DumpUnnumbered, ...] = ()
    """Programs above and beside its ranks that are part of the job: an engine, an API server."""


class WatchJob(DumpJob, kw_only=True):
    """The job that the event is about."""

    name: str
    ranks: int
    """Number of ranks seen."""
    nodes: tuple[str, ...]


class WatchEvent(Struct):
    """One line of `hangtop watch --json`. Its fields depend on `event`."""

    schema: Literal["hangtop.watch/1"]
    event: Literal[
        "job", "hang", "resumed", "restarted", "ended",
        "nodes", "written", "on-hang", "clock", "stopped",
    ]  # fmt: skip
    at: str
    """UTC, as `2026-01-31T12:00:00Z`."""
    job: WatchJob | None = None
    """Set for the first five events."""
    diagnosis: Diagnosis | None = None
    """Set for `hang`, and for `ended` where the reason was observed."""
    after_s: float | None = None
    """For `resumed`, `restarted` and `ended`: seconds for which it had hung."""
    nodes: str | None = None
    """For `nodes`: the nodes that were lost or came back, folded (`gpu[01-03]`)."""
    state: str | None = None
    """For `nodes`: the state, as in a dump."""
    reason: str | None = None
    fix: str | None = None
    directory: str | None = None
    """For `written`: the directory that a hang was written to; null where writing failed."""
    why: str | None = None
    """For `written` and `on-hang`: the error; null where there was none."""
    command: tuple[str, ...] | None = None
    """For `on-hang`: the command that was run."""
    by_s: float | None = None
    """For `clock`: seconds by which the clock was set."""
    hangs: int | None = None
    """For `stopped`: how many hangs were seen."""


class LogEntry(Struct):
    """A notable log entry, and all ranks that printed it."""

    code: str
    """From the table of known lines in [logs.md](logs.md), or `traceback`, `exit`, `quote`."""
    part: str
    """`root`, `timeout`, `cascade` (a consequence), `exit`, `survived`, `error` or `info`."""
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    at: float | None
    """Seconds since the epoch; null where no time is printed."""
    exact: bool
    """Whether `at` is its own time, rather than that of a line shortly before."""
    text: str
    means: str
    """What the line means."""
    cause: str | None
    """A [cause](causes.md)."""
    where: str | None
    """File, line and function of a traceback's innermost frame outside of libraries."""
    fields: dict[str, str]
    """Values parsed from the line."""
    lines: tuple[str, ...]
    """As printed."""
    count: int
    """Number of occurrences."""
    file: str
    line: int
    """Its number among the lines read from the file."""


class LogFile(Struct):
    """A file that was read."""

    path: str
    rank: int | None
    """The rank that wrote it, where its name shows that."""
    size: int
    lines: int
    not_read: tuple[tuple[int, int], ...]
    """Byte ranges, from and to, that were skipped because the file is too long."""
    problem: str | None


class Logs(Struct):
    """`hangtop logs --json`."""

    schema: Literal["hangtop.logs/1"]
    ranks: tuple[int, ...]
    first: LogEntry | None
    """The first error, according to the logs."""
    verdicts: tuple[Verdict, ...]
    others: tuple[LogEntry, ...]
    """Other errors that are no consequence of any error."""
    survived: tuple[LogEntry, ...]
    """Errors after which the ranks that printed them continued."""
    follows: tuple[LogEntry, ...]
    """Errors that are consequences of others."""
    notes: tuple[LogEntry, ...]
    positions: tuple[Position, ...]
    """How far ranks were in their process groups, as watchdogs print it."""
    files: tuple[LogFile, ...]
    ambiguities: tuple[Ambiguity, ...] = ()
    """Lines whose origin is ambiguous, and how the next run can avoid that."""


class NumericsFirst(First, frozen=True, kw_only=True):
    """The first finding of all ranks. `frames` are given only with its rank."""

    index: int
    """Index of its rank in `ranks`."""
    rank: int | None


class NumericsReport(Struct):
    """`hangtop numerics --json`."""

    schema: Literal["hangtop.numerics-report/1"]
    hangtop: str
    first: NumericsFirst | None
    ranks: tuple[Numerics, ...]
