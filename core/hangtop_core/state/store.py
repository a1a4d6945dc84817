"""Folds what probes tell into the newest state of everything, and publishes frozen `Snapshot`s.

One writer, the session's thread. What did not change since the last snapshot is the same object
in the next one, so a snapshot costs what has changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.fields import pid_of, read_changes, read_node, read_whole
from hangtop_core.attach.wire.messages import MAX_PROCESSES, BadPieceError
from hangtop_core.attach.wire.strings import read_strings
from hangtop_core.logs.meaning import kernel_lines
from hangtop_core.model.meters import Meters
from hangtop_core.model.node import cgroups
from hangtop_core.model.snapshot import Node, Process, Snapshot
from hangtop_core.state.job_table import JobTable
from hangtop_core.state.node_view import NodeView
from hangtop_core.state.outputs import Outputs
from hangtop_core.state.stack_table import StackTable
from hangtop_core.state.tracked import Tracked
from hangtop_core.text.clean import from_afar
from hangtop_probe.node.wallclock import WallClock

if TYPE_CHECKING:
    from hangtop_core.attach.wire.reports import LogPiece

Complain = Callable[[str], None]
SAME_CLOCK = 0.1
"""Seconds by which a clock may differ before it counts as skewed: the way here takes time."""
EARLY, LATE = 10.0, 60.0
"""Seconds before and after which a piece cannot come: a clock was set. Much is late, nothing early
but where the hello was late itself."""

_IDENTITY = frozenset(
    {
        "role",
        "rank",
        "rank_source",
        "rank_pid",
        "launcher_pid",
        "launcher",
        "env",
        "cmdline",
        "ppid",
        "gone_at",
    }
)
"""Fields that decide to which job a process belongs."""
_NAMING = frozenset({"hostname", "addresses", "boot_id", "pid_ns"})
"""Fields that tell which addresses mean a node."""

_ROUTINE = frozenset({"last_seen", "probe_cpu", "latency_s"})
"""Fields of a node that change all the time, and mean nothing to a verdict."""


class Store:
    """The newest state and a bounded history of every rank."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeView] = {}
        self.stacks = StackTable()
        self.outputs = Outputs()
        self._jobs = JobTable()
        self._observed_since: float | None = None
        self._news = True
        self._tick, self._clock = 0, WallClock()

    # Nodes

    def add_node(self, name: str, at: float) -> None:
        """Add a node that is about to be connected to."""
        self.nodes[name] = NodeView(Node(name=name, since=at))

    def change_node(self, name: str, changes: Mapping[str, Any]) -> None:
        """Set fields of a node."""
        view = self.nodes[name]
        view.node = msgspec.structs.replace(view.node, **changes)
        if not _NAMING.isdisjoint(changes):
            self._jobs.regroup = True
        if not _ROUTINE.issuperset(changes):
            self._tell(view)

    def connected(self, name: str, clock: float | None, same_machine: bool, at: float) -> None:
        """Note a new connection: its first piece will be a whole one, on this clock."""
        view = self.nodes[name]
        view.strings = {}
        view.left_out.clear()
        view.fresh = True
        view.skew = _skew_at_hello(clock, same_machine, at)
        view.same_clock = same_machine
        self.change_node(name, {"clock_skew_s": round(view.skew, 3)})

    def follow_clock(self, name: str, clock: float, at: float, by: float = 0.0) -> bool:
        """Follow a clock that was set, ``by`` what its node says, or here. Whether it was."""
        here = self._clock.set_by()
        for other in self.nodes.values() if here else ():
            other.skew -= 0.0 if other.same_clock else here
        view = self.nodes[name]
        if view.same_clock:
            return False
        view.skew += by
        if _was_set(view.skew, clock, at):
            view.skew = clock - at
        elif not (by or here):
            return False
        view.at = None
        self.change_node(name, {"clock_skew_s": round(view.skew, 3)})
        return True

    # The process table

    def fold_watch(self, name: str, piece: messages.WatchPiece, complain: Complain) -> None:
        """Fold one piece of a node's `watch` stream; what cannot be read is complained about."""
        view = self.nodes[name]
        at = piece.at - view.skew
        before = view.at if view.at is not None else at
        if self._observed_since is None:
            self._observed_since = at
        for wrong in read_strings(view.strings, piece.strings):
            complain(wrong)
        fields, wrongs = read_node(piece.node)
        fields["last_seen"] = at
        kernel_lines.on_this_clock(view.node, view.skew, fields, at)
        cgroups.follow(view.node.cgroups, fields, at)
        if piece.probe_cpu is not None:
            fields["probe_cpu"] = piece.probe_cpu
        fields |= view.devices.fold(piece, at, view.skew, complain)
        self.change_node(name, fields)
        for wrong in wrongs:
            complain(f"node: {wrong}")
        for pid, raw in piece.gone.items():
            self._leave(view, pid, raw, at, complain)
        for pid, raw in islice(piece.set.items(), MAX_PROCESSES + 1):
            self._set(view, pid, raw, at, before, complain)
        if view.fresh:
            self._sweep(view, piece.set, at)
        for number in list(view.warm) if view.at is not None else ():
            self._pass_time(view, number, at)
        view.at, view.pause = at, piece.pause
        view.fresh = False

    def _set(
        self, view: NodeView, pid: str, raw: object, at: float, before: float, complain: Complain
    ) -> None:
        number = pid_of(pid)
        if number is not None and number not in view.live:
            new = read_whole(raw, view.strings, view.node.name, view.skew)
            if new is not None:
                self._add_whole(view, number, new, at, complain)
                return
        changes, wrong = read_changes(raw, view.strings)
        for text in wrong:
            complain(f"process {pid[:12]}: {text}")
        if number is None or not changes:
            return
        _convert(changes, view)
        known = self._same_process(view, number, changes, at)
        if "meters" in changes:
            last = known.process.meters if known is not None else Meters()
            changes["meters"] = msgspec.structs.replace(last, **changes["meters"])
        if known is None:
            self._add_part(view, number, changes, at, complain)
            return
        if known.apply(changes, at, before):
            tell = self._moved if changes.keys() <= {"pid", "meters"} else self.touched
            tell(view, known)
            view.warm.add(number)
        if not _IDENTITY.isdisjoint(changes):
            self._jobs.regroup = True

    def _same_process(
        self, view: NodeView, pid: int, changes: Mapping[str, Any], at: float
    ) -> Tracked | None:
        """Return the live process; None, and it has left, where its pid is another one's now."""
        known = view.live.get(pid)
        if known is not None and changes.get("start", known.process.start) != known.process.start:
            self._forget_live(view, known, at, None)
            return None
        return known

    def _add_whole(
        self, view: NodeView, pid: int, process: Process, at: float, complain: Complain
    ) -> None:
        if process.denied and view.node.shell is not None:
            process = msgspec.structs.replace(process, denied=from_afar(process.denied))
        self._add(view, pid, process, at, complain)

    def _add_part(
        self, view: NodeView, pid: int, changes: dict[str, Any], at: float, complain: Complain
    ) -> None:
        """Add a process of which not all could be read."""
        try:
            process = Process(node=view.node.name, **changes)
        except TypeError:
            if pid not in view.left_out:
                view.left_out.add(pid)
                complain(f"process {pid}: not whole")
            return
        self._add(view, pid, process, at, complain)

    def _add(
        self, view: NodeView, pid: int, process: Process, at: float, complain: Complain
    ) -> None:
        if len(view.live) >= MAX_PROCESSES:
            if not view.left_out:
                complain(f"more than {MAX_PROCESSES} processes: the others are left out")
            view.left_out.add(pid)
            return
        if process.pid != pid:
            complain(f"process {pid}: says its pid is {process.pid}")
            return
        known = Tracked(view.node.name, process, at)
        view.live[pid] = known
        view.warm.add(pid)
        self._jobs.add(known)

    def _leave(self, view: NodeView, pid: str, raw: object, at: float, complain: Complain) -> None:
        known = view.live.get(pid_of(pid) or 0)
        if known is None:
            return
        code: int | None = None
        try:
            code = messages.decode(raw, messages.Gone).exit_code
        except BadPieceError as error:
            complain(f"process {pid}: {error}")
        self._forget_live(view, known, at, code)

    def _forget_live(self, view: NodeView, known: Tracked, at: float, code: int | None) -> None:
        code = known.process.exit_code if code is None else code
        known.leave(at, code)
        del view.live[known.process.pid]
        view.warm.discard(known.process.pid)
        view.gone.append(known)
        self.touched(view, known)
        self._jobs.regroup = True

    def _sweep(self, view: NodeView, present: Mapping[str, Any], at: float) -> None:
        """After a reconnection: whoever is not in the whole piece left while we were away."""
        for pid, known in list(view.live.items()):
            if str(pid) not in present:
                self._forget_live(view, known, at, None)

    def _pass_time(self, view: NodeView, pid: int, at: float) -> None:
        known = view.live[pid]
        before = known.cpu_share, known.main_cpu_share
        known.pass_time(at)
        if known.settled:
            view.warm.discard(pid)
        if before != (known.cpu_share, known.main_cpu_share):
            self._moved(view, known)

    def _moved(self, view: NodeView, known: Tracked) -> None:
        """Note that meters moved; those of a launcher, which polls for ever, are no news."""
        (self.aged if known.process.role == "launcher" else self.touched)(view, known)

    def touched(self, view: NodeView, known: Tracked) -> None:
        """Note that the picture of a process, and so of its rank and job, is to be made anew."""
        self._tell(view)
        self.aged(view, known)

    def _tell(self, view: NodeView) -> None:
        """Note that something is new."""
        view.told += 1
        self._news = True

    def aged(self, view: NodeView, known: Tracked) -> None:
        """Note that the picture is to be made anew although nothing new is known: time passed."""
        known.touch()
        process = known.process
        if process.rank_pid is not None and process.rank_pid != process.pid:
            owner = view.live.get(process.rank_pid)
            if owner is not None:
                owner.touch()
                known = owner
        self._jobs.changed(known)

    def read_output(self, name: str, piece: LogPiece) -> None:
        """Fold the end of a log file."""
        self._news = self.outputs.fold(name, piece, self.nodes[name].skew) or self._news

    def live(self, name: str, pid: int, start: int | None = None) -> Tracked | None:
        """Return the live process with this pid, and this start time where it is known."""
        known = self.nodes[name].live.get(pid)
        if known is not None and start is not None and known.process.start != start:
            return None
        return known

    def ended_by_slurm(self, key: str, how: str) -> None:
        """Note how Slurm ended a job."""
        self._jobs.ended_by_slurm(key, how)
        self._news = True

    def keep(self, jobs: frozenset[str]) -> None:
        """Keep listing these jobs, by key, however long ago they ended."""
        self._jobs.keep = jobs

    # Snapshots

    def publish(self, now: float) -> Snapshot:
        """Return everything known at ``now``."""
        self._tick += 1
        if self._tick % 5 == 0:
            self._jobs.prune(self.nodes.values(), now)
        made = self._jobs.publish(self.nodes.values())
        self._news = False
        self.stacks.trim(self._used_stacks)
        return Snapshot(
            at=now,
            observed_since=self._observed_since if self._observed_since is not None else now,
            tick=self._tick,
            nodes=tuple(view.node for view in self.nodes.values()),
            jobs=made,
            stacks=self.stacks.publish(),
            outputs=self.outputs.read(),
        )

    @property
    def news(self) -> bool:
        """Whether anything was told since the last snapshot that may change what is concluded."""
        return self._news or self._jobs.regroup

    @property
    def rank_count(self) -> int:
        """Ranks of all jobs, as of the last snapshot."""
        return self._jobs.rank_count

    @property
    def growth(self) -> float:
        """How many times as many processes are known as when the last snapshot was made."""
        return self._jobs.growth

    def odd_ranks(self) -> dict[str, frozenset[int]]:
        """Return by node the pids of ranks whose main stack few others of their job share."""
        return self._jobs.odd_ranks(self.stacks)

    def _used_stacks(self) -> Iterable[str]:
        for view in self.nodes.values():
            for known in view.processes():
                if known.sample is not None:
                    yield from (thread.stack for thread in known.sample.threads)


def _convert(changes: dict[str, Any], view: NodeView) -> None:
    """Put changes of a process on the head's clock, and refusals as they read from afar."""
    if changes.get("denied") and view.node.shell is not None:
        changes["denied"] = from_afar(changes["denied"])
    if "started_at" in changes:
        changes["started_at"] -= view.skew


def _skew_at_hello(clock: float | None, same_machine: bool, at: float) -> float:
    """Return the skew in seconds of a clock that was read there and came here ``at``."""
    skew = 0.0 if clock is None or same_machine else clock - at
    return skew if abs(skew) > SAME_CLOCK else 0.0


def _was_set(skew: float, clock: float, at: float) -> bool:
    """Whether a clock was set meanwhile, as what was read there came here ``at``."""
    return not -LATE < clock - skew - at < EARLY
