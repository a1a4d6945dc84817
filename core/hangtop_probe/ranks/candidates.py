"""One process as discovery sees it, and the roles that follow from it alone."""

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
    """The facts about one process of the node that discovery needs."""

    pid: int
    ppid: int
    start: int
    comm: str
    cmdline: Tuple[str, ...] = ()
    environ: Optional[Mapping[str, str]] = None
    """None where reading it is not permitted."""
    python: bool = False
    threads: FrozenSet[str] = frozenset()
    """Names of its threads, where it has more than one."""
    wrap_rank: Optional[int] = None
    """Index of an mp.spawn child, found in its stack."""
    local_rank: Optional[int] = None
    """The rank that a frame of its program names."""
    first_argument: Optional[int] = None
    """The first argument of its multiprocessing target, from its stack."""
    told_rank: Optional[int] = None
    """The rank with which it joined its process group, from its stack."""
    known: Tuple[Optional[int], Optional[str]] = (None, None)
    """Its earlier number and source."""
    rank_at_start: Optional[Tuple[int, str]] = None
    """The number at its start, where it has set another one since."""
    has_torch: bool = False
    """Whether torch is known to be loaded into it."""
    is_exiting: bool = False
    """Whether its multiprocessing target has ended or it leaves its group, by a stack sample."""
    is_worker: bool = False
    """Whether a stack sample has `_worker_loop`."""
    worker_id: Optional[int] = None
    """DataLoader worker id found in a stack sample."""
    is_debug_server: bool = False
    is_agent: bool = False
    """Whether a stack sample shows torchrun's rendezvous, whatever the program."""
    framework: Optional[str] = None
    """The launcher whose frames a stack sample has."""


Table = Mapping[int, Candidate]


def helper_of(c: Candidate) -> Optional[str]:
    """Return the helper role of a process, or None."""
    if c.is_worker:
        return "dataloader-worker"
    if c.is_debug_server:
        return "debug-server"
    return commands.helper_role(c.comm, c.cmdline)


def in_group(c: Candidate) -> bool:
    """Return whether the process is in a process group."""
    return bool(c.threads.intersection(RANK_THREADS))


def label_of(role: str, c: Candidate, worker: Optional[int]) -> str:
    """Return the display name of a child of a rank."""
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
