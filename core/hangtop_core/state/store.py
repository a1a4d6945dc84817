"""Folds the messages of probes into the newest state, and publishes frozen `Snapshot`s.

Only the session's thread writes. Unchanged parts are the same objects in the next snapshot, so a
snapshot costs as much as has changed, not as much as exists.
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
"""Seconds by which a clock may differ before it counts as skewed: the message takes time."""
EARLY, LATE = 10.0, 60.0
"""A piece that is earlier or later than this many seconds proves that a clock was set. Pieces are
often late, but early only where the hello itself was late."""

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
"""Fields that decide which addresses mean a node."""

_ROUTINE = frozenset({"last_seen", "probe_cpu", "latency_s"})
"""Fields of a node that change all the time, and do not affect a verdict."""


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
        """Add a node that is about to be connected."""
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
        """Note a new connection: its first piece will be complete, on this clock."""
        view = self.nodes[name]
        view.strings = {}
        view.left_out.clear()
        view.fresh = True
        view.skew = _skew_at_hello(clock, same_machine, at)
        view.same_clock = same_machine
        self.change_node(name, {"clock_skew_s": round(view.skew, 3)})

    def follow_clock(self, name: str, clock: float, at: float, by: float = 0.0) -> bool:
        """Adjust the skew to a clock that was set, there by ``by`` or here; return if it was."""
        set_here = self._clock.set_by()
        for other_view in self.nodes.values() if set_here else ():
            other_view.skew -= 0.0 if other_view.same_clock else set_here
        view = self.nodes[name]
        if view.same_clock:
            return False
        view.skew += by
        if _was_set(view.skew, clock, at):
            view.skew = clock - at
        elif not (by or set_here):
            return False
        view.at = None
        self.change_node(name, {"clock_skew_s": round(view.skew, 3)})
        return True

    # The process table

    def fold_watch(self, name: str, piece: messages.WatchPiece, complain: Complain) -> None:
        """Fold one piece of a node's `watch` stream; report unreadable parts with ``complain``."""
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
        tracked = self._same_process(view, number, changes, at)
        if "meters" in changes:
            last = tracked.process.meters if tracked is not None else Meters()
            changes["meters"] = msgspec.structs.replace(last, **changes["meters"])
        if tracked is None:
            self._add_part(view, number, changes, at, complain)
            return
        if tracked.apply(changes, at, before):
            tell = self._moved if changes.keys() <= {"pid", "meters"} else self.touched
            tell(view, tracked)
            view.warm.add(number)
        if not _IDENTITY.isdisjoint(changes):
            self._jobs.regroup = True

    def _same_process(
        self, view: NodeView, pid: int, changes: Mapping[str, Any], at: float
    ) -> Tracked | None:
        """Return the live process; drop it and return None if its pid has been reused."""
        tracked = view.live.get(pid)
        if (
            tracked is not None
            and changes.get("start", tracked.process.start) != tracked.process.start
        ):
            self._forget_live(view, tracked, at, None)
            return None
        return tracked

    def _add_whole(
        self, view: NodeView, pid: int, process: Process, at: float, complain: Complain
    ) -> None:
        if process.denied and view.node.shell is not None:
            process = msgspec.structs.replace(process, denied=from_afar(process.denied))
        self._add(view, pid, process, at, complain)

    def _add_part(
        self, view: NodeView, pid: int, changes: dict[str, Any], at: float, complain: Complain
    ) -> None:
        """Add a process that could only be read in part."""
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
        tracked = Tracked(view.node.name, process, at)
        view.live[pid] = tracked
        view.warm.add(pid)
        self._jobs.add(tracked)

    def _leave(self, view: NodeView, pid: str, raw: object, at: float, complain: Complain) -> None:
        tracked = view.live.get(pid_of(pid) or 0)
        if tracked is None:
            return
        code: int | None = None
        try:
            code = messages.decode(raw, messages.Gone).exit_code
        except BadPieceError as error:
            complain(f"process {pid}: {error}")
        self._forget_live(view, tracked, at, code)

    def _forget_live(self, view: NodeView, tracked: Tracked, at: float, code: int | None) -> None:
        code = tracked.process.exit_code if code is None else code
        tracked.leave(at, code)
        del view.live[tracked.process.pid]
        view.warm.discard(tracked.process.pid)
        view.gone.append(tracked)
        self.touched(view, tracked)
        self._jobs.regroup = True

    def _sweep(self, view: NodeView, present: Mapping[str, Any], at: float) -> None:
        """Drop processes that exited while the node was disconnected: they are not in the piece."""
        for pid, tracked in list(view.live.items()):
            if str(pid) not in present:
                self._forget_live(view, tracked, at, None)

    def _pass_time(self, view: NodeView, pid: int, at: float) -> None:
        tracked = view.live[pid]
        before = tracked.cpu_share, tracked.main_cpu_share
        tracked.pass_time(at)
        if tracked.settled:
            view.warm.discard(pid)
        if before != (tracked.cpu_share, tracked.main_cpu_share):
            self._moved(view, tracked)

    def _moved(self, view: NodeView, tracked: Tracked) -> None:
        """Note that meters moved; those of a launcher, which polls for ever, are no news."""
        (self.aged if tracked.process.role == "launcher" else self.touched)(view, tracked)

    def touched(self, view: NodeView, tracked: Tracked) -> None:
        """Note that a process changed, so that its rank and job must be rebuilt."""
        self._tell(view)
        self.aged(view, tracked)

    def _tell(self, view: NodeView) -> None:
        """Note a change of the node."""
        view.changes += 1
        self._news = True

    def aged(self, view: NodeView, tracked: Tracked) -> None:
        """Note that a process must be rebuilt only because time has passed."""
        tracked.touch()
        process = tracked.process
        if process.rank_pid is not None and process.rank_pid != process.pid:
            owner = view.live.get(process.rank_pid)
            if owner is not None:
                owner.touch()
                tracked = owner
        self._jobs.changed(tracked)

    def read_output(self, name: str, piece: LogPiece) -> None:
        """Fold the end of a log file."""
        self._news = self.outputs.fold(name, piece, self.nodes[name].skew) or self._news

    def live(self, name: str, pid: int, start: int | None = None) -> Tracked | None:
        """Return the live process with this pid, and with this start time if given."""
        tracked = self.nodes[name].live.get(pid)
        if tracked is not None and start is not None and tracked.process.start != start:
            return None
        return tracked

    def ended_by_slurm(self, key: str, how: str) -> None:
        """Note how Slurm ended a job."""
        self._jobs.ended_by_slurm(key, how)
        self._news = True

    def keep(self, jobs: frozenset[str]) -> None:
        """Keep listing these jobs, by key, however long ago they ended."""
        self._jobs.keep = jobs

    # Snapshots

    def publish(self, now: float) -> Snapshot:
        """Return a snapshot of the state at ``now``."""
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
        """Return whether there are changes since the last snapshot that may affect a verdict."""
        return self._news or self._jobs.regroup

    @property
    def rank_count(self) -> int:
        """Return the number of ranks of all jobs in the last snapshot."""
        return self._jobs.rank_count

    @property
    def growth(self) -> float:
        """Return the present number of processes divided by that of the last snapshot."""
        return self._jobs.growth

    def outlier_ranks(self) -> dict[str, frozenset[int]]:
        """Return by node the pids of ranks whose main stack few others of their job share."""
        return self._jobs.outlier_ranks(self.stacks)

    def _used_stacks(self) -> Iterable[str]:
        for view in self.nodes.values():
            for tracked in view.processes():
                if tracked.sample is not None:
                    yield from (thread.stack for thread in tracked.sample.threads)


def _convert(changes: dict[str, Any], view: NodeView) -> None:
    """Convert changed fields to the head's clock, and reword refusals for a remote node."""
    if changes.get("denied") and view.node.shell is not None:
        changes["denied"] = from_afar(changes["denied"])
    if "started_at" in changes:
        changes["started_at"] -= view.skew


def _skew_at_hello(clock: float | None, same_machine: bool, at: float) -> float:
    """Return the skew in seconds of a clock that was read on the node and arrived here ``at``."""
    skew = 0.0 if clock is None or same_machine else clock - at
    return skew if abs(skew) > SAME_CLOCK else 0.0


def _was_set(skew: float, clock: float, at: float) -> bool:
    """Return whether a clock was set since the hello, by a reading that arrived here ``at``."""
    return not -LATE < clock - skew - at < EARLY
