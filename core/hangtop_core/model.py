"""The nouns of hangtop: frozen structs that every room speaks.

What nodes tell is decoded into these types, with limits; they hold facts, and do not judge.

Times are seconds since the epoch on the head node's clock unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hangtop_core.cgroups import Cgroup
from hangtop_core.descriptors import DescriptorTable as DescriptorTable
from hangtop_core.descriptors import Failure as Failure
from hangtop_core.descriptors import FilePosition, Mount
from hangtop_core.frame import Frame as Frame
from hangtop_core.hardware import Gpu, Nic, Nvml
from hangtop_core.kernelline import KernelLine
from hangtop_core.launchline import LOCAL_RANKS, number_in
from hangtop_core.limits import Limits
from hangtop_core.logs.output import Output
from hangtop_core.meters import Meters, Stalled
from hangtop_core.numerics import Numerics
from hangtop_core.ras import Ras
from hangtop_core.recorder import Recorder as Recorder
from hangtop_core.recorder import RecorderWay as RecorderWay
from hangtop_core.text import Text

NodeState = Literal[
    "connecting", "ready", "slow", "unreachable", "denied", "no-python", "incompatible", "lost"
]
RankState = Literal[
    "running", "sleeping", "disk-wait", "stopped", "traced", "zombie", "exited", "unknown"
]
Helper = Literal[
    "dataloader-worker", "resource-tracker", "forkserver", "compile-worker", "debug-server"
]
Role = Literal["rank", "launcher", "subprocess", Helper]


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
    """Command lines of Python processes that are no rank: what was found instead."""
    other_users: Mapping[str, int] = field(default_factory=dict)
    """Rank-like processes of other users that were left out: user name to count."""

    @property
    def cause(self) -> str:
        """Why it is in its state, without what changes from second to second."""
        return (self.reason or "").partition("; connecting again")[0]


class Thread(Struct, frozen=True, gc=False):
    """One thread as /proc/PID/task/TID shows it, with no attach."""

    tid: int
    name: Text
    state: str
    """One letter, as in /proc/PID/stat."""
    wchan: Text | None = None
    """Kernel function it sleeps in; None when running or not readable."""
    syscall: Text | None = None
    """System call name it is in; None when running or not readable."""
    fd: int | None = None
    """First argument of the system call, where that is a descriptor."""
    futex: Text | None = None
    """Address waited on, for futex: equal addresses in one process are one lock."""


class Process(Struct, frozen=True, gc=False):
    """One process the probe reports: a rank, its launcher or one of its children."""

    pid: int
    ppid: int
    start: int
    """Start time in clock ticks after boot: with the pid, the identity of a process."""
    started_at: float
    role: Role
    label: Text
    """What it is, for people: `rank 2`, `DataLoader worker 1`, `torchrun`."""
    state: str
    uid: int = -1
    user: Text = "?"
    comm: Text = ""
    cmdline: tuple[Text, ...] = ()
    """Secrets masked on the node."""
    cwd: Text | None = None
    exe: Text | None = None
    rank: int | None = None
    """The global rank it is, or the rank it belongs to."""
    rank_source: Text | None = None
    """Where the rank number is from: RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID, mp.spawn."""
    rank_pid: int | None = None
    """The rank process a child belongs to; for a rank its own pid."""
    launcher_pid: int | None = None
    launcher: Text | None = None
    """torchrun, accelerate, deepspeed, mpirun, srun, mp.spawn, or None."""
    worker_id: int | None = None
    """DataLoader worker id, when known."""
    env: Mapping[str, Text] = field(default_factory=dict)
    """Allow-listed variables only."""
    threads: tuple[Thread, ...] = ()
    thread_count: int | None = None
    meters: Meters = Meters()
    tracer_pid: int = 0
    tracer: Text | None = None
    """Name of the tracer's program."""
    cgroup: Text | None = None
    cgroup_folders: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    """Directories of the groups it is in that tell of memory and pressure."""
    cpu_quota: float | None = None
    """Cores that its cgroup, or one above, lets it use; None where there is no limit."""
    cpu_quota_of: Text | None = None
    """The directory of that cgroup below /sys/fs/cgroup."""
    cpu_throttled: float | None = None
    """Share of periods in which that had been used up before their end, since the last look."""
    dumping_core: bool = False
    frozen: bool = False
    frozen_by: Text | None = None
    """Directory of the group that was frozen: its own one, or one above."""
    net_ns: int | None = None
    """Its network namespace, by inode, where it is not the probe's: a container of its own."""
    versions: Mapping[str, Text] = field(default_factory=dict)
    """python, torch, cuda, hip, nccl; torch_folder where its files must not be read. Of ranks."""
    limits: Limits = Limits()
    stalled: tuple[Stalled, ...] = ()
    """Of ranks: TCP connections whose other end acknowledges nothing."""
    file: FilePosition | None = None  # of ranks
    flows: Annotated[tuple[tuple[int, int], ...], Meta(max_length=4096)] = ()
    """Threads that get on in a TCP connection that they wait on, and by how many bytes so far."""
    fd_count: int | None = None
    outputs: tuple[Text, ...] = ()
    """What descriptors 1 and 2 lead to."""
    denied: Text | None = None
    """Why some of this could not be read, with the fix."""
    exit_code: int | None = None
    """Exit status of a zombie or of a process we saw leave, negative for a signal."""
    gone_at: float | None = None
    node: Text = ""
    """Name of the node it is on; not the node's own word."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Node, pid and start time: no other process has, or had, all three."""
        return self.node, self.pid, self.start

    @property
    def ended(self) -> bool:
        """Whether it has left, or only waits for its parent to look after it."""
        return self.gone_at is not None or self.state[:1] in ("Z", "X", "x")


