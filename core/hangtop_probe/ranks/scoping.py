"""Select the processes that the user asked for: of a Slurm job, or of the jobs of some pids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, FrozenSet, Iterable, Mapping, Optional, Set

from .discovery import Attribution
from .rankvariables import identity

if TYPE_CHECKING:
    from .candidates import Table


def of_slurm(
    roles: Mapping[int, Attribution], table: Table, jobs: FrozenSet[str], step: Optional[str]
) -> Dict[int, Attribution]:
    """Leave out processes whose environment names another Slurm job, or another step of it.

    Processes without such variables (started over ssh, or unreadable) stay: nothing is hidden by
    mistake. Launchers run in the batch step, so a step leaves out ranks only.
    """

    def stays(pid: int, role: Attribution) -> bool:
        one = table.get(role.rank_pid or pid)
        environ = (one.environ if one is not None else None) or {}
        if environ.get("SLURM_JOB_ID", "") not in ("", *jobs):
            return False
        of = environ.get("SLURM_STEP_ID", "")
        return step is None or role.role == "launcher" or of in ("", step)

    return {pid: role for pid, role in roles.items() if stays(pid, role)}


def _below(pid: int, roles: Mapping[int, Attribution], table: Table) -> Set[int]:
    """Return the processes of jobs that descend from a process."""
    pids, more = {pid}, {pid}
    while more:
        pids |= (more := {c.pid for c in table.values() if c.ppid in more} - pids)
    return pids & roles.keys()


def _launchers_of(pid: int, roles: Mapping[int, Attribution]) -> Set[int]:
    """Return the launchers above a process: that of a rank, and the controllers above that."""
    launchers: Set[int] = set()
    above = roles[pid].launcher_pid
    while above is not None and above in roles and above not in launchers:
        launchers.add(above)
        above = roles[above].launcher_pid
    return launchers


def restrict(
    roles: Mapping[int, Attribution],
    table: Table,
    pids: FrozenSet[int],
    before: Iterable[int] = (),
) -> Dict[int, Attribution]:
    """Keep the jobs of the processes the user named.

    Ranks that were kept ``before`` and have no launcher now are kept: a launcher that is killed
    leaves its ranks behind.

    The whole job is kept, since a rank alone would look as if its peers had exited. A named process
    outside all jobs stands for the job it started (`hangtop run`, a script), else it becomes a rank
    without a number.
    """
    pids = _widened(roles, table, pids, before)
    starting = {role.launcher_pid for role in roles.values()}

    def jobs(pid: int) -> Set[object]:
        role = roles[pid]
        rank = table.get(role.rank_pid or pid)
        told = identity(rank.environ or {}) if rank is not None else ()
        launcher = pid if pid in starting else role.launcher_pid
        keys: Set[object] = {launcher, told if any(told) else None}
        return keys - {None}

    named: Set[object] = set().union(*map(jobs, pids & roles.keys()))
    kept = {
        pid: role
        for pid, role in roles.items()
        if pid in pids
        or role.rank_pid in pids
        or not named.isdisjoint(jobs(pid) | _launchers_of(pid, roles))
    }
    for above in [_launchers_of(pid, roles) for pid in kept]:
        kept.update((pid, roles[pid]) for pid in above)
    for pid in sorted(pids & table.keys() - kept.keys()):
        kept[pid] = Attribution("rank", "pid %d" % pid, rank_pid=pid)
    return kept


def _widened(
    roles: Mapping[int, Attribution], table: Table, pids: FrozenSet[int], before: Iterable[int]
) -> FrozenSet[int]:
    """Return the named pids, with orphaned ranks, and with jobs in place of their starters."""
    kept_before = (pid for pid in before if pid in roles)
    orphans = (pid for pid in kept_before if roles[pid].role == "rank")
    pids = pids.union(pid for pid in orphans if roles[pid].launcher_pid is None)
    starters = {pid: _below(pid, roles, table) for pid in pids if pid not in roles}
    return frozenset(pid for pid in pids if not starters.get(pid)).union(*starters.values())
