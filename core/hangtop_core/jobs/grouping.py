"""Grouping of processes into training jobs: pure, from the processes' own data.

Ranks of one job share the address and port of their store (MASTER_ADDR, MASTER_PORT) and, under
torchrun, a run id. torchrun's run id is ``none`` unless it is given (torch 2.13
torch/distributed/run.py), so the port distinguishes two jobs on one machine. Ranks without any of
these are grouped by the Slurm or MPI job, or by the process that spawned them. Different spellings
of an address are equal if they are known to mean the same node.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from hangtop_core.jobs.joining import (
    AGAIN,
    Member,
    Parts,
    joined,
    once,
    without_earlier,
    without_older,
)
from hangtop_core.model.node.places import Places
from hangtop_core.text import launchers as launchline
from hangtop_core.text.addresses import is_loopback
from hangtop_core.text.node_sets import unfold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.jobs.joining import LaunchInfo
    from hangtop_core.model.snapshot import Process

__all__ = ["Group", "Member", "group", "job_key"]

T = TypeVar("T")

_HOST = r"[A-Za-z0-9_.-]+(?:\[[0-9,-]+\][A-Za-z0-9_.-]*)?"
_HOST_LIST = re.compile(rf"{_HOST}(?:,{_HOST})*")
_NO_RUN_ID = frozenset({"", "none"})
_NOWHERE = Places()
MOST_FORMER = 256
"""Maximum ranks of earlier attempts that a job lists, the last ones."""
BESIDE = frozenset({launchline.MULTIPROCESSING, launchline.RAY})
"""Launchers that also start controllers of their job, which start no rank."""
CLOCKS_S = 2.0
"""Seconds by which the clocks of two nodes may differ."""


class Group(Struct, frozen=True):
    """The members of one job; `hangtop_core.state.store` makes a `Job` of them."""

    key: str
    name: str
    launcher: str | None
    id: str | None
    world_size: int | None
    master: str | None
    ranks: tuple[Member, ...] = ()
    """Ranks in ascending order, then by node and pid."""
    launchers: tuple[Member, ...] = ()
    unnumbered: tuple[Member, ...] = ()
    hosts: tuple[str, ...] = ()
    """Its nodes by node rank, as the environment of a Slurm step lists them."""
    former: tuple[Member, ...] = ()
    """Ranks of earlier attempts that have exited, in that order."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of its processes."""
        members = (*self.ranks, *self.launchers, *self.unnumbered)
        return tuple(dict.fromkeys(member.node for member in members))


def group(members: Iterable[Member], places: Places = _NOWHERE) -> tuple[Group, ...]:
    """Return the jobs that ``members`` make up: most ranks first, then newest first.

    Jobs that were given the port of another job come before all of them, while they live. Children
    of ranks (processes with another role) are not grouped. ``places`` maps addresses to nodes.
    """
    by_key: dict[str, list[Member]] = defaultdict(list)
    launchers: list[Member] = []
    unnumbered: list[Member] = []
    key_of = _Keys(places).of
    for member in once(members, places):
        if member.process.role == "launcher":
            launchers.append(member)
        elif member.process.role == "rank" and _is_unread(member.process):
            unnumbered.append(member)
        elif member.process.role == "rank":
            by_key[key_of(member)].append(member)
    ranks = without_older(without_earlier(by_key))
    of_job, free = _attach(launchers, ranks, places)
    parents = _parents(ranks, of_job)
    former = _former((member for grouped in by_key.values() for member in grouped), ranks, parents)
    nameless: dict[str, list[Member]] = defaultdict(list)
    for member in unnumbered:
        nameless[_key_of_nameless(member, parents)].append(member)
    for key, alone in free.items():
        of_job[key].extend(alone)
    parts = {
        key: Parts(_newest(ranks.get(key, [])), of_job.get(key, []), nameless.get(key, []))
        for key in dict.fromkeys([*ranks, *of_job, *nameless])
    }
    for key, home in joined(parts, places).items():
        part = parts.pop(key)
        parts[home].ranks.extend(part.ranks)
        parts[home].launchers.extend(part.launchers)
        parts[home].unnumbered.extend(part.unnumbered)
        former[home] += former.pop(key, [])
    groups = (_group(key, part, former.get(key, ())) for key, part in parts.items())
    return tuple(sorted(groups, key=_order))


def _is_unread(process: Process) -> bool:
    """Return whether a process is a rank only by its parent, or because the user named it."""
    return process.rank is None and (bool(process.denied) or process.label == f"pid {process.pid}")


