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
    """One thing that was tried."""

    name: str
    state: Literal["ok", "warning", "missing", "not-applicable", "not-reached"]
    matters: bool
    """Whether ranks cannot be seen without it."""
    text: str
    """The same words on nodes where the same holds."""
    detail: str | None
    """What is particular to the node."""
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
    """What was removed on one node; of one that was not reached only `failed` is there."""

    node: str
    failed: str | None
    """Why it was not reached."""
    path: str | None = None
    """The cache of this user there."""
    removed: int | None = None
    """How many files and directories were removed."""
    removed_bytes: int | None = None
    """How much they held."""
    left: tuple[str, ...] | None = None
    """What was not removed."""
    why: str | None = None
    """Why not."""
    rooms: int | None = None
    """How many directories of killed steps were removed from /tmp."""


class DoctorClean(Struct):
    """`hangtop doctor --clean --json`."""

    schema: Literal["hangtop.doctor.clean/1"]
    exit_status: int
    nodes: tuple[CleanedNode, ...]
    """Those that were reached first."""


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
    """The one that got the signal first."""


class UnreadFile(Struct):
    """A file that is no core, or cannot be read."""

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
    """Null where nothing tells its number."""
    node: str
    pid: int
    taken: Taken


class NetNode(Struct):
    """What is known of one node."""

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
    """How far it is ahead of that of the machine the test was begun on."""
    settings: dict[str, str]
    """Variables that choose interfaces, as they are set there."""
    names: dict[str, tuple[str, ...] | str]
    """What it makes of each name: addresses, or a text that says why there are none."""
    reverse: dict[str, str | None]
    """Names by address."""
    sources: dict[str, str]
    """Its own address on the way to each address."""
    ports: tuple[Opened, ...]
    strangers: int
    """Callers that did not know the token of the test."""
    torch: Torch | None
    no_torch: str | None
    """Why it has no torch to test with."""
    left_out_of_jobs: str | None


class Finding(Struct):
    """One thing that is wrong, or worth knowing: who, by which signs, and what to do."""

    cause: str
    level: Level
    summary: str
    nodes: tuple[str, ...]
    pairs: tuple[Pair, ...]
    """From whom to whom, where it is about ways."""
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
    """Whose the other end of the socket is: `rank 1 on gpu07`."""


class StraceRank(Struct):
    """One rank's calls."""

    rank: int | None
    """Null where nothing tells its number."""
    node: str
    pid: int
    calls: tuple[StraceRow, ...]
    error: str | None
    saved: StraceResult | None
    """Where every line is, and how the trace ended."""


class Strace(Struct):
    """`hangtop strace --json`."""

    schema: Literal["hangtop.strace/1"]
    hangtop: str
    ranks: tuple[StraceRank, ...]


class OpenDescriptor(Descriptor, frozen=True, kw_only=True):
    """An open descriptor."""

    other_end: str | None
    """Whose the other end of a socket is."""
    moves: bool | None = None
    """Whether its position changed within a second; null where it has none."""


class OpenFile(Opener, frozen=True, kw_only=True):
    """A descriptor of another process that leads to the same."""

    whose: str
    """What that process is, for people."""


class Files(Struct):
    """`hangtop files --json`: of a rank, or with a descriptor of who else has it open."""

    schema: Literal["hangtop.files/1"]
    hangtop: str
    rank: int | None = None
    """Without a descriptor."""
    node: str | None = None
    descriptors: tuple[OpenDescriptor, ...] | None = None
    """Without a descriptor: all that the rank has open."""
    target: str | None = None
    """Of a descriptor: what it leads to."""
    holders: tuple[OpenFile, ...] | None = None
    """Of a descriptor: who else has it open."""
    more: int | None = None
    """Others that were not listed."""
    hidden: int | None = None
    """Processes whose descriptors may not be read."""


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
