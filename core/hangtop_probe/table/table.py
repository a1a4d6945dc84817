"""The process table: cheap passes over /proc.

Every pass lists /proc and reads the processes that matter (ranks, launchers, their children);
all others are looked at when they are new, a few times while they are young (programs start
others by fork and exec, which keeps pid and start time), and then now and again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple

from ..net import stalled
from ..node import cgroups, node, permission
from ..proc import activity, procfs, runclock
from ..ranks import candidates, commands, discovery, launchers, numbering, scoping, versions
from ..ranks.learned import Learned
from ..wire.guard import Guard, Hanging
from . import ended, facts, mapped, unconfirmed
from .entry import Entry, Identity, own_processes, told_apart, tracer_of

_RECHECK = 20
"""Passes between two readings of a process that is no longer young."""
_STARTED_S = 5.0
"""Seconds after its start for which a named process may still become a rank or start ranks."""
_SAMPLED_S = 1.5
"""Seconds in which `resolver` samples the descendants of a named process: a launcher is no rank."""
_DESCRIBE = 15
"""Passes between two readings of the rarely changing facts of a reported process."""


class Table:
    """All processes of the node; one thread makes passes, others may ask and teach."""

    def __init__(self, rights: permission.Rights) -> None:
        self.rights = rights
        self.all_users = rights.uid == 0
        self.only: Optional[FrozenSet[int]] = None
        """Pids the user named: nothing but these and what belongs to them is reported."""
        self.slurm: Optional[Tuple[FrozenSet[str], Optional[str]]] = None
        """The Slurm job the user named, as the ids it has, and the step of it."""
        self.entries: Dict[int, Entry] = {}
        self.roles: Dict[int, discovery.Attribution] = {}
        self.total = 0
        self.tools: Callable[[], Set[int]] = set
        """Returns the pids of our running tools: their tracing is not the job's state."""
        self.outputs: Dict[str, int] = {}
        """User id by file that processes print to, with those of processes that have exited."""
        self._kernel: Set[int] = set()
        self._learned: Dict[Identity, Learned] = {}
        self._with_torch: Set[Identity] = set()
        self._numbered: Dict[Identity, numbering.Numbered] = {}
        """Numbers from sources that may change or vanish: titles, frames."""
        self._guard = Guard()
        self._file_guard, self._memory_guard = Guard(limit=1), Guard(limit=1)
        """Guards for files and memory of the job: a dead file server must not use up `_guard`."""
        self._clock = runclock.RunClock()
        self.stalled = stalled.Stalled()
        self._boot = node.boot_time()
        self._since = time.monotonic()
        self._pass = 0
        self._dirty = True
        self._lock = threading.RLock()

    def scan(self) -> None:
        """Bring the table up to date with /proc."""
        with self._lock:
            self._pass += 1
            pids = procfs.numbers(procfs.PROC)
            self.total = len(pids)
            for pid in set(self.entries).difference(pids):
                del self.entries[pid]
                self._dirty = True
            self._kernel.intersection_update(pids)
            self._add([stat for stat in map(self._visit, pids) if stat is not None])
            self._forget()
            if self._dirty:
                self._discover()

    def _visit(self, pid: int) -> Optional[procfs.Stat]:
        """Read a process if that is due; return its state if it is new."""
        late = (pid + self._pass) % _RECHECK == 0
        if pid in self._kernel:
            if not late:
                return None
            self._kernel.remove(pid)
        entry = self.entries.get(pid)
        due = late
        if entry is not None:
            entry.age += 1
            due = entry.young or late
            if not due and pid not in self.roles:
                return None
        stat = procfs.read_stat(pid)
        if stat is None:
            return None
        if stat.kernel:
            self._kernel.add(pid)
        elif entry is None or entry.stat.start != stat.start:
            return stat
        else:
            self._look_again(entry, stat, due)
        return None

    def _look_again(self, entry: Entry, stat: procfs.Stat, due: bool) -> None:
        """Take in the state of a process that is in the table already."""
        changed = told_apart(entry.stat) != told_apart(stat)
        entry.stat = stat
        if changed or (due and (stat.pid in self.roles or self._may_differ(entry))):
            self._look(entry)
        elif due:
            self._look_at_threads(entry)

    def _may_differ(self, entry: Entry) -> bool:
        """Whether facts of a process with an unchanged state may have changed."""
        return not entry.stat.image or entry.facts.denied is not None

    def _add(self, stats: List[procfs.Stat]) -> None:
        pids = [stat.pid for stat in stats if stat.state != "Z"]
        known = facts.read_all(pids, self.rights, self._guard)
        for stat in stats:
            entry = self.entries[stat.pid] = Entry(stat, self._memory_guard)
            self._dirty = True
            self._look(entry, known.get(stat.pid))

    def _look(self, entry: Entry, known: Optional[facts.Facts] = None) -> None:
        """Read the facts discovery needs, unless they are ``known``; note whether they changed."""
        before = (entry.facts, entry.threads, entry.stat.comm, entry.stat.ppid, entry.mine)
        if known is not None:
            entry.facts = known
        elif entry.stat.state != "Z":
            entry.facts = facts.read_guarded(entry.stat.pid, self.rights, self._guard, entry.facts)
        entry.mine = self.all_users or entry.facts.uid == self.rights.uid
        entry.threads = self._thread_names(entry)
        if entry.threads.intersection(candidates.RANK_THREADS):
            entry.facts = facts.joined(entry.facts, entry.stat.pid, self._guard)
        now = (entry.facts, entry.threads, entry.stat.comm, entry.stat.ppid, entry.mine)
        self._dirty = self._dirty or before != now or entry.age == 0

    def _look_at_threads(self, entry: Entry) -> None:
        """Read the thread names, which may change while a process runs the same program."""
        names = self._thread_names(entry)
        if names.intersection(candidates.RANK_THREADS) - entry.threads:
            self._look(entry)  # a process that joined a group may have a number by now
        self._dirty = self._dirty or names != entry.threads
        entry.threads = names

    def _thread_names(self, entry: Entry) -> FrozenSet[str]:
        """Return thread names where they may reveal a rank without a readable number."""
        if entry.stat.threads < 2 or not entry.facts.python:
            return frozenset()
        if entry.threads.intersection(candidates.RANK_THREADS):
            return entry.threads
        return frozenset(activity.thread_names(entry.stat.pid).values())

    def _forget(self) -> None:
        if self._pass % 60 == 0:
            alive = {entry.identity for entry in self.entries.values()}
            self._learned = {k: v for k, v in self._learned.items() if k in alive}
            self._numbered = {k: v for k, v in self._numbered.items() if k in alive}
            self._with_torch &= alive

    def learn(self, identity: Identity, what: Learned) -> None:
        """Take in the facts from a stack sample."""
        with self._lock:
            known = self._learned.get(identity, Learned())
            told = zip(Learned(), known, what)
            merged = Learned._make(old if new == unset else new for unset, old, new in told)
            if merged != known:
                self._learned[identity] = merged
                self._dirty = True

    def note_torch(self, identity: Identity) -> None:
        """Note that torch is loaded into a process."""
        with self._lock:
            self._dirty = self._dirty or identity not in self._with_torch
            self._with_torch.add(identity)

    def lead(self, identity: Identity, tid: Optional[int]) -> None:
        """Note which thread of a rank runs its program: None for the main thread."""
        with self._lock:
            entry = self.entries.get(identity[0])
            if entry is not None and entry.identity == identity:
                entry.activity.lead(tid or entry.stat.pid)

    def _discover(self) -> None:
        self._dirty = False
        ended.fill(self.entries)
        table = {pid: self._candidate(entry) for pid, entry in self.entries.items() if entry.mine}
        before = self.roles
        self.roles = discovery.attribute(table, own_processes(self.entries), self._named())
        for pid, role in self.roles.items():
            if role.role == "rank" and role.rank is not None:
                self._numbered[self.entries[pid].identity] = role.rank, role.rank_source
        if self.only is not None:
            self.roles = scoping.restrict(self.roles, table, self.only, before)
        if self.slurm is not None:
            self.roles = scoping.of_slurm(self.roles, table, *self.slurm)

    def _named(self) -> FrozenSet[int]:
        """Return the pids that the user named, of processes that had time to start ranks."""
        named = self.only or frozenset()
        entries = [self.entries[pid] for pid in named if pid in self.entries]
        is_new = time.monotonic() - self._since < _SAMPLED_S
        young = [one for one in entries if is_new or procfs.age(one.stat) < _STARTED_S]
        self._dirty = bool(young)  # to be looked at again
        return named.difference(one.stat.pid for one in young)

    def _embeds_python(self, entry: Entry) -> bool:
        """Whether a process that the user named has a library of Python, whatever it is."""
        return entry.stat.pid in (self.only or ()) and mapped.embeds_python(entry.stat.pid)

    def _candidate(self, entry: Entry) -> candidates.Candidate:
        known = self._learned.get(entry.identity, Learned())
        return candidates.Candidate(
            pid=entry.stat.pid,
            ppid=entry.stat.ppid,
            start=entry.stat.start,
            comm=entry.stat.comm,
            cmdline=entry.facts.cmdline,
            environ=entry.facts.environ,
            python=entry.facts.python or self._embeds_python(entry),
            threads=entry.threads,
            wrap_rank=known.wrap_rank,
            local_rank=known.local_rank,
            first_argument=known.first_argument,
            told_rank=known.told[0] if known.told else None,
            known=self._numbered.get(entry.identity, (None, None)),
            rank_at_start=entry.facts.rank_at_start,
            has_torch=entry.identity in self._with_torch,
            is_exiting=known.is_exiting,
            is_worker=known.is_worker,
            worker_id=known.worker_id,
            is_debug_server=known.is_debug_server,
            is_agent=known.is_agent,
            framework=known.framework,
        )

    def scope(
        self,
        all_users: bool,
        only: Optional[FrozenSet[int]],
        slurm: Optional[Tuple[FrozenSet[str], Optional[str]]] = None,
    ) -> None:
        """Choose whose processes are reported: all for root, and whosever they are if named."""
        with self._lock:
            self.all_users = all_users or only is not None or self.rights.uid == 0
            self.only = only
            self.slurm = slurm
            for entry in self.entries.values():
                entry.mine = self.all_users or entry.facts.uid == self.rights.uid
            self._dirty = True

    def processes(self) -> Dict[int, Dict[str, Any]]:
        """Return the fields of model.Process of everything that is reported, by pid."""
        with self._lock:
            return {
                pid: self._process(self.entries[pid], role)
                for pid, role in self.roles.items()
                if pid in self.entries
            }

    def _process(self, entry: Entry, role: discovery.Attribution) -> Dict[str, Any]:
        stat = self._untraced(entry)
        if entry.described < 0 or self._pass - entry.described >= _DESCRIBE or entry.young:
            entry.described = self._pass
            self._describe(entry)
        zombie = stat.state == "Z"
        threads = [] if zombie else entry.activity.threads(entry.by_us)
        fields = {**entry.slow, **role._asdict(), "pid": stat.pid}
        fields.update(
            ppid=stat.ppid,
            start=stat.start,
            started_at=round(self._boot + stat.start / procfs.CLOCK_TICKS, 2),
            state=stat.state,
            comm=stat.comm,
            threads=threads,
            thread_count=stat.threads,
            meters=entry.activity.meters(stat, self._clock),
            tracer_pid=entry.tracer[0],
            tracer=entry.tracer[1],
            dumping_core=entry.dumping_core,
            flows=entry.look_at_flows(threads),
        )
        if role.role == "rank":
            fields["program_tid"] = entry.activity.main if entry.activity.main != stat.pid else None
            known = self._learned.get(entry.identity, Learned())
            fields.update(zip(("told_rank", "told_size", "told_port"), known.told))
            fields["stalled"] = [] if zombie else self.stalled.of(stat.pid)
            fields["file"] = entry.look_at_file(threads, self._file_guard)
        if zombie and (self.rights.capable or entry.facts.uid == self.rights.uid):
            fields["exit_code"] = procfs.wait_status(stat.exit_status)
        return fields

    def _untraced(self, entry: Entry) -> procfs.Stat:
        """Return its state as it would be without a tool of ours, and note who traces it."""
        stat, ours = entry.stat, self.tools()
        if ours or entry.by_us or stat.state in "tTDI" or (self._pass + stat.pid) % 3 == 0:
            status = procfs.read("/proc/%d/status" % stat.pid) or b""
            entry.tracer = tracer_of(status)
            # Linux 4.15. While it is written, threads are in D or I (kernel/exit.c).
            entry.dumping_core = bool(procfs.value_of(status, b"CoreDumping"))
        # A tool may start or end while the state of its target is read.
        entry.by_us = entry.tracer[0] in ours or entry.tracer[0] in self.tools()
        if stat.state == "t" and entry.tracer[0] == 0:
            stat = procfs.read_stat(stat.pid) or stat
        if entry.by_us:
            entry.tracer = (0, None)
            return stat._replace(state=entry.state) if stat.state == "t" else stat
        entry.state = stat.state
        return stat

    def _describe(self, entry: Entry) -> None:
        pid, known = entry.stat.pid, entry.facts
        if entry.stat.state == "Z" and entry.slow:
            return
        try:
            entry.slow = self._guard.call(lambda: facts.describe(pid, known))
            group, held = self._guard.call(lambda: cgroups.read(pid))
            share = None if held is None else held.share(entry.held)
            entry.slow.update(group, cpu_throttled=share)
            if share is not None or entry.held is None:
                entry.held = held
        except Hanging:
            entry.slow = entry.slow or {"denied": known.denied}
        facts.remember(self.outputs, entry.slow.get("outputs", ()), entry.facts.uid)
        if self.roles[pid].role == "rank" and not entry.versions:
            with contextlib.suppress(Hanging):
                entry.versions = self._file_guard.call(lambda: versions.read(pid))
        entry.slow["versions"] = entry.versions

    def guarded_cpu(self) -> float:
        """Return the CPU seconds that reading through the guard has cost so far."""
        return self._guard.cpu_s + self._file_guard.cpu_s + self._memory_guard.cpu_s

    def python_processes(self) -> List[Tuple[int, Tuple[str, ...]]]:
        """Return pids and command lines of Python processes that are no ranks."""
        with self._lock:
            told = own_processes(self.entries).union(self.roles)
            found = sorted(self.entries.items()) if self.only is None else []
            others = [(pid, one.facts) for pid, one in found if one.mine and pid not in told]
        lines = [(pid, one.cmdline) for pid, one in others if one.python]
        return [(pid, one) for pid, one in lines if not commands.runs_hangtop(one)]

    def other_users(self) -> Dict[str, int]:
        """Return how many rank-like processes of other users were left out, by user."""
        counts: Dict[str, int] = {}
        with self._lock:
            for entry in self.entries.values():
                if entry.mine or not entry.facts.python:
                    continue
                parent = self.entries.get(entry.stat.ppid)
                launched = parent is not None and launchers.owner("comms", parent.stat.comm)
                if launched or entry.threads.intersection(candidates.RANK_THREADS):
                    name = permission.user_name(entry.facts.uid)
                    counts[name] = counts.get(name, 0) + 1
        return counts

    def unconfirmed(self) -> List[Identity]:
        """Return processes that may be mp.spawn ranks, or agents of torchrun, not yet confirmed."""
        with self._lock:
            may = unconfirmed.Unconfirmed(self.entries, self.roles, self.only)
            known = {one: self._learned.get(one, Learned()) for one in may.identities()}
            return [one for one, learned in known.items() if not learned.confirms]

    def identity(self, pid: int) -> Optional[Identity]:
        """Return pid and start time of a live process."""
        stat = procfs.read_stat(pid)
        return None if stat is None else (pid, stat.start)

    def is_worker(self, identity: Identity) -> bool:
        """Whether a process is a DataLoader worker whose id is not known for sure."""
        role, known = self.roles.get(identity[0]), self._learned.get(identity, Learned())
        return role is not None and role.role == "dataloader-worker" and known.worker_id is None

    def is_rank(self, identity: Identity) -> bool:
        """Whether a process is a rank, as far as is known by now."""
        role, known = self.roles.get(identity[0]), self._learned.get(identity, Learned())
        return known.wrap_rank is not None or (role is not None and role.role == "rank")