def job_key(member: Member, places: Places) -> str:
    """Return the key of the job a rank belongs to."""
    node, process, info = member.node, member.process, member.info
    env = process.env
    parts: list[str] = []
    if (info.run_id or "") not in _NO_RUN_ID:
        parts.append(f"run {info.run_id}")
    if info.slurm:
        parts.append(f"slurm {info.slurm}")
    if info.store is not None:
        parts.append(places.store(*info.store, process, node))
    elif info.slurm:
        parts.append(f"step {env.get('SLURM_STEP_ID', '?')}")
    elif not parts:
        mpi = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
        parts.append(f"mpi {mpi}" if mpi else f"{node} pid {member.starter}")
    return " ".join(parts)


class _Keys:
    """Job keys of ranks, cached by launch data, which nearly all ranks share."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._cache: dict[tuple[LaunchInfo, str | None, int | None], str] = {}

    def of(self, member: Member) -> str:
        """Return the key of a rank's job, as `job_key`."""
        info = member.info
        if info.store is None:
            return job_key(member, self._places)
        is_local = is_loopback(info.store[0])
        at = info, member.node if is_local else None, member.process.net_ns if is_local else None
        key = self._cache.get(at)
        if key is None:
            key = self._cache[at] = job_key(member, self._places)
        return key


def _parents(
    ranks: dict[str, list[Member]], launchers: dict[str, list[Member]]
) -> dict[tuple[str, int], str]:
    """Map node and pid of every process that may be the parent of a rank to the rank's job."""
    jobs: dict[tuple[str, int], str] = {}
    # Ranks left from an earlier attempt have the same launcher: the newest ranks decide.
    for key in sorted(ranks, key=lambda job: max(m.process.started_at for m in ranks[job])):
        for member in ranks[key]:
            if member.is_started:
                jobs[member.node, member.starter] = key
    for key, members in launchers.items():
        for member in members:
            jobs[member.node, member.process.pid] = key
    return jobs


def _former(
    members: Iterable[Member],
    ranks: dict[str, list[Member]],
    parents: dict[tuple[str, int], str],
) -> defaultdict[str, list[Member]]:
    """Return by job the exited ranks of earlier attempts."""
    now = {
        member.process.identity
        for group_members in ranks.values()
        for member in _newest(group_members)
    }
    former: defaultdict[str, list[Member]] = defaultdict(list)
    for member in members:
        process = member.process
        key = parents.get((member.node, member.starter)) if process.gone_at is not None else None
        if key is not None and process.identity not in now:
            former[key].append(member)
    return former


def _key_of_nameless(member: Member, parents: dict[tuple[str, int], str]) -> str:
    job = parents.get((member.node, member.starter))
    return job or f"{member.node} pid {member.starter}"


def _attach(
    launchers: Sequence[Member], ranks: dict[str, list[Member]], places: Places
) -> tuple[dict[str, list[Member]], dict[str, list[Member]]]:
    """Assign launchers to the jobs of their ranks; return these, and launchers without a job."""
    by_pid = _started_by(launchers, ranks)
    job_names: dict[str, str] = {}
    for job, members in ranks.items():
        job_names.update((name, job) for name in _given_names(members[0], places))
    attached: dict[str, list[Member]] = defaultdict(list)
    alone: dict[str, list[Member]] = defaultdict(list)
    for member in launchers:
        process, meets = member.process, _meets(member, places)
        names = (_run(launchline.launch_options(process.cmdline).get("rdzv_id")), meets)
        key = by_pid.get((member.node, process.pid))
        key = key or next((job_names[name] for name in names if name in job_names), None)
        key = key or _step_of(member, ranks)
        if key is None and process.launcher in BESIDE:
            key = by_pid.get((member.node, member.starter))
        if key is not None:
            attached[key].append(member)
        elif process.gone_at is None and process.state[:1] not in ("Z", "X"):
            # An ended launcher may be listed for as long as its parent lives.
            alone[_key_alone(member, meets)].append(member)
    return attached, alone


def _started_by(
    launchers: Sequence[Member], ranks: dict[str, list[Member]]
) -> dict[tuple[str, int], str]:
    """Map node and pid of the processes that started a rank or its launcher to the rank's job."""
    by_pid = _parents(ranks, {})
    # From the innermost out: a launcher that only started another launcher belongs to its job.
    for member in sorted(launchers, key=lambda m: -m.process.started_at):
        key = by_pid.get((member.node, member.process.pid))
        if key is not None:
            by_pid.setdefault((member.node, member.starter), key)
            by_pid.setdefault((member.node, member.process.ppid), key)
    return by_pid


def _step_of(member: Member, ranks: dict[str, list[Member]]) -> str | None:
    """Return the job whose ranks an srun started: the first one of its Slurm job after the srun.

    srun is not their parent: slurmd starts them, also on the node of srun.
    """
    slurm = member.info.slurm
    if member.process.launcher != "srun" or not slurm:
        return None
    began = member.process.started_at - CLOCKS_S
    steps = [
        (min(rank.process.started_at for rank in members), key)
        for key, members in ranks.items()
        if members[0].info.slurm == slurm
    ]
    return min((step for step in steps if step[0] >= began), default=(0.0, None))[1]


