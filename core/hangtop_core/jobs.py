"""Sorting processes into training jobs: pure, from what processes say about themselves.

Ranks of one job share the address and port of their store (MASTER_ADDR, MASTER_PORT) and, under
torchrun, a run id. torchrun's run id is ``none`` unless it is given (torch 2.13
torch/distributed/run.py), so the port is what tells two jobs on one machine apart. Ranks without
any of these are told apart by the Slurm or MPI job, or by the process that spawned them.
"""

from __future__ import annotations

import os.path
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model import Process

_LOOPBACK = re.compile(r"localhost|127\.|::1$|0\.0\.0\.0$", re.IGNORECASE)
_NO_RUN_ID = frozenset({"", "none"})
_LAUNCHER_SCRIPTS = frozenset({"launch.py", "run.py", "torchrun", "accelerate", "deepspeed"})


class Member(NamedTuple):
    """One process and where it runs."""

    node: str
    process: Process
    parent: int = 0
    """Pid of what started it, as long as that was known: an orphan's own word is 1."""


class Group(Struct, frozen=True):
    """One job as members; `hangtop_core.store` makes a `Job` of it."""

    key: str
    name: str
    launcher: str | None
    id: str | None
    world_size: int | None
    master: str | None
    ranks: tuple[Member, ...] = ()
    """Ascending by rank, then node and pid."""
    launchers: tuple[Member, ...] = ()
    unnumbered: tuple[Member, ...] = ()


def group(members: Iterable[Member]) -> tuple[Group, ...]:
    """Return the jobs that ``members`` make up: most ranks first, then newest first.

    Children of ranks (those with another role) are not part of the grouping.
    """
    ranks: dict[str, list[Member]] = defaultdict(list)
    launchers: list[Member] = []
    unnumbered: list[Member] = []
    for member in members:
        if member.process.role == "launcher":
            launchers.append(member)
        elif member.process.role == "rank" and member.process.rank is None:
            unnumbered.append(member)
        elif member.process.role == "rank":
            ranks[job_key(member)].append(member)
    of_job, free = _attach(launchers, ranks)
    parents = _parents(ranks, of_job)
    nameless: dict[str, list[Member]] = defaultdict(list)
    for member in unnumbered:
        nameless[_key_of_nameless(member, parents)].append(member)
    for key, alone in free.items():
        of_job[key].extend(alone)
    keys = dict.fromkeys([*ranks, *of_job, *nameless])
    groups = [
        _group(key, _newest(ranks.get(key, [])), of_job.get(key, []), nameless.get(key, []))
        for key in keys
    ]
    return tuple(sorted(groups, key=_order))


def job_key(member: Member) -> str:
    """Return the key of the job a rank belongs to."""
    node, process = member.node, member.process
    env = process.env
    parts: list[str] = []
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    if run_id not in _NO_RUN_ID:
        parts.append(f"run {run_id}")
    slurm = env.get("SLURM_JOB_ID")
    if slurm:
        parts.append(f"slurm {slurm}")
    address = master(process)
    if address is not None:
        # A loopback address names another store on every machine.
        parts.append(f"{node}@{address}" if _LOOPBACK.match(address) else address)
    elif slurm:
        parts.append(f"step {env.get('SLURM_STEP_ID', '?')}")
    elif not parts:
        mpi = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
        parts.append(f"mpi {mpi}" if mpi else f"{node} pid {_parent(member)}")
    return " ".join(parts)


def master(process: Process) -> str | None:
    """Return ``address:port`` of the store a rank was told, or None."""
    address, port = process.env.get("MASTER_ADDR"), process.env.get("MASTER_PORT")
    return f"{address}:{port}" if address and port else None


def _parent(member: Member) -> int:
    return member.parent or member.process.launcher_pid or member.process.ppid


def _parents(
    ranks: dict[str, list[Member]], launchers: dict[str, list[Member]]
) -> dict[tuple[str, int], str]:
    """Map (node, pid) of everything that may be the parent of a rank to the rank's job."""
    found: dict[tuple[str, int], str] = {}
    for key, members in ranks.items():
        for member in members:
            if _parent(member) > 1:
                found[member.node, _parent(member)] = key
    for key, members in launchers.items():
        for member in members:
            found[member.node, member.process.pid] = key
    return found


def _key_of_nameless(member: Member, parents: dict[tuple[str, int], str]) -> str:
    known = parents.get((member.node, _parent(member)))
    return known or f"{member.node} pid {_parent(member)}"


def _attach(
    launchers: Sequence[Member], ranks: dict[str, list[Member]]
) -> tuple[dict[str, list[Member]], dict[str, list[Member]]]:
    """Give launchers to the jobs of their ranks; return those, and jobs of launchers alone."""
    by_pid = _parents(ranks, {})
    # From the innermost out: a launcher that only started another launcher belongs to its job.
    for member in sorted(launchers, key=lambda m: -m.process.started_at):
        key = by_pid.get((member.node, member.process.pid))
        if key is not None:
            by_pid.setdefault((member.node, _parent(member)), key)
            by_pid.setdefault((member.node, member.process.ppid), key)
    told: dict[str, str] = {}
    for key, members in ranks.items():
        told.update((name, key) for name in _told_names(members))
    attached: dict[str, list[Member]] = defaultdict(list)
    alone: dict[str, list[Member]] = defaultdict(list)
    for member in launchers:
        options = launch_options(member.process.cmdline)
        key = by_pid.get((member.node, member.process.pid)) or _told(options, told)
        if key is not None:
            attached[key].append(member)
        elif member.process.gone_at is None:
            alone[_key_alone(member, options)].append(member)
    return attached, alone