class Local(Struct, frozen=True, gc=False):
    """One local variable of a frame."""

    name: Text
    value: Text
    argument: bool = False


class ThreadStack(Struct, frozen=True, gc=False):
    """One thread's stack in a sample."""

    tid: int | None
    name: Text | None
    active: bool
    gil: bool
    stack: str
    """Key into `Snapshot.stacks`."""
    locals: tuple[tuple[Local, ...], ...] = ()
    """Per frame, innermost first; empty unless asked for."""


class StackSample(Struct, frozen=True, gc=False):
    """What py-spy saw of one process once, or why it saw nothing."""

    at: float
    took_s: float
    mode: Literal["nonblocking", "blocking", "native"]
    threads: tuple[ThreadStack, ...] = ()
    """Main thread first."""
    failure: Failure | None = None
    count: int = 1
    """Consecutive samples, this one included, whose main thread had the same stack."""
    same_since: float | None = None
    """When the main thread's present stack (functions and lines) was first seen."""
    same_functions_since: float | None = None
    """The same, looking at functions only: a loop moves its lines, not its functions."""
    first_at: float | None = None
    """When this process gave its first sample: what is the same since then never moved."""


class Rank(Struct, frozen=True, gc=False):
    """One rank: its process, what it is made of, and what was sampled of it."""

    rank: int
    node: Text
    state: RankState
    process: Process
    children: tuple[Process, ...] = ()
    sample: StackSample | None = None
    child_samples: Mapping[int, StackSample] = field(default_factory=dict)  # by pid of the child
    child_moved_at: Mapping[int, float] = field(default_factory=dict)
    """When the main thread of each child was last known to run, by pid, as `moved_at`."""
    child_left_at: Mapping[int, float] = field(default_factory=dict)  # likewise, as `left_at`
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
    worked_at: float | None = None
    """When it last used over 2 ms of a CPU between two readings: work, no mere wake-up."""
    computed_at: float | None = None
    """When it was last seen to compute between sleeps, and not only to look for something."""
    io_moved_at: float | None = None
    """When its read or write byte counters last moved by more than noise, its own log apart."""
    printed_at: float | None = None
    """When its main thread was last seen to write, and its log to grow."""
    wrote_at: float | None = None
    """When it last wrote much: a log line now and then is not."""
    file_moved_at: float | None = None
    """When its position in `Process.file` last moved by more than noise."""
    file_rate: float | None = None  # bytes a second, at `file_moved_at`
    flowed_at: Mapping[int, float] = field(default_factory=dict)
    """When threads of it, and of its children, last got on in a connection, by thread id."""
    cpu_share: float | None = None
    """Cores used by the whole process over the last ticks."""
    main_cpu_share: float | None = None
    """Of that, the main thread."""

    @property
    def ended(self) -> bool:
        """Whether its process has left, or is a zombie."""
        return self.state in ("exited", "zombie")

    @property
    def local_rank(self) -> int | None:
        """Rank on its node, from the environment; None when not told."""
        return number_in(self.process.env, LOCAL_RANKS)


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
    unnumbered: tuple[Process, ...] = ()
    """Processes that are ranks but whose number could not be read, with `denied`."""
    nodes: tuple[Text, ...] = ()
    hosts: tuple[Text, ...] = ()
    """Its nodes by node rank, where the environment of its ranks tells (Slurm)."""

    def pids(self) -> dict[str, list[int]]:
        """Pids of its ranks that have not ended, by node."""
        found: dict[str, list[int]] = {}
        for rank in self.ranks:
            if not rank.ended:
                found.setdefault(rank.node, []).append(rank.process.pid)
        return found

    def launcher_sample(self, launcher: Process) -> StackSample | None:
        """What was sampled of one of its launchers."""
        return self.launcher_samples.get(f"{launcher.node}:{launcher.pid}")


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
