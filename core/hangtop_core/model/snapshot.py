"""The nouns of hangtop: frozen structs that all packages share.

Reports of nodes are decoded into these types, with limits; they hold facts, and do not judge. This
module defines nodes, ranks and jobs, and imports the types they are made of.

Times are seconds since the epoch on the head node's clock unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hangtop_core.model.activity_window import Lately
from hangtop_core.model.descriptors import Descriptor, Mount
from hangtop_core.model.descriptors import DescriptorTable as DescriptorTable
from hangtop_core.model.descriptors import Failure as Failure
from hangtop_core.model.frame import Frame as Frame
from hangtop_core.model.meters import latest
from hangtop_core.model.node.cgroups import Cgroup
from hangtop_core.model.node.facts import FullQuota, KernelLine
from hangtop_core.model.node.hardware import Gpu, Nic, Nvml
from hangtop_core.model.numerics import Numerics
from hangtop_core.model.output import Output
from hangtop_core.model.process import Process as Process
from hangtop_core.model.process import Role as Role
from hangtop_core.model.process import Thread as Thread
from hangtop_core.model.rankstates import RankState, rank_state
from hangtop_core.model.recorder.ras import Ras
from hangtop_core.model.recorder.recorder import Recorder as Recorder
from hangtop_core.model.recorder.recorder import RecorderWay as RecorderWay
from hangtop_core.model.recurring import Wait
from hangtop_core.model.samples import Local as Local
from hangtop_core.model.samples import StackSample as StackSample
from hangtop_core.model.samples import ThreadStack as ThreadStack
from hangtop_core.text.clean import Text, clean
from hangtop_core.text.launchers import LOCAL_RANKS, number_in
from hangtop_core.text.rank_sets import is_key, rank_name

CONTROL = frozenset({"multiprocessing", "Ray", "deepspeed"})
"""Launchers that are themselves part of the job: an engine, an API server, a driver."""
NodeState = Literal[
    "connecting", "ready", "slow", "unreachable", "denied", "no-python", "incompatible", "lost"
]

ENDED = frozenset({"exited", "zombie"})
"""States of a process that exited, or of a zombie."""


class Fact(Struct, frozen=True, gc=False):
    """Whether a capability can be used on a node; if not, why, and the fix."""

    ok: bool
    version: Text | None = None
    path: Text | None = None
    why: Text | None = None
    fix: Text | None = None


class Node(Struct, frozen=True, gc=False):
    """One machine, as its probe describes it. No field is set before `ready`."""

    name: Text
    state: NodeState = "connecting"
    via: Text | None = None  # ssh, srun, this machine
    reason: Text | None = None
    fix: Text | None = None
    """The command or option that would change the state, where known."""
    since: float = 0.0
    last_seen: float | None = None
    latency_s: float | None = None
    generation: int = 0
    """How many times the connection was restarted."""
    shell: Text | None = None
    """Command line that runs a command on the node, given as one quoted word; None for this
    machine."""
    options: Text = ""
    """Options with which hangtop reaches the node; none for this machine."""
    noise_lines: int = 0
    """Lines that were not the probe's (banners, rc-file output); `noise` has the last ones,
    cleaned."""
    noise: tuple[Text, ...] = ()
    hostname: Text | None = None
    system: Text | None = None
    arch: Text | None = None
    python: Text | None = None
    user: Text | None = None
    uid: int | None = None
    boot_id: Text | None = None
    pid_ns: int | None = None
    """Inode of the probe's PID namespace: in another one, numbers mean other processes."""
    clock_skew_s: float | None = None
    cpus: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    load1: float | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    memory_full: float | None = None
    """Percent of the last 10 s in which nothing could run because memory was short (Linux PSI)."""
    io_full: float | None = None
    """Percent of the last 10 s in which nothing could run because of I/O (Linux PSI)."""
    oom_kills: int | None = None
    """Processes that the OOM killer has ended since boot."""
    oom_killed_at: float | None = None
    """When that number was last seen to grow."""
    cgroups: Annotated[tuple[Cgroup, ...], Meta(max_length=256)] = ()
    """Cgroups of its processes, and those above that have something to report."""
    kernel_lines: tuple[KernelLine, ...] = ()
    """Relevant lines of the kernel log, oldest first; `capabilities` says when it is unreadable."""
    mounts: tuple[Mount, ...] = ()
    full_mounts: tuple[Text, ...] = ()
    no_inodes: tuple[Text, ...] = ()
    """Mount points whose inodes are used up; they may still have space."""
    full_quotas: Annotated[tuple[FullQuota, ...], Meta(max_length=256)] = ()
    """Exhausted quotas of the users and groups of its processes, on local file systems."""
    addresses: tuple[Text, ...] = ()
    """IP addresses by which other nodes may reach it, without loopback and link-local ones."""
    capabilities: Mapping[str, Fact] = field(default_factory=dict)
    """Capabilities by name, as in the probe's hello."""
    probe_cpu: float | None = None
    """Fraction of one core that the probe has used since it started."""
    nvml: Nvml | None = None
    """State of NVIDIA's driver; None until the node answered, which happens only where there is
    one."""
    gpus: tuple[Gpu, ...] = ()  # by index
    nics: tuple[Nic, ...] = ()  # by name
    processes: int | None = None
    """How many processes the probe saw on the node."""
    python_processes: tuple[Text, ...] = ()
    """Python processes that are no rank, as `pid 4711: python serve.py`."""
    other_users: Mapping[str, int] = field(default_factory=dict)
    """Rank-like processes of other users that were left out: user name to count."""

    @property
    def cause(self) -> str:
        """Return the reason of its state, without the parts that change every second."""
        return (self.reason or "").partition("; connecting again")[0]


