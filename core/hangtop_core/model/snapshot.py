"""The nouns of hangtop: frozen structs that every room speaks.

What nodes tell is decoded into these types, with limits; they hold facts, and do not judge. Here
are nodes, ranks and jobs, and all of which those are made.

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
"""Launchers that are programs with a part in the job: an engine, an API server, a driver."""
NodeState = Literal[
    "connecting", "ready", "slow", "unreachable", "denied", "no-python", "incompatible", "lost"
]

ENDED = frozenset({"exited", "zombie"})
"""States of a process that has left, or of which only the exit status is left."""


class Fact(Struct, frozen=True, gc=False):
    """Whether something can be used on a node, and if not, why and how to change that."""

    ok: bool
    version: Text | None = None
    path: Text | None = None
    why: Text | None = None
    fix: Text | None = None


class Node(Struct, frozen=True, gc=False):
    """One machine, as its probe describes it. Nothing here is present before `ready`."""

    name: Text
    state: NodeState = "connecting"
    via: Text | None = None  # ssh, srun, this machine
    reason: Text | None = None
    fix: Text | None = None
    """The command or option that would change the state, where one is known."""
    since: float = 0.0
    last_seen: float | None = None
    latency_s: float | None = None
    generation: int = 0
    """How many times the connection was started again."""
    shell: Text | None = None
    """What runs a command there by hand, given as one quoted word; None for this machine."""
    options: Text = ""
    """Options with which hangtop reaches it; none for this machine."""
    noise_lines: int = 0
    """Lines that were not ours (banners, rc-file output); `noise` has the last, cleaned."""
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
    """Percent of the last 10 s in which nothing could run for want of memory (Linux PSI)."""
    io_full: float | None = None
    """The same for want of a disk."""
    oom_kills: int | None = None
    """Processes that the kernel has killed for want of memory since boot."""
    oom_killed_at: float | None = None
    """When that number was last seen to grow."""
    cgroups: Annotated[tuple[Cgroup, ...], Meta(max_length=256)] = ()
    """Those of its processes, and those above that have something to tell."""
    kernel_lines: tuple[KernelLine, ...] = ()
    """Telling lines of the kernel log, oldest first; `capabilities` says when it is unreadable."""
    mounts: tuple[Mount, ...] = ()
    full_mounts: tuple[Text, ...] = ()
    no_inodes: tuple[Text, ...] = ()
    """Those of them that may have space, and no room for one more file."""
    full_quotas: Annotated[tuple[FullQuota, ...], Meta(max_length=256)] = ()
    """Of the users and groups of its processes, on local file systems."""
    addresses: tuple[Text, ...] = ()
    """IP addresses others may reach it by, without loopback and link-local ones."""
    capabilities: Mapping[str, Fact] = field(default_factory=dict)
    """By name, as in the probe's hello."""
    probe_cpu: float | None = None
    """Fraction of one core the probe has used since it started."""
    nvml: Nvml | None = None
    """NVIDIA's driver; None until it was asked, which is not done where there is none."""
    gpus: tuple[Gpu, ...] = ()  # by index
    nics: tuple[Nic, ...] = ()  # by name
    processes: int | None = None
    """How many processes the probe saw on the node."""
    python_processes: tuple[Text, ...] = ()
    """Python processes that are no rank, as `pid 4711: python serve.py`: found instead."""
    other_users: Mapping[str, int] = field(default_factory=dict)
    """Rank-like processes of other users that were left out: user name to count."""

    @property
    def cause(self) -> str:
        """Why it is in its state, without what changes from second to second."""
        return (self.reason or "").partition("; connecting again")[0]


