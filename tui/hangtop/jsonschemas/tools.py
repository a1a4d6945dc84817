"""Documents of tools: doctor, core, nettest, strace, files, capture, run."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hangtop_core.capture.form import Header
from hangtop_core.cores.explain import Explanation
from hangtop_core.cores.take import Taken
from hangtop_core.model.descriptors import Descriptor, Opener
from hangtop_core.model.frame import Frame
from hangtop_core.model.node.check import Clock
from hangtop_core.model.snapshot import Local
from hangtop_core.nettest.answers import Link, Opened, Torch
from hangtop_core.nettest.facts import JobRun, Level, Pair, Spot, Way
from hangtop_core.tools.strace import Row
from hangtop_core.tools.strace_files import StraceResult


class DoctorRung(Struct):
    """One check."""

    name: str
    state: Literal["ok", "warning", "missing", "not-applicable", "not-reached"]
    matters: bool
    """Whether ranks are invisible without it."""
    text: str
    """The result; the same text on nodes with the same result."""
    detail: str | None
    """Details of this node."""
    fix: str | None


class DoctorNode(Struct):
    """One node, from its name to its clock."""

    node: str
    ok: bool
    answered: bool
    rungs: tuple[DoctorRung, ...]


class Doctor(Struct):
    """`hangtop doctor --json`."""

    schema: Literal["hangtop.doctor/1"]
    hangtop: str
    at: float
    ok: bool
    """Whether the exit status is 0."""
    exit_status: int
    nodes: tuple[DoctorNode, ...]


class CleanedNode(Struct):
    """What was removed on one node; a node that was not reached has only `failed`."""

    node: str
    failed: str | None
    """Why it was not reached."""
    path: str | None = None
    """This user's cache on the node."""
    removed: int | None = None
    """Number of files and directories removed."""
    removed_bytes: int | None = None
    """Bytes freed."""
    left: tuple[str, ...] | None = None
    """Paths that were not removed."""
    why: str | None = None
    """Why they were not removed."""
    rooms: int | None = None
    """Number of directories of killed steps removed from /tmp."""


class DoctorClean(Struct):
    """`hangtop doctor --clean --json`."""

    schema: Literal["hangtop.doctor.clean/1"]
    exit_status: int
    nodes: tuple[CleanedNode, ...]
    """Reached nodes first."""


class CoreFileThread(Struct):
    """A thread in a core."""

    tid: int
    name: str | None
    gil: bool
    got_signal: bool
    frames: tuple[Frame, ...]
    """Innermost first, Python and native ones."""
    locals: tuple[tuple[Local, ...], ...]
    """For each frame, with `--locals`."""


class CoreFile(Struct):
    """One core."""

    path: str
    size: int
    written_at: float
    rank: int | None
    local_rank: int | None
    world_size: int | None
    node: str | None
    role: str
    """`rank`, `dataloader-worker`, `process`, or `unknown` where the environment is missing."""
    pid: int
    uid: int | None
    command: str
    executable: str | None
    signal: int
    how: str
    """The signal in words."""
    explanations: tuple[Explanation, ...]
    problems: tuple[str, ...]
    """What could not be read, and why."""
    python_read_by: str | None
    """`pystack` or `py-spy`."""
    threads: tuple[CoreFileThread, ...]
    """The thread that got the signal first."""


class UnreadFile(Struct):
    """A file that is not a core, or cannot be read."""

    path: str
    why: str


class Cores(Struct):
    """`hangtop core --json`."""

    schema: Literal["hangtop.core/1"]
    cores: tuple[CoreFile, ...]
    unread: tuple[UnreadFile, ...]


class CoreTaken(Struct):
    """`hangtop core --take --json`."""

    schema: Literal["hangtop.core-taken/1"]
    rank: int | None
    """Null where its number is unknown."""
    node: str
    pid: int
    taken: Taken


