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
    """Whether it held Python's global lock."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    locals: tuple[tuple[Local, ...], ...]
    """For each frame; without `--locals` at most to or from whom torch sends or receives."""


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
    """The main thread alone without `--all-threads`."""


class DumpUnnumbered(DumpProcess, kw_only=True):
    """A rank whose number could not be read."""

    node: str


class DumpRank(DumpUnnumbered, kw_only=True):
    """A rank."""

    rank: int | None
    """Null where nothing tells its number."""
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
    """`ready` and `slow` answer; `connecting`, `unreachable`, `denied`, `no-python`, `incompatible`
    and `lost` do not."""
    reason: str | None
    fix: str | None
    """The command or option that would change that."""
    nvml: Nvml | None
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]


class Dump(Struct):
    """`hangtop dump --json`, of a running job or a capture."""

    schema: Literal["hangtop.dump/1"]
    at: float
    """When, in seconds since the epoch."""
    job: DumpJob | None
    nodes: tuple[DumpNode, ...]
    ranks: tuple[DumpRank, ...]
    unnumbered: tuple[DumpUnnumbered, ...]
    """Processes that are ranks, but whose number could not be read."""
    controllers: tuple[DumpUnnumbered, ...] = ()
    """Programs above and beside its ranks that have a part in the job: an engine, an API server."""


class WatchJob(DumpJob, kw_only=True):
    """The job that something has happened to."""

    name: str
    ranks: int
    """How many were seen."""
    nodes: tuple[str, ...]


class WatchEvent(Struct):
    """One line of `hangtop watch --json`. Which fields there are depends on `event`."""

    schema: Literal["hangtop.watch/1"]
    event: Literal[
        "job", "hang", "resumed", "restarted", "ended",
        "nodes", "written", "on-hang", "clock", "stopped",
    ]  # fmt: skip
    at: str
    """UTC, as `2026-01-31T12:00:00Z`."""
    job: WatchJob | None = None
    """Of the first five events."""
    diagnosis: Diagnosis | None = None
    """Of `hang`, and of `ended` where the reason was seen."""
    after_s: float | None = None
    """For how long it had hung, of `resumed`, `restarted` and `ended`."""
    nodes: str | None = None
    """Of `nodes`: those that have gone or come, folded (`gpu[01-03]`)."""
    state: str | None = None
    """Of `nodes`: as in a dump."""
    reason: str | None = None
    fix: str | None = None
    directory: str | None = None
    """Of `written`: where a hang was written to; null where it could not be."""
    why: str | None = None
    """Of `written` and `on-hang`: what went wrong; null where nothing did."""
    command: tuple[str, ...] | None = None
    """Of `on-hang`: the command that was run."""
    by_s: float | None = None
    """Of `clock`: seconds by which it was set."""
    hangs: int | None = None
    """Of `stopped`: how many hangs were seen."""


class LogEntry(Struct):
    """Something of note in the logs, and all ranks that it happened to."""

    code: str
    """Of the table of known lines in [logs.md](logs.md), or `traceback`, `exit`, `quote`."""
    part: str
    """`root`, `timeout`, `cascade` (a consequence), `exit`, `survived`, `error` or `info`."""
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    at: float | None
    """Seconds since the epoch; null where no time is printed."""
    exact: bool
    """Whether `at` is its own time, not that of a line shortly before."""
    text: str
    means: str
    """What the line means."""
    cause: str | None
    """A [cause](causes.md)."""
    where: str | None
    """File, line and function of a traceback's innermost frame outside of libraries."""
    fields: dict[str, str]
    """What was read out of the line."""
    lines: tuple[str, ...]
    """As printed."""
    count: int
    """How often."""
    file: str
    line: int
    """Its number among the lines that were read of the file."""


class LogFile(Struct):
    """A file that was read."""

    path: str
    rank: int | None
    """Whose it is, where its name tells."""
    size: int
    lines: int
    not_read: tuple[tuple[int, int], ...]
    """Bytes from and to, where it was too long."""
    problem: str | None


class Logs(Struct):
    """`hangtop logs --json`."""

    schema: Literal["hangtop.logs/1"]
    ranks: tuple[int, ...]
    first: LogEntry | None
    """The error that was first, as far as logs tell."""
    verdicts: tuple[Verdict, ...]
    others: tuple[LogEntry, ...]
    """Other errors that follow from none."""
    survived: tuple[LogEntry, ...]
    """Errors after which the ranks that printed them went on."""
    follows: tuple[LogEntry, ...]
    """Errors that only follow."""
    notes: tuple[LogEntry, ...]
    positions: tuple[Position, ...]
    """How far ranks were in their process groups, as watchdogs print."""
    files: tuple[LogFile, ...]
    ambiguities: tuple[Ambiguity, ...] = ()
    """Lines of which it cannot be told who has printed them, and how the next run can tell."""


class NumericsFirst(First, frozen=True, kw_only=True):
    """The first of all ranks. `frames` stand with its rank only."""

    index: int
    """Its rank's place in `ranks`."""
    rank: int | None


class NumericsReport(Struct):
    """`hangtop numerics --json`."""

    schema: Literal["hangtop.numerics-report/1"]
    hangtop: str
    first: NumericsFirst | None
    ranks: tuple[Numerics, ...]