class Rank(Struct, frozen=True, gc=False):
    """One rank: its process and children, and the readings and samples of them."""

    rank: int
    """The global rank; a stand-in below all ranks where it is unknown: see `rank_sets.rank_key`."""
    node: Text
    state: RankState
    process: Process
    children: tuple[Process, ...] = ()
    sample: StackSample | None = None
    child_samples: Mapping[int, StackSample] = field(default_factory=dict)  # by pid of the child
    child_moved_at: Mapping[int, float] = field(default_factory=dict)
    """When the main thread of each child was last known to run, by pid, as `moved_at`."""
    child_left_at: Mapping[int, float] = field(default_factory=dict)  # likewise, as `left_at`
    child_io_moved_at: Mapping[int, float] = field(default_factory=dict)  # as `io_moved_at`
    child_much_at: Mapping[int, float] = field(default_factory=dict)  # `wrote_at` or `read_at`
    child_given: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # as `given`
    child_cpu_share: Mapping[int, float] = field(default_factory=dict)  # likewise
    child_descriptors: Mapping[int, DescriptorTable] = field(default_factory=dict)  # likewise
    descriptors: DescriptorTable | None = None
    recorder: Recorder | None = None
    ras: Ras | None = None
    """The report of NCCL's RAS that was requested through this rank, about the whole job."""
    numerics: Numerics | None = None
    """Non-finite values that the rank detected, where it checks for them (`hangtop run`)."""
    moved_at: float | None = None
    """When the main thread was last known to run: from the scheduler, else from counters."""
    left_at: float | None = None
    """When it last ran, without returns into the same wait as after a tool stopped it."""
    waits: tuple[Wait, ...] = ()
    """The last waits of its main thread that took seconds and have ended, oldest first."""
    given: tuple[float, ...] = ()
    """When its main thread last read data, however little, oldest first."""
    worked_at: float | None = None
    """When it last used over 2 ms of a CPU between two readings: work, not a mere wake-up."""
    slept: tuple[Thread, float] | None = None
    """Its main thread when last seen asleep: a running thread has no system call to show."""
    computed_at: float | None = None
    """When it was last seen to compute between sleeps, and not only to poll."""
    io_moved_at: float | None = None
    """When its read or write byte counters last moved by more than noise, its own log apart."""
    printed_at: float | None = None
    """When its main thread was last seen to write, and its log to grow."""
    wrote_at: float | None = None
    """When it last wrote much; an occasional log line is not much."""
    read_at: float | None = None
    """When it last read much."""
    file_moved_at: float | None = None
    """When its position in `Process.file` last moved by more than noise."""
    file_rate: float | None = None  # bytes a second, at `file_moved_at`
    flowed_at: Mapping[int, float] = field(default_factory=dict)
    """When its threads, and those of its children, last made progress in a connection, by thread
    id."""
    cpu_share: float | None = None
    """Cores that the whole process used over the last ticks."""
    main_cpu_share: float | None = None
    """Cores that the main thread used over the last ticks."""
    lately: Lately | None = None
    """CPU use, and how often the main thread left its wait, over several steps."""

    @property
    def name(self) -> str:
        """Return `rank 2`, `rank ? (pid 4711, VLLM::Worker_TP1)`, or `process 4711 (web.py)`.

        Return `VLLM::EngineCore (pid 4711)` for a controller of a job.
        """
        if self.process.role == "launcher":
            return f"{clean(self.process.label, 60)} (pid {self.process.pid})"
        return rank_name(self.rank, self.about)

    @property
    def place(self) -> str:
        """Return the name with node and pid: `rank 2 (gpu03, pid 4711)`."""
        process = self.process
        return rank_name(self.rank, self.about, node=clean(self.node), pid=process.pid)

    @property
    def about(self) -> str:
        """Return a label for a rank without a number: its title, GPU or script."""
        return self.process.about if is_key(self.rank) else ""

    @property
    def number(self) -> int | None:
        """Return the global rank; None where it is unknown."""
        return None if is_key(self.rank) else self.rank

    @property
    def ended(self) -> bool:
        """Return whether its process has exited or is a zombie."""
        return self.state in ENDED

    @property
    def opened(self) -> tuple[Descriptor, ...]:
        """Return its open descriptors, as far as they were read."""
        return self.descriptors.descriptors if self.descriptors is not None else ()

    @property
    def data_at(self) -> float | None:
        """Return when it last read, wrote or printed data, as far as known."""
        return latest((self.io_moved_at, self.printed_at, self.wrote_at, self.file_moved_at))

    @property
    def local_rank(self) -> int | None:
        """Return the rank on its node, from the environment; None where that has none."""
        return number_in(self.process.env, LOCAL_RANKS)


