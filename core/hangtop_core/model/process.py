"""A process of a node and its threads, as /proc shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hangtop_core.model.descriptors import FilePosition
from hangtop_core.model.meters import Meters, Stalled
from hangtop_core.text.addresses import port_of
from hangtop_core.text.clean import Text, clean
from hangtop_core.text.launchers import script
from hangtop_core.text.rank_sets import rank_key

_MAX_ABOUT = 40
_AXIS = re.compile(r"(?<![A-Za-z])(DP|PP|TP|EP|CP)[ _=:-]?(\d{1,5})(?!\d)")
"""Data, pipeline, tensor, expert and context parallel, as vLLM and SGLang name their workers."""

Helper = Literal[
    "dataloader-worker",
    "resource-tracker",
    "forkserver",
    "compile-worker",
    "debug-server",
    "debug-adapter",
]
Role = Literal["rank", "launcher", "subprocess", Helper]

STORE_THREAD = "pt_tcpstore"
"""Name of the thread with which a process hosts a TCPStore: torch 2.6 to 2.15."""


class Limits(Struct, frozen=True, gc=False):
    """Limits of a process that matter for hangs, soft values; None is unlimited or unknown."""

    open_files: int | None = None
    locked_memory: int | None = None
    core_size: int | None = None


class Thread(Struct, frozen=True, gc=False):
    """One thread as /proc/PID/task/TID shows it, without attaching."""

    tid: int
    name: Text
    state: str
    """One letter, as in /proc/PID/stat."""
    wchan: Text | None = None
    """Kernel function it sleeps in; None when running or not readable."""
    syscall: Text | None = None
    """Name of the current system call; None when running or not readable."""
    fd: int | None = None
    """First argument of the system call, where that is a descriptor."""
    futex: Text | None = None
    """Address waited on in a futex: equal addresses in one process are one lock. In wait4, the pid
    of the one child that is waited for."""

    @property
    def child(self) -> int | None:
        """Return the pid of the one child that the thread waits for, or None."""
        pid = self.futex if self.syscall == "wait4" else None
        return int(pid) if pid is not None and pid.isdecimal() else None


class Process(Struct, frozen=True, gc=False):
    """One process the probe reports: a rank, its launcher or one of its children."""

    pid: int
    ppid: int
    start: int
    """Start time in clock ticks after boot: with the pid, this identifies a process."""
    started_at: float
    role: Role
    label: Text
    """Description for people: `rank 2`, `DataLoader worker 1`, `torchrun`."""
    state: str
    uid: int = -1
    user: Text = "?"
    comm: Text = ""
    cmdline: tuple[Text, ...] = ()
    """Secrets masked on the node."""
    cwd: Text | None = None
    exe: Text | None = None
    rank: int | None = None
    """The global rank of the process, or of the rank it belongs to."""
    rank_source: Text | None = None
    """Source of the rank number: a variable such as RANK or SLURM_PROCID, `mp.spawn`,
    `init_process_group`, `hangtop run`, `title`, `argument`, `local variable`, `argument of its
    function`, `GPU and order`; `--pid` for a program that is no rank and was named."""
    rank_disputed: Text | None = None
    """The source that gives another number than `rank`, and the number: `title says 3`."""
    rank_pid: int | None = None
    """Pid of the rank that a child belongs to; for a rank its own pid."""
    launcher_pid: int | None = None
    launcher: Text | None = None
    """Name in the table of launchers (`hangtop_probe.ranks.launchers`), or None."""
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
    """Directories of its cgroups that report memory and pressure."""
    cpu_quota: float | None = None
    """CPU limit in cores of its cgroup or one above; None without a limit."""
    cpu_quota_of: Text | None = None
    """Directory of the cgroup with this limit, where it is mounted."""
    cpu_throttled: float | None = None
    """Share of periods since the last reading in which the quota was used up before their end."""
    dumping_core: bool = False
    frozen: bool = False
    frozen_by: Text | None = None
    """Directory of the frozen cgroup: its own one, or one above."""
    net_ns: int | None = None
    """Inode of its network namespace where that is not the probe's: a container of its own."""
    versions: Mapping[str, Text] = field(default_factory=dict)
    """Versions of a rank: python, torch, cuda, hip, nccl; torch_folder where torch's files must not
    be read."""
    limits: Limits = Limits()
    stalled: tuple[Stalled, ...] = ()
    """TCP connections of a rank whose other end acknowledges nothing."""
    file: FilePosition | None = None  # of ranks
    flows: Annotated[tuple[tuple[int, int], ...], Meta(max_length=4096)] = ()
    """Threads whose TCP connection made progress while they waited on it, with bytes so far.

    A thread that waits on several connections is given as -TID, with how often data came on any.
    """
    told_size: int | None = None
    """The world_size of a rank that init_process_group was called with or computed."""
    told_rank: int | None = None
    """The rank that init_process_group was called with or computed."""
    told_port: int | None = None
    """The port of the store that a rank was seen to create for init_process_group."""
    program_tid: int | None = None
    """The thread that runs a rank's program, where that is not the main thread."""
    fd_count: int | None = None
    outputs: tuple[Text, ...] = ()
    """Targets of descriptors 1 and 2, and the files behind them where they are pipes."""
    denied: Text | None = None
    """Why part of this could not be read, with the fix."""
    exit_code: int | None = None
    """Exit status of a zombie or of a process that was seen to exit, negative for a signal."""
    gone_at: float | None = None
    node: Text = ""
    """Name of the node as hangtop was given it, not as the node calls itself."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Return node, pid and start time, which no other process shares."""
        return self.node, self.pid, self.start

    @property
    def number(self) -> int:
        """Return the global rank, or its stand-in without a number (`rank_sets.rank_key`)."""
        if self.rank is not None:
            return self.rank
        return rank_key(self.node, self.pid, is_program=self.is_program)

    @property
    def is_program(self) -> bool:
        """Return whether the process is no rank, but a program that the user named."""
        return self.rank_source == "--pid"

    @property
    def about(self) -> str:
        """Return a label for a process without a number: title or GPU; for a program its script."""
        if len(self.cmdline) == 1 and self.cmdline[0] != self.exe:
            return clean(self.cmdline[0], _MAX_ABOUT)
        if self.is_program:
            return clean(script(self.cmdline) or self.comm, _MAX_ABOUT)
        gpu = self.env.get("CUDA_VISIBLE_DEVICES", "")
        if gpu.isdecimal() and len(gpu) < 4:
            return f"GPU {gpu}"
        hosts = any(thread.name.startswith(STORE_THREAD) for thread in self.threads)
        return "hosts a store" if hosts else ""

    @property
    def axes(self) -> dict[str, int]:
        """Return its position on the axes of the model, as its title says: `DP1 PP0 TP3 EP3`."""
        positions = _AXIS.findall(self.cmdline[0]) if len(self.cmdline) == 1 else ()
        return {name: int(place) for name, place in positions}

    @property
    def main_thread(self) -> Thread | None:
        """Return the thread that runs the program: mostly the one with the process's id."""
        for thread in self.threads:
            if thread.tid == (self.program_tid or self.pid):
                return thread
        return None

    def meets_at(self, address: str) -> bool:
        """Return whether an address has the port of the process's store."""
        port = port_of(address)
        return bool(port) and port in (self.env.get("MASTER_PORT"), str(self.told_port or ""))

    @property
    def ended(self) -> bool:
        """Return whether the process has exited; a zombie counts."""
        return self.gone_at is not None or self.state[:1] in ("Z", "X", "x")