def _told_names(members: Sequence[Member]) -> set[str]:
    """Return what a launcher of these ranks may have been told: run id, address and port."""
    process = members[0].process
    run_id = process.env.get("TORCHELASTIC_RUN_ID", "")
    names = {f"run {run_id}"} if run_id not in _NO_RUN_ID else set()
    address = master(process)
    if address is not None and not _LOOPBACK.match(address):
        names.add(address)
    return names


def _told(options: dict[str, str], told: dict[str, str]) -> str | None:
    names = [f"run {options.get('rdzv_id')}", options.get("rdzv_endpoint", "?")]
    names.append(f"{options.get('master_addr')}:{options.get('master_port')}")
    return next((told[name] for name in names if name in told), None)


def _key_alone(member: Member, options: dict[str, str]) -> str:
    run_id = options.get("rdzv_id", "")
    endpoint = options.get("rdzv_endpoint", "")
    if endpoint and not _LOOPBACK.match(endpoint):
        return f"run {run_id or 'none'} {endpoint}"
    return f"{member.node} pid {member.process.pid}"


def launch_options(cmdline: Sequence[str]) -> dict[str, str]:
    """Return torchrun's own options, those before the script, dashes as underscores.

    Source: torch 2.13 torch/distributed/run.py; ``--rdzv-id 7`` and ``--rdzv-id=7`` both count.
    """
    options: dict[str, str] = {}
    words = iter(cmdline[1:])
    for word in words:
        if word.endswith(".py") and os.path.basename(word) not in _LAUNCHER_SCRIPTS:
            break
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        options[name.replace("-", "_")] = value if equals else next(words, "")
    return options


def _newest(members: list[Member]) -> list[Member]:
    """Leave out ranks that left and were started again under the same number."""
    live = {m.process.rank: m.process.started_at for m in members if m.process.gone_at is None}
    return [
        m
        for m in members
        if m.process.gone_at is None
        or m.process.started_at > live.get(m.process.rank, float("-inf"))
    ]


def _group(
    key: str, ranks: list[Member], launchers: list[Member], unnumbered: list[Member]
) -> Group:
    some = [m.process for m in (*ranks, *launchers, *unnumbered)]
    run_id = _most(p.env.get("TORCHELASTIC_RUN_ID") for p in some)
    slurm = _most(p.env.get("SLURM_JOB_ID") for p in some)
    rank_processes = [m.process for m in ranks]
    return Group(
        key=key,
        name=_name(rank_processes, [m.process for m in launchers], some),
        launcher=_most(p.launcher for p in some),
        id=run_id if run_id and run_id not in _NO_RUN_ID else slurm,
        world_size=_world_size(rank_processes) or (None if ranks else _announced(launchers)),
        master=_most(master(p) for p in some),
        ranks=tuple(sorted(ranks, key=lambda m: (m.process.rank or 0, m.node, m.process.pid))),
        launchers=tuple(sorted(launchers, key=lambda m: (m.node, m.process.pid))),
        unnumbered=tuple(sorted(unnumbered, key=lambda m: (m.node, m.process.pid))),
    )


def _order(group: Group) -> tuple[int, float, str]:
    some = (*group.ranks, *group.launchers, *group.unnumbered)
    live = sum(m.process.gone_at is None for m in group.ranks)
    return (-live, -max(m.process.started_at for m in some), group.key)


def _most(values: Iterable[str | None]) -> str | None:
    counted = Counter(value for value in values if value)
    return counted.most_common(1)[0][0] if counted else None


def _world_size(ranks: Sequence[Process]) -> int | None:
    names = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
    told = _most(
        next((p.env[name] for name in names if p.env.get(name, "").isdecimal()), None)
        for p in ranks
    )
    return int(told) if told is not None and len(told) < 9 else None


def _announced(launchers: Sequence[Member]) -> int | None:
    """World size of a job that has no ranks yet, where torchrun was told plain numbers."""
    for member in launchers:
        if member.process.launcher == "mp.spawn":
            continue  # whose number of ranks is an argument of a function
        options = launch_options(member.process.cmdline)
        per_node, nodes = options.get("nproc_per_node", "1"), options.get("nnodes", "1")
        if per_node.isdecimal() and nodes.isdecimal() and len(per_node + nodes) < 9:
            return int(per_node) * int(nodes)
    return None


def _name(ranks: Sequence[Process], launchers: Sequence[Process], some: Sequence[Process]) -> str:
    for process in (*ranks[:4], *launchers):
        name = script(process.cmdline)
        if name:
            return name
    return some[0].comm or some[0].label


def script(cmdline: Sequence[str]) -> str | None:
    """Return the name of the training script or module in a command line, or None."""
    words = list(cmdline[1:])
    for at, word in enumerate(words):
        base = os.path.basename(word)
        if word == "-c":
            return None
        if word == "-m" and at + 1 < len(words):
            if not words[at + 1].startswith(("torch.distributed.", "accelerate.", "deepspeed.")):
                return words[at + 1]
        elif base.endswith(".py") and base not in _LAUNCHER_SCRIPTS:
            return base
    return None
