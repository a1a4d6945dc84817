"""What discovery is told of one process, and what it alone tells."""

from __future__ import annotations

from typing import FrozenSet, Mapping, NamedTuple, Optional, Tuple

from . import commands

RANK_THREADS = (
    "gloo_tcp_loop",
    "pt_gloo_runloop",
    "pt_nccl_watchdg",
    "pt_nccl_heartbt",
    "pt_nccl_runhook",
    "pt_nccl2_heartbt",
)
"""Threads only a process that is in a process group has (torch 2.13, gloo and NCCL)."""


class Candidate(NamedTuple):
    """What discovery needs of one process of the node."""

    pid: int
    ppid: int
    start: int
    comm: str
    cmdline: Tuple[str, ...] = ()
    environ: Optional[Mapping[str, str]] = None
    """None where it must not be read."""
    python: bool = False
    threads: FrozenSet[str] = frozenset()
    """Names of its threads, where it has more than one."""
    wrap_rank: Optional[int] = None
    """Index of an mp.spawn child, found in its stack."""
    local_rank: Optional[int] = None
    """What a frame of its program calls its rank, found in its stack."""
    first_argument: Optional[int] = None
    """What multiprocessing called its function with, found in its stack."""
    told_rank: Optional[int] = None
    """What it was seen to join its process group with."""
    known: Tuple[Optional[int], Optional[str]] = (None, None)
    """The number that it was given before, and what said so."""
    rank_at_start: Optional[Tuple[int, str]] = None
    """The number that it was started with, where it has set another one since."""
    has_torch: bool = False
    """Whether torch is known to be loaded into it."""
    is_exiting: bool = False
    """A stack sample found it at the end of a child of multiprocessing, or leaving its group."""
    is_worker: bool = False
    """A stack sample found `_worker_loop` in it."""
    worker_id: Optional[int] = None
    """DataLoader worker id found in a stack sample."""
    is_debug_server: bool = False
    is_agent: bool = False
    """A stack sample found it in torchrun's rendezvous, whatever program it is."""
    framework: Optional[str] = None
    """The launcher whose frames a stack sample found in it."""


Table = Mapping[int, Candidate]


def helper_of(c: Candidate) -> Optional[str]:
    """Return which helper of a rank it is, if any."""
    if c.is_worker:
        return "dataloader-worker"
    if c.is_debug_server:
        return "debug-server"
    return commands.helper_role(c.comm, c.cmdline)


def in_group(c: Candidate) -> bool:
    """Return whether it is in a process group."""
    return bool(c.threads.intersection(RANK_THREADS))


def label_of(role: str, c: Candidate, worker: Optional[int]) -> str:
    """Return what a child of a rank is called."""
    if role == "dataloader-worker":
        return "DataLoader worker" if worker is None else "DataLoader worker %d" % worker
    names = {
        "resource-tracker": "resource tracker",
        "forkserver": "forkserver",
        "compile-worker": "inductor compile worker",
        "debug-server": "debug server",
        "debug-adapter": "debug adapter",
    }
    return names.get(role, "subprocess %s" % c.comm)
