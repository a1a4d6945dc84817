"""Classify processes as ranks, launchers and children of ranks: a pure function of a table.

No ptrace and no launcher is needed. The environment at the start of a process has its rank, the
parent chain decides which of several processes with the same RANK is the rank, and names identify
launchers and helpers. Ranks with an unreadable environment are identified by their threads or
their launcher. `mp.spawn` ranks come from `Candidate.wrap_rank`, which a stack sample sets.
"""

from __future__ import annotations

from typing import (
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from ..proc import procfs
from . import commands, controllers, inherited, launchers, naming, numbering
from .candidates import Candidate, Table, helper_of, in_group, label_of
from .rankvariables import identity, rank_number, task_number

_UNSURE = (None, launchers.AGENT, launchers.MULTIPROCESSING)
"""Launcher kinds that mp.spawn may replace once a stack sample shows it."""


class Attribution(NamedTuple):
    """The role of one process."""

    role: str
    label: str
    rank: Optional[int] = None
    rank_source: Optional[str] = None
    rank_pid: Optional[int] = None
    launcher_pid: Optional[int] = None
    launcher: Optional[str] = None
    worker_id: Optional[int] = None
    rank_disputed: Optional[str] = None
    """Sources that say another rank number, with that number."""


def attribute(
    table: Table, skip: FrozenSet[int] = frozenset(), named: FrozenSet[int] = frozenset()
) -> Dict[int, Attribution]:
    """Return the role of every process that belongs to a training job, by pid.

    Args:
        table: all processes.
        skip: processes that are never ranks: the probe itself and what started it.
        named: processes the user named: Python programs among them that belong to no job become
            ranks of their own.
    """
    return _Discovery(table, skip, named).run()


class _Discovery:
    def __init__(self, table: Table, skip: FrozenSet[int], named: FrozenSet[int]) -> None:
        self.table = table
        self.skip = skip
        self.named = named
        self.children: Dict[int, List[int]] = {}
        for candidate in sorted(table.values(), key=lambda c: (c.start, c.pid)):
            self.children.setdefault(candidate.ppid, []).append(candidate.pid)
        self.launchers = self._launchers()
        self.helpers = {
            c.pid: role
            for c in table.values()
            for role in [helper_of(c)]
            if role is not None and c.pid not in self.launchers
        }
        self.beside: Dict[int, int] = {}
        """The launcher that started each controller without ranks, by pid of the controller."""
        self.ranks: Dict[int, numbering.Numbered] = {}
        self.found: Dict[int, Attribution] = {}

    def run(self) -> Dict[int, Attribution]:
        self.ranks = self._numbered()
        self._add_spawned()
        self._add_families()
        self._add_unnumbered()
        self._add_named()
        self._note_controllers()
        self._add_launchers()
        for pid in self.ranks:
            self._add_rank(pid)
        for pid in self.ranks:
            self._add_children(pid)
        self._add_orphans()
        return self.found

    def _launchers(self) -> Dict[int, str]:
        found = {}
        for c in self.table.values():
            kind = commands.launcher_kind(c.comm, c.cmdline)
            if c.is_agent or (kind and not self._is_copy(c)):
                found[c.pid] = kind or launchers.AGENT
        return found

    def _is_copy(self, c: Candidate) -> bool:
        """Whether the process is a forked child of a launcher that has not yet run its program."""
        parent = self.table.get(c.ppid)
        return parent is not None and bool(c.cmdline) and parent.cmdline == c.cmdline

    def _ancestors(self, pid: int) -> Iterator[Candidate]:
        seen: Set[int] = {pid}
        current = self.table.get(pid)
        while current and current.ppid not in seen:
            seen.add(current.ppid)
            current = self.table.get(current.ppid)
            if current:
                yield current

    def _may_be_rank(self, c: Candidate) -> bool:
        return (
            c.python
            and c.pid not in self.launchers
            and c.pid not in self.helpers
            and c.pid not in self.skip
            and commands.launcher_kind(c.comm, c.cmdline) is None
            and not commands.runs_hangtop(c.cmdline)
        )

    def _number(self, c: Candidate) -> Optional[Tuple[int, str]]:
        environ = c.environ or {}
        number = rank_number(environ)
        if number is None and in_group(c):
            alone = procfs.decimal(environ.get("RANK", ""))
            number = None if alone is None else (alone, "RANK")
        task = task_number(environ) if number is None else None
        if task and (in_group(c) or any(naming.of_parent(a.comm) for a in self._ancestors(c.pid))):
            number = task
        return number

    def _numbered(self) -> Dict[int, numbering.Numbered]:
        """Return the topmost Python process per job and rank; a wrapper gives way to its child."""
        numbers = {
            c.pid: number
            for c in self.table.values()
            if self._may_be_rank(c)
            for number in [self._number(c)]
            if number is not None
        }
        below: Dict[int, List[int]] = {}
        joined = {c.pid for c in self.table.values() if in_group(c)}
        for pid in joined:
            below.setdefault(self._spawn_parent(self.table[pid]) or 0, []).append(pid)
        numbers, starters = inherited.apart(numbers, below, joined)
        for pid in starters:
            self.launchers.setdefault(pid, launchers.MULTIPROCESSING)
        return {
            self._unwrapped(pid, numbers): number
            for pid, number in numbers.items()
            if self._is_topmost(pid, numbers)
        }

    def _is_topmost(self, pid: int, numbers: Mapping[int, Tuple[int, str]]) -> bool:
        """Whether no ancestor is the same rank of the same job, and none was before it exited."""
        own = self.table[pid]
        mine = (numbers[pid], identity(own.environ or {}))
        above = (
            (numbers[a.pid], identity(a.environ or {}))
            for a in self._ancestors(pid)
            if a.pid in numbers
        )
        # In a container, its parent may be process 1.
        orphan = own.ppid <= 1 and self._spawn_parent(own) is None
        return mine not in above and not (orphan and commands.is_spawned(own.cmdline))

    def _unwrapped(self, pid: int, numbers: Mapping[int, Tuple[int, str]]) -> int:
        """Step down from a Python wrapper to the Python process that is in a process group."""
        if in_group(self.table[pid]):
            return pid
        below = [
            child
            for child in self.children.get(pid, [])
            if numbers.get(child) == numbers[pid] and in_group(self.table[child])
        ]
        return below[0] if len(below) == 1 else pid

    def _add_spawned(self) -> None:
        for c in self.table.values():
            free = self._may_be_rank(c) and c.pid not in self.ranks
            if c.wrap_rank is not None and free and inherited.is_only_node(c.environ or {}):
                self.ranks[c.pid] = c.wrap_rank, launchers.SPAWN
                parent = self._spawn_parent(c)
                if parent is not None and self.launchers.get(parent) in _UNSURE:
                    self.launchers[parent] = launchers.SPAWN

    def _spawn_parent(self, c: Candidate) -> Optional[int]:
        parent = self.table.get(c.ppid)
        if parent is not None and self.helpers.get(parent.pid) == "forkserver":
            parent = self.table.get(parent.ppid)
        return parent.pid if parent is not None and parent.python else None

    def _add_families(self) -> None:
        """Number processes in a process group that have no rank variable, by other sources."""
        families: Dict[object, List[Candidate]] = {}
        apart = self._told_apart()
        for c in sorted(self.table.values(), key=lambda c: (c.start, c.pid)):
            readable = c.environ is not None and c.pid not in self.ranks
            joined = in_group(c) or self._left_group(c) or c.pid in apart
            if readable and joined and self._may_be_rank(c):
                families.setdefault(self._family(c), []).append(c)
        for key, members in families.items():
            kin = (pid for pid in self.ranks if self._family(self.table[pid]) == key)
            taken = [number for pid in kin for number in self.ranks[pid][:1] if number is not None]
            self.ranks.update(self._ladder(members, taken))
            self._note_parent(members)

    def _ladder(self, family: Sequence[Candidate], taken: Sequence[int] = ()) -> numbering.Numbers:
        return numbering.of_family([_unnumbered(c) for c in family], taken)

    def _told_apart(self) -> Set[int]:
        """Return torch programs with one parent whose titles or arguments have distinct ranks."""
        siblings: Dict[int, List[Candidate]] = {}
        for c in self.table.values():
            if c.has_torch and numbering.says_rank(c.cmdline) and self._may_be_rank(c):
                siblings.setdefault(c.ppid, []).append(c)
        return {
            c.pid
            for some in siblings.values()
            if len(some) > 1 and None not in {one[0] for one in self._ladder(some).values()}
            for c in some
        }

    def _left_group(self, c: Candidate) -> bool:
        """Whether the process seems to have left its group and is no descendant of a rank."""
        return c.is_exiting and not any(
            a.pid in self.ranks or a.is_exiting or in_group(a) for a in self._ancestors(c.pid)
        )

    def _family(self, c: Candidate) -> object:
        """Return the key of ranks that are numbered together: their store or parent."""
        environ = c.environ or {}
        store = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
        return store if all(store) else self._spawn_parent(c) or c.ppid

    def _note_parent(self, members: Sequence[Candidate]) -> None:
        """Mark a Python process that started ranks, and is no rank, as their launcher."""
        for parent in {self._spawn_parent(c) for c in members}:
            if parent is not None and parent not in self.ranks and not in_group(self.table[parent]):
                self.launchers.setdefault(parent, launchers.MULTIPROCESSING)

    def _note_controllers(self) -> None:
        """Record the controllers above and beside the programs that started ranks."""
        may = {c.pid for c in self.table.values() if self._may_be_rank(c)}.difference(self.ranks)
        of_ray = [pid for pid in self.ranks if controllers.RAY_THREAD in self.table[pid].threads]
        starters = [pid for pid, kind in self.launchers.items() if kind in controllers.STARTERS]
        tree = controllers.Tree(self.table, self.children, may)
        for pid, kind in controllers.above(tree, starters, of_ray).items():
            self.launchers.setdefault(pid, kind)
        self.beside = controllers.beside(tree, self.launchers)

    def _add_unnumbered(self) -> None:
        """Add ranks without a number: in a process group, or unreadable below a launcher."""
        for c in self.table.values():
            if c.pid in self.ranks or not self._may_be_rank(c):
                continue
            below_rank = any(a.pid in self.ranks for a in self._ancestors(c.pid))
            launched = c.environ is None and c.ppid in self.launchers
            if not below_rank and (in_group(c) or launched):
                self.ranks[c.pid] = None, None

    def _add_named(self) -> None:
        """Add Python programs that the user named as ranks, unless they belong to a job."""
        members = {*self.ranks, *self.launchers}
        relatives = {a.pid for pid in members for a in self._ancestors(pid)}
        for pid in sorted(self.named & self.table.keys()):
            c = self.table[pid]
            apart = (members | self.named).isdisjoint(a.pid for a in self._ancestors(pid))
            may = self._may_be_rank(c) or (c.python and pid in self.helpers)
            if apart and pid not in members | relatives and may:
                self.ranks[pid] = None, numbering.NAMED

    def _launcher_of(self, pid: int) -> Tuple[Optional[int], Optional[str]]:
        for ancestor in self._ancestors(pid):
            if ancestor.pid in self.launchers:
                return ancestor.pid, self.launchers[ancestor.pid]
            if naming.of_parent(ancestor.comm):
                return None, naming.of_parent(ancestor.comm)
        return None, None

    def _add_launchers(self) -> None:
        for pid, kind in self.launchers.items():
            name = naming.of_process(kind, self.table[pid].cmdline)
            if kind in controllers.NAMED:
                name = controllers.title(self.table[pid].cmdline) or name
            above = self._launcher_of(pid)[0]
            self.found[pid] = Attribution("launcher", name, launcher_pid=above, launcher=kind)
        for pid, parent in self.beside.items():
            name = controllers.title(self.table[pid].cmdline) or self.table[pid].comm
            kind = self.launchers[parent]
            self.found[pid] = Attribution("launcher", name, launcher_pid=parent, launcher=kind)

    def _add_rank(self, pid: int) -> None:
        number, source = self.ranks[pid]
        launcher_pid, launcher = self._launcher_of(pid)
        c = self.table[pid]
        launcher = naming.of_rank(launcher, c.environ or {}, source, c.cmdline, c.framework)
        label = "rank ?" if number is None else "rank %d" % number
        label = "process %d" % pid if source == numbering.NAMED else label
        at_start = inherited.own_at_start(self.table, pid)
        disputed = numbering.disputed(pid, self.ranks, self.table, at_start)
        self.found[pid] = Attribution(
            "rank", label, number, source, pid, launcher_pid, launcher, rank_disputed=disputed
        )

    def _add_children(self, rank_pid: int) -> None:
        rank = self.found[rank_pid]
        waiting, below = list(self.children.get(rank_pid, [])), []
        while waiting:
            pid = waiting.pop()
            if pid in self.found or pid in self.skip:
                continue
            below.append(pid)
            waiting.extend(self.children.get(pid, []))
        workers = self._worker_ids(below)
        for pid in below:
            self.found[pid] = self._child(pid, rank, workers.get(pid))

    def _worker_ids(self, pids: List[int]) -> Dict[int, int]:
        workers = [self.table[p] for p in pids if self.helpers.get(p) == "dataloader-worker"]
        workers.sort(key=lambda c: (c.start, c.pid))
        return {
            c.pid: order if c.worker_id is None else c.worker_id for order, c in enumerate(workers)
        }

    def _child(self, pid: int, rank: Attribution, worker: Optional[int]) -> Attribution:
        c = self.table[pid]
        role = self.helpers.get(pid, "subprocess")
        return Attribution(
            role,
            label_of(role, c, worker),
            rank.rank,
            None,
            rank.rank_pid,
            rank.launcher_pid,
            rank.launcher,
            worker,
        )

    def _add_orphans(self) -> None:
        """Add helpers whose rank has exited and which still hold its devices and ports.

        Debug adapters are left out: they have no rank above them while the rank is alive, either.
        """
        for pid, role in self.helpers.items():
            c = self.table[pid]
            number = rank_number(c.environ or {})
            if pid not in self.found and number is not None and role != "debug-adapter":
                label = "%s of a rank that is gone" % label_of(role, c, c.worker_id)
                self.found[pid] = Attribution(role, label, number[0], worker_id=c.worker_id)


def _unnumbered(c: Candidate) -> numbering.Unnumbered:
    return numbering.Unnumbered(
        c.pid, c.environ or {}, c.cmdline, c.local_rank, c.first_argument, c.told_rank, c.known
    )