class NetNode(Struct):
    """Facts about one node."""

    node: str
    missing: str | None
    """Why it was not reached."""
    failed: str | None
    """Why it could not do a part of the test."""
    hostname: str | None
    tested_at: Spot | None
    interfaces: tuple[Link, ...]
    default_interface: str | None
    clock: Clock | None
    """Its offset from the clock of the machine that started the test."""
    settings: dict[str, str]
    """Environment variables that choose interfaces, as set on the node."""
    names: dict[str, tuple[str, ...] | str]
    """What it resolves each name to: addresses, or a text that says why there are none."""
    reverse: dict[str, str | None]
    """Names by address."""
    sources: dict[str, str]
    """Its own source address for each address."""
    ports: tuple[Opened, ...]
    strangers: int
    """Number of connections without the token of the test."""
    torch: Torch | None
    no_torch: str | None
    """Why it has no torch to test with."""
    left_out_of_jobs: str | None


class Finding(Struct):
    """A problem or a noteworthy fact: the nodes, the evidence, and what to do."""

    cause: str
    level: Level
    summary: str
    nodes: tuple[str, ...]
    pairs: tuple[Pair, ...]
    """Source and destination, where it is about connections."""
    evidence: tuple[str, ...]
    next_steps: tuple[str, ...]


class Nettest(Struct):
    """`hangtop nettest --json`; [nettest.md](nettest.md) says what is tested."""

    schema: Literal["hangtop.nettest/1"]
    hangtop: str
    at: float
    ok: bool
    exit_status: int
    port: int
    took_s: float
    interrupted: bool
    findings: tuple[Finding, ...]
    """Worst first."""
    nodes: tuple[NetNode, ...]
    ways: tuple[Way, ...]
    """Every connection that was tried."""
    jobs: tuple[JobRun, ...]
    pairs: tuple[JobRun, ...]
    """Jobs of two nodes or GPUs."""
    alone: tuple[JobRun, ...]
    """Jobs of one GPU each."""


class StraceRow(Row, kw_only=True):
    """Calls of one kind."""

    other_end: str | None
    """The other end of the socket: `rank 1 on gpu07`."""


class StraceRank(Struct):
    """One rank's calls."""

    rank: int | None
    """Null where its number is unknown."""
    node: str
    pid: int
    calls: tuple[StraceRow, ...]
    error: str | None
    saved: StraceResult | None
    """Where all lines are saved, and how the trace ended."""


class Strace(Struct):
    """`hangtop strace --json`."""

    schema: Literal["hangtop.strace/1"]
    hangtop: str
    ranks: tuple[StraceRank, ...]


class OpenDescriptor(Descriptor, frozen=True, kw_only=True):
    """An open descriptor."""

    other_end: str | None
    """The other end of a socket."""
    moves: bool | None = None
    """Whether its position changed within a second; null where it has none."""


class OpenFile(Opener, frozen=True, kw_only=True):
    """A descriptor of another process for the same file, pipe or socket."""

    whose: str
    """The process, for people."""


class Files(Struct):
    """`hangtop files --json`: a rank's descriptors, or the processes that have one of them open."""

    schema: Literal["hangtop.files/1"]
    hangtop: str
    rank: int | None = None
    """Set without a descriptor."""
    node: str | None = None
    descriptors: tuple[OpenDescriptor, ...] | None = None
    """Without a descriptor: all open descriptors of the rank."""
    target: str | None = None
    """With a descriptor: its target."""
    holders: tuple[OpenFile, ...] | None = None
    """With a descriptor: other processes that have it open."""
    more: int | None = None
    """Number of further processes that are not listed."""
    hidden: int | None = None
    """Number of processes whose descriptors may not be read."""


class Captured(Struct):
    """`hangtop capture --json`: what was written. [capture.md](capture.md) describes the file."""

    schema: Literal["hangtop.captured/1"]
    path: str
    bytes: int
    header: Header
    """The first line of the file."""


class RunEnvironment(Struct):
    """`hangtop run --print-env --json`."""

    schema: Literal["hangtop.run-env/1"]
    environment: dict[str, str]
    """Variables to start the job with."""