def _run(run_id: str | None) -> str | None:
    return None if run_id is None or run_id in _NO_RUN_ID else f"run {run_id}"


def _meets(member: Member, places: Places) -> str | None:
    """Return the rendezvous of a launcher with other nodes, spelt as `Places.store` does."""
    meets = launchline.endpoint(member.process.cmdline)
    return None if meets is None else places.store(*meets, member.process, member.node)


def _given_names(rank: Member, places: Places) -> set[str]:
    """Return the names that the launcher of these ranks may have been given: run id, store."""
    given = rank.info.store
    store = None if given is None else places.store(*given, rank.process, rank.node)
    names = (_run(rank.info.run_id), store)
    return {name for name in names if name is not None}


def _key_alone(member: Member, meets: str | None) -> str:
    if member.process.launcher == launchline.AGENT:
        return f"agents {' '.join(member.process.cmdline)}"  # they share other data inside
    if meets is None or not launchline.spans_nodes(member.process.cmdline):
        return f"{member.node} pid {member.process.pid}"
    run_id = launchline.launch_options(member.process.cmdline).get("rdzv_id")
    return f"run {run_id or 'none'} {meets}"


def _newest(members: list[Member]) -> list[Member]:
    """Return members without the ranks that exited and were restarted under the same number."""
    live = {m.process.number: m.process.started_at for m in members if m.process.gone_at is None}
    return [
        m
        for m in members
        if m.process.gone_at is None
        or m.process.started_at > live.get(m.process.number, float("-inf"))
    ]


def _group(key: str, parts: Parts, former: Sequence[Member] = ()) -> Group:
    ranks, launchers = parts.ranks, parts.launchers
    members = parts.members
    processes = _processes(members)
    rank_processes = _processes(ranks)
    master = _most_common([m.info.store for m in members])
    return Group(
        key=key,
        name=_name(rank_processes, _processes(launchers), processes),
        launcher=launchline.most_specific(p.launcher for p in rank_processes)
        or launchline.most_specific(p.launcher for p in processes),
        id=_job_id(members),
        world_size=_most_common([m.size for m in ranks])
        or (None if ranks else _announced(launchers)),
        master=None if master is None else ":".join(master),
        ranks=tuple(sorted(ranks, key=lambda m: (m.process.number, m.node, m.process.pid))),
        launchers=_by_pid(launchers),
        unnumbered=_by_pid(parts.unnumbered),
        hosts=_hosts(processes),
        former=tuple(sorted(former, key=lambda m: m.process.gone_at or 0.0))[-MOST_FORMER:],
    )


def _processes(members: Sequence[Member]) -> list[Process]:
    return [m.process for m in members]


def _by_pid(members: Sequence[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda m: (m.node, m.process.pid)))


def _job_id(members: Sequence[Member]) -> str | None:
    """Return the most common run id, else the most common id of a Slurm job."""
    run_id = _most_common([m.info.run_id for m in members])
    if run_id and run_id not in _NO_RUN_ID:
        return run_id
    return _most_common([m.info.slurm for m in members])


def _hosts(processes: Sequence[Process]) -> tuple[str, ...]:
    """Expand Slurm's list of nodes, whose order is that of SLURM_NODEID (srun(1))."""
    node_lists = (
        p.env.get("SLURM_STEP_NODELIST") or p.env.get("SLURM_JOB_NODELIST") for p in processes
    )
    text = next((node_list for node_list in node_lists if node_list), "")
    # The list comes from the node.
    return tuple(unfold(text)) if _HOST_LIST.fullmatch(text) else ()


def _order(group: Group) -> tuple[bool, int, float, str]:
    """Return a key that sorts jobs with the port of another job first: they cannot start."""
    members = (*group.ranks, *group.launchers, *group.unnumbered)
    live = sum(m.process.gone_at is None for m in group.ranks)
    newest = max(m.process.started_at for m in members)
    return (not group.key.endswith(AGAIN) or not live, -live, -newest, group.key)


def _most_common(values: Sequence[T | None]) -> T | None:
    """Return the most common value; None, an empty text and 0 do not count."""
    counted = Counter(values)
    return next((value for value, _ in counted.most_common() if value), None)


def _announced(launchers: Sequence[Member]) -> int | None:
    """Return the world size of a job that has no ranks yet."""
    # How many ranks mp.spawn starts is an argument of a function.
    lines = (m.process.cmdline for m in launchers if m.process.launcher != launchline.SPAWN)
    sizes = (launchline.announced_world_size(line) for line in lines)
    return next((size for size in sizes if size is not None), None)


def _name(
    ranks: Sequence[Process], launchers: Sequence[Process], processes: Sequence[Process]
) -> str:
    for process in (*ranks[:4], *launchers):
        name = launchline.script(process.cmdline)
        if name:
            return name
    return processes[0].comm or processes[0].label
