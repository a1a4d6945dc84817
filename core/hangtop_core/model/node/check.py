"""The results of examining a node: the way to it, and what its probe tried."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from hangtop_core.model.snapshot import Failure, Node, RecorderWay
from hangtop_core.text.clean import Count, Text

_Small = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Way(Struct, frozen=True):
    """How far a connection to the node gets without logging in, by the user's ssh configuration."""

    host: str
    port: int
    through: str | None = None
    """A jump host or proxy command: then nothing was tried from here."""
    addresses: tuple[str, ...] = ()
    unresolved: str | None = None
    refused: str | None = None
    """Why no connection to the port could be made."""
    took: float | None = None
    """Seconds a connection to the port took; None without a connection."""


class Python(Struct, frozen=True):
    """The Python that runs the probe."""

    version: Text = ""
    path: Text = ""


class Source(Struct, frozen=True):
    """Where each component is used from: installed, shared, cache or memory."""

    probe: Text | None = None
    py_spy: Text | None = None
    sent: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    """Components that had to be sent."""


class Cache(Struct, frozen=True):
    """The user's cache on the node; sizes in bytes."""

    path: Text | None = None
    why: Text | None = None
    """Why something could not be kept there."""
    entries: Count = 0
    bytes: Count = 0
    free: Count | None = None
    swept: Count = 0
    """Old versions removed since the probe started."""


class Rights(Struct, frozen=True):
    """Rights of the probe."""

    uid: int = -1
    user: Text = "?"
    capable: bool = False
    """Whether it has CAP_SYS_PTRACE."""
    seccomp: _Small | None = None
    """2 means a filter, as in containers (proc(5))."""


class PySpyTrial(Struct, frozen=True):
    """The result of py-spy on a process of hangtop's own."""

    took: float | None = None
    frames: Count | None = None
    failure: Failure | None = None


class Trial(Struct, frozen=True):
    """Which operations succeeded on a process of hangtop's own."""

    ptrace: _Small | None = None
    """0, an errno, or None where it could not be tried."""
    py_spy: PySpyTrial | None = None
    why: Text | None = None
    """Why there was no process to try it on."""


class Tool(Struct, frozen=True):
    """A program that was run on the node."""

    ok: bool = False
    path: Text | None = None
    version: Text | None = None
    why: Text | None = None


class Nvml(Struct, frozen=True):
    """The answer of NVIDIA's driver."""

    loaded: bool = False
    """Whether the kernel has loaded the driver."""
    missing: Text | None = None
    """Why its library cannot be loaded."""
    error: Text | None = None
    driver: Text | None = None
    gpus: Count | None = None


class Processes(Struct, frozen=True):
    """Visibility of the node's processes."""

    seen: Count = 0
    others: Count = 0
    """Number of these that belong to other users."""
    hidepid: Text | None = None
    sees_init: bool = True
    contained: bool = False
    """Whether the probe runs in a PID namespace of its own."""


class RankCheck(Struct, frozen=True):
    """One rank on the node, of any user."""

    pid: int
    rank: int | None = None
    uid: int = -1
    user: Text = "?"
    attach: bool = False
    """Whether the kernel would let the probe attach to it."""
    why: Text | None = None
    fix: Text | None = None
    core_size: Count | None = None
    """Its soft limit of core files; None is unlimited or unknown."""
    recorder: Annotated[tuple[RecorderWay, ...], Meta(max_length=64)] = ()
    """State of every way to its flight recorder."""


class Check(Struct, frozen=True):
    """The answer to `check`."""

    at: Annotated[float, Meta(ge=0, le=1e11)]
    python: Python = field(default_factory=Python)
    source: Source = field(default_factory=Source)
    cache: Cache = field(default_factory=Cache)
    rights: Rights = field(default_factory=Rights)
    trial: Trial = field(default_factory=Trial)
    strace: Tool = field(default_factory=Tool)
    gdb: Tool = field(default_factory=Tool)
    gdb_call: RecorderWay | None = None
    """Whether gdb may call into ranks: the way `inject`, with code `works` or the reason why
    not."""
    nvml: Nvml = field(default_factory=Nvml)
    processes: Processes = field(default_factory=Processes)
    ranks: Annotated[tuple[RankCheck, ...], Meta(max_length=1024)] = ()
    more_ranks: Count = 0


class Clock(Struct, frozen=True):
    """How far a node's clock is ahead of this machine's, in seconds."""

    ahead: float
    """Negative where the node's clock is behind."""
    within: float
    """Maximum error of `ahead`."""
    same: bool = False
    """Whether it is this machine's own clock."""


class Cleaned(Struct, frozen=True):
    """The answer to `clean`."""

    path: Text | None = None
    removed: Count = 0
    bytes: Count = 0
    left: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    why: Text | None = None
    rooms: Count = 0
    """Directories in /tmp left by steps that were killed."""


class Examined(Struct, frozen=True):
    """All results about one node."""

    node: Node
    here: bool = False
    """Whether the node is this machine, without a login."""
    way: Way | None = None
    check: Check | None = None
    clock: Clock | None = None
    failed: str | None = None
    """Why its probe did not answer the check."""