def pids_of(ranks: Iterable[Rank]) -> dict[str, list[int]]:
    """Return the pids of ranks by node."""
    pids: dict[str, list[int]] = {}
    for rank in ranks:
        pids.setdefault(rank.node, []).append(rank.process.pid)
    return pids


class Left(Struct, frozen=True, gc=False):
    """A rank of an earlier attempt, which has exited."""

    node: Text
    pid: int
    start: int
    rank: int | None
    at: float
    """When it was first seen to be gone."""
    exit_code: int | None = None

    @property
    def identity(self) -> tuple[str, int, int]:
        """Return the identity of the process, as `Process.identity`."""
        return self.node, self.pid, self.start


class Job(Struct, frozen=True):
    """Ranks that belong together, their launchers, and the missing ranks."""

    key: str
    """Stable while the job runs; made of run id, master address and port."""
    name: Text
    launcher: Text | None
    id: Text | None
    """Run id of torchrun, or Slurm job id."""
    world_size: int | None
    master: Text | None
    ranks: tuple[Rank, ...] = ()
    """Ranks in ascending order; a rank that two processes claim is listed twice."""
    launchers: tuple[Process, ...] = ()
    launcher_samples: Mapping[str, StackSample] = field(default_factory=dict)
    """Samples of launchers by `NODE:PID`; see `launcher_sample`."""
    launcher_descriptors: Mapping[str, DescriptorTable] = field(default_factory=dict)
    """Descriptors of launchers by `NODE:PID`, as far as they were read."""
    unnumbered: tuple[Process, ...] = ()
    """Processes that may be ranks but cannot be read; `denied` says why."""
    nodes: tuple[Text, ...] = ()
    hosts: tuple[Text, ...] = ()
    """Its nodes by node rank, where the environment of its ranks has them (Slurm)."""
    former: tuple[Left, ...] = ()
    """The last exited ranks of earlier attempts, in the order in which they exited."""
    slurm_end: Text = ""
    """How Slurm ended the job, in Slurm's words: `cancelled with scancel`; empty where it did
    not."""

    @property
    def controllers(self) -> tuple[Rank, ...]:
        """Return the launchers that are part of the job, as ranks."""
        controllers = (launcher for launcher in self.launchers if launcher.launcher in CONTROL)
        return tuple(
            Rank(
                rank=launcher.number,
                node=launcher.node,
                state=rank_state(launcher),
                process=launcher,
                sample=self.launcher_sample(launcher),
                descriptors=self.launcher_table(launcher),
            )
            for launcher in controllers
        )

    @property
    def members(self) -> tuple[Rank, ...]:
        """Return its ranks, and its controllers after them."""
        return (*self.ranks, *controllers) if (controllers := self.controllers) else self.ranks

    def pids(self) -> dict[str, list[int]]:
        """Return the pids of its ranks that have not ended, by node."""
        return pids_of(rank for rank in self.ranks if not rank.ended)

    def launcher_sample(self, launcher: Process) -> StackSample | None:
        """Return the stack sample of one of its launchers."""
        return self.launcher_samples.get(f"{launcher.node}:{launcher.pid}")

    def launcher_table(self, launcher: Process) -> DescriptorTable | None:
        """Return the descriptors of one of its launchers."""
        return self.launcher_descriptors.get(f"{launcher.node}:{launcher.pid}")


class Snapshot(Struct, frozen=True):
    """Everything known at one moment: the only input of analysis, capture and screens."""

    at: float
    observed_since: float
    tick: int
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    """Own jobs, the largest and newest first."""
    stacks: Mapping[str, tuple[Frame, ...]] = field(default_factory=dict)
    """Frames by key, innermost first; each stack once, however many ranks share it."""
    outputs: tuple[Output, ...] = ()
    """Log files that were read: the output of ranks and launchers."""

    def job(self, key: str | None) -> Job | None:
        """Return the job with this key; without a key the first one."""
        return next((job for job in self.jobs if key in (None, job.key)), None)