class Rank(Struct, frozen=True, gc=False):
    """One rank: its process, what it is made of, and what was sampled of it."""

    rank: int
    """The global rank; below any where nothing tells it: see `rank_sets.rank_key`."""
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
    """What NCCL's RAS reported when it was asked through this rank: of the whole job."""
    numerics: Numerics | None = None
    """What it has found that is not finite, where it looks for that (`hangtop run`)."""
    moved_at: float | None = None
    """When the main thread was last known to run: from the scheduler, else from counters."""
    left_at: float | None = None
    """When it last ran and was not only sent back into its wait, as by a tool that held it."""
    waits: tuple[Wait, ...] = ()
    """The last waits of its main thread that took seconds and have ended, oldest first."""
    given: tuple[float, ...] = ()
    """When its main thread last read anything, however little, oldest first."""
    worked_at: float | None = None
    """When it last used over 2 ms of a CPU between two readings: work, no mere wake-up."""
    slept: tuple[Thread, float] | None = None
    """Its main thread when it was last met asleep: one that runs does not tell what it does."""
    computed_at: float | None = None
    """When it was last seen to compute between sleeps, and not only to look for something."""
    io_moved_at: float | None = None
    """When its read or write byte counters last moved by more than noise, its own log apart."""
    printed_at: float | None = None
    """When its main thread was last seen to write, and its log to grow."""
    wrote_at: float | None = None
    """When it last wrote much: a log line now and then is not."""
    read_at: float | None = None
    """Likewise when it last read much."""
    file_moved_at: float | None = None
    """When its position in `Process.file` last moved by more than noise."""
    file_rate: float | None = None  # bytes a second, at `file_moved_at`
    flowed_at: Mapping[int, float] = field(default_factory=dict)
    """When threads of it, and of its children, last got on in a connection, by thread id."""
    cpu_share: float | None = None
    """Cores used by the whole process over the last ticks."""
    main_cpu_share: float | None = None
    """Of that, the main thread."""
    lately: Lately | None = None
    """The same, and how often it left its wait, over several steps."""

    @property
    def name(self) -> str:
        """`rank 2`, `rank ? (pid 4711, VLLM::Worker_TP1)`, or `process 4711 (web.py)`.

        Of a controller of a job `VLLM::EngineCore (pid 4711)`.
        """
        if self.process.role == "launcher":
            return f"{clean(self.process.label, 60)} (pid {self.process.pid})"
        return rank_name(self.rank, self.about)

    @property
    def place(self) -> str:
        """The same with where it is: `rank 2 (gpu03, pid 4711)`."""
        process = self.process
        return rank_name(self.rank, self.about, node=clean(self.node), pid=process.pid)

    @property
    def about(self) -> str:
        """What tells it from others where it has no number: its title, GPU or script."""
        return self.process.about if is_key(self.rank) else ""

    @property
    def number(self) -> int | None:
        """The global rank; None where nothing tells it."""
        return None if is_key(self.rank) else self.rank

    @property
    def ended(self) -> bool:
        """Whether its process has left, or is a zombie."""
        return self.state in ENDED

    @property
    def opened(self) -> tuple[Descriptor, ...]:
        """What it has open, as far as that was read."""
        return self.descriptors.descriptors if self.descriptors is not None else ()

    @property
    def data_at(self) -> float | None:
        """When it last read, wrote or printed anything, as far as any of these tells."""
        return latest((self.io_moved_at, self.printed_at, self.wrote_at, self.file_moved_at))

    @property
    def local_rank(self) -> int | None:
        """Rank on its node, from the environment; None when not told."""
        return number_in(self.process.env, LOCAL_RANKS)


def pids_of(ranks: Iterable[Rank]) -> dict[str, list[int]]:
    """Pids of ranks, by node."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        found.setdefault(rank.node, []).append(rank.process.pid)
    return found


class Left(Struct, frozen=True, gc=False):
    """A rank of an earlier attempt, which has left."""

    node: Text
    pid: int
    start: int
    rank: int | None
    at: float
    """When it was first seen to be gone."""
    exit_code: int | None = None

    @property
    def identity(self) -> tuple[str, int, int]:
        """As `Process.identity`."""
        return self.node, self.pid, self.start


class Job(Struct, frozen=True):
    """Ranks that belong together, their launchers, and who is missing."""

    key: str
    """Stable while the job runs; made of run id, master address and port."""
    name: Text
    launcher: Text | None
    id: Text | None
    """Run id of torchrun, or Slurm job id."""
    world_size: int | None
    master: Text | None
    ranks: tuple[Rank, ...] = ()
    """Ascending by rank; a rank seen twice stands twice."""
    launchers: tuple[Process, ...] = ()
    launcher_samples: Mapping[str, StackSample] = field(default_factory=dict)
    """By `NODE:PID`; see `launcher_sample`."""
    launcher_descriptors: Mapping[str, DescriptorTable] = field(default_factory=dict)
    """What launchers have open, as far as that was read: likewise."""
    unnumbered: tuple[Process, ...] = ()
    """Processes that may be ranks, of which nothing can be read, with `denied`."""
    nodes: tuple[Text, ...] = ()
    hosts: tuple[Text, ...] = ()
    """Its nodes by node rank, where the environment of its ranks tells (Slurm)."""
    former: tuple[Left, ...] = ()
    """Ranks of earlier attempts, in the order in which they left, the last of them."""
    slurm_end: Text = ""
    """How Slurm ended it, as Slurm tells: `cancelled with scancel`; empty where it did not."""

    @property
    def controllers(self) -> tuple[Rank, ...]:
        """Launchers that are programs with a part in the job, looked at as ranks are."""
        some = (one for one in self.launchers if one.launcher in CONTROL)
        return tuple(
            Rank(
                rank=one.number,
                node=one.node,
                state=rank_state(one),
                process=one,
                sample=self.launcher_sample(one),
                descriptors=self.launcher_table(one),
            )
            for one in some
        )

    @property
    def members(self) -> tuple[Rank, ...]:
        """Its ranks, and its controllers after them."""
        return (*self.ranks, *controllers) if (controllers := self.controllers) else self.ranks

    def pids(self) -> dict[str, list[int]]:
        """Pids of its ranks that have not ended, by node."""
        return pids_of(rank for rank in self.ranks if not rank.ended)

    def launcher_sample(self, launcher: Process) -> StackSample | None:
        """What was sampled of one of its launchers."""
        return self.launcher_samples.get(f"{launcher.node}:{launcher.pid}")

    def launcher_table(self, launcher: Process) -> DescriptorTable | None:
        """What one of its launchers has open."""
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
    """Frames innermost first, by key; every stack once, however many ranks share it."""
    outputs: tuple[Output, ...] = ()
    """Log files that were read: what ranks and launchers have printed."""

    def job(self, key: str | None) -> Job | None:
        """The job with this key; with None the first one."""
        return next((job for job in self.jobs if key in (None, job.key)), None)
