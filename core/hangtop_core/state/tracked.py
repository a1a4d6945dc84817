"""State of one process over time: movement, shares of a core, and the newest sample."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.analysis.waking import met_asleep
from hangtop_core.jobs.joining import launch_info
from hangtop_core.model.activity_window import ActivityWindow
from hangtop_core.model.meters import (
    grown,
    io_bytes,
    latest,
    moved_at,
    only_waited,
    point,
    sent_back,
)
from hangtop_core.model.rankstates import rank_state
from hangtop_core.model.recurring import Recurring
from hangtop_core.model.samples import continued, with_native_frames
from hangtop_core.model.snapshot import DescriptorTable, Process, Rank, Recorder, StackSample
from hangtop_core.state.file_rate import IO_NOISE, MUCH, MUCH_READ, FileRate
from hangtop_core.state.while_loops import Home, Whiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.model.meters import Meters, Point
    from hangtop_core.model.numerics import Numerics
    from hangtop_core.model.recorder.ras import Ras
    from hangtop_core.state.stack_table import StackTable

SHARE_WINDOW = 5.0
"""Seconds over which shares of a core are averaged."""
MAX_POINTS = 64
"""Maximum number of readings in that time."""
MOVE_JITTER = 0.05
"""Seconds by which two readings of one scheduler time may differ."""
WORK_NS = 2_000_000
"""CPU time, in nanoseconds between two readings, that is work and not a mere wake-up; more, in
proportion, where they are more than `WORK_GAP` seconds apart, because wake-ups add up."""
WORK_GAP = 5.0
COMPUTES_SHARE, COMPUTES_NS = 0.01, 200_000
"""Minimum cores, and nanoseconds per sleep, of a main thread that computes between its sleeps: to
poll for a file takes 0.1 ms."""
MAX_FLOWS = 8192
"""Maximum threads whose last progress in a connection is kept; the node reports 4096."""
MAX_DISTURBED = 8
"""Maximum number of times hangtop stopped a process that are remembered."""
WAKE_GRACE = 2.0
"""Seconds after a tool has released a process during which the tool caused its CPU use."""

_pid = attrgetter("process.pid")
_NOTHING: Mapping[int, Any] = {}
_OF_CHILDREN = ("sample", "moved_at", "left_at", "io_moved_at", "much_at", "given", "cpu_share",
                "descriptors")  # fmt: skip
_OF_NONE = (_NOTHING,) * len(_OF_CHILDREN)
"""Most ranks have no children, and thousands of them are rebuilt each second: they share one empty
value, to spare the garbage collector objects to scan."""


class Tracked:
    """One process of one node. Only the store writes it; `rank` makes the frozen rank."""

    # There are as many as processes, with more attributes than Python's shared-key dicts support.
    # fmt: off
    __slots__ = (
        "_built", "_disturbed", "_home", "_points", "attempts", "children", "computed_at",
        "cpu_share", "descriptors", "file_rate", "flowed_at", "full_sample_at", "info",
        "io_moved_at", "left_at", "main_cpu_share", "moved_at", "moving_samples", "node",
        "numerics", "numerics_asked", "parent", "printed_at", "process", "ras", "read_at",
        "recorder", "recorder_asked", "recurring", "sample", "serves", "settled", "slept", "whiles",
        "window", "worked_at", "wrote_at",
    )
    # fmt: on

    def __init__(self, node: str, process: Process, at: float) -> None:
        self.node = node
        self.process = process
        self.parent = process.launcher_pid or process.ppid
        """Pid of its starter; kept, because an orphan's parent is another process."""
        self.info = launch_info(process.env)
        self.moved_at: float | None = None
        self.left_at: float | None = None
        """When the main thread last ran, without returns into the same wait."""
        self.slept = met_asleep(process, at)
        self.io_moved_at: float | None = None
        self.printed_at: float | None = None
        self.wrote_at: float | None = None
        self.read_at: float | None = None
        self.worked_at: float | None = None
        self.computed_at: float | None = None
        self.file_rate = FileRate()
        self.window = ActivityWindow()
        self.recurring = Recurring()
        self.flowed_at: dict[int, float] = {tid: at for tid, _ in process.flows}
        self.cpu_share: float | None = None
        self.main_cpu_share: float | None = None
        self.sample: StackSample | None = None
        self.full_sample_at = 0.0
        """When py-spy last really ran; renewed samples do not count."""
        self.attempts = 0
        """Number of failed samples in a row."""
        self._home = Home()
        """The functions it returns to, since when, and in which share of samples."""
        self.whiles = Whiles()
        self.serves = False  # whether one of its threads answers a call by RPC
        self.moving_samples = 0
        """Number of samples in a row before each of which the main thread had run."""
        self.descriptors: DescriptorTable | None = None
        self.recorder: Recorder | None = None
        self.ras: Ras | None = None
        self.numerics: Numerics | None = None
        self.numerics_asked: float | None = None
        self.recorder_asked = 0.0
        """When its recorder was last requested."""
        self.children: dict[int, Tracked] = {}
        self.settled = False
        """Whether the shares are 0 over the whole window, so that time alone changes nothing."""
        self._points: list[Point] = []
        self._disturbed: tuple[tuple[float, float], ...] = ()
        self._built: Rank | None = None
        self._see_movement(None, process.meters, at, at)
        self.pass_time(at)

    @property
    def gone(self) -> bool:
        """Return whether the process has exited."""
        return self.process.gone_at is not None

    @property
    def much_at(self) -> float | None:
        """Return when it last read or wrote much."""
        return latest((self.wrote_at, self.read_at))

    @property
    def given(self) -> tuple[float, ...] | None:
        """Return when its main thread read data; None where it was not seen to."""
        return self.recurring.given or None

    def disturb(self, since: float) -> None:
        """Note that hangtop itself stops the process from now on: attaching wakes its threads."""
        span = (since - WAKE_GRACE / 2, float("inf"))
        self._disturbed = (*self._disturbed[1 - MAX_DISTURBED :], span)

    def let_go(self, until: float) -> None:
        """Note that hangtop stops it no longer."""
        until += WAKE_GRACE
        self._disturbed = tuple((since, min(end, until)) for since, end in self._disturbed)

    def _undisturbed(self, at: float) -> bool:
        return not any(since <= at <= until for since, until in self._disturbed)

    def touch(self) -> None:
        """Mark the rank as changed, to be rebuilt."""
        self._built = None

    def apply(self, changes: Mapping[str, Any], at: float, before: float) -> bool:
        """Fold changed fields, read at ``at``; the reading before was at ``before``.

        Return whether the rank changed.
        """
        old = self.process
        new = msgspec.structs.replace(old, **changes)
        # CPU time of the main thread while the kernel writes its core is no progress.
        dumping = old.dumping_core and new.dumping_core
        old_meters: Meters | None = old.meters
        if old.program_tid != new.program_tid:  # the former one only served a framework
            self.moved_at = self.left_at = self.worked_at = self.computed_at = old_meters = None
            self._points.clear()
        changed = not dumping and self._see_movement(old_meters, new.meters, at, before)
        if old.meters.rss != new.meters.rss:
            self.whiles.forget()
        if "file" in changes:
            self.file_rate.see(old.file, new.file, at, before)
        if "flows" in changes:
            self._see_flows(old, new, at)
        if not changed and only_waited(old.meters, new.meters):
            new = msgspec.structs.replace(new, meters=old.meters)
        if new != old:
            self._set_process(new, at, before)
            changed = True
        if changed:
            self.touch()
        return changed

    def _see_flows(self, old: Process, new: Process, at: float) -> None:
        self.flowed_at.update({tid: at for tid, _ in set(new.flows).difference(old.flows)})
        if len(self.flowed_at) > MAX_FLOWS:
            self.flowed_at = {tid: self.flowed_at[tid] for tid, _ in new.flows}

    def _set_process(self, new: Process, at: float, before: float) -> None:
        old = self.process
        if self.settled:
            # Nothing was noted while nothing moved: for the whole window before now.
            rested = min(before, at - SHARE_WINDOW)
            self._points[:] = point(rested, old.meters), point(before, old.meters)
            self.settled = False
        self.process = new
        self.slept = met_asleep(new, at) or self.slept
        self.parent = new.launcher_pid or self.parent
        self.info = self.info if new.env is old.env else launch_info(new.env)

    def _see_movement(self, old: Meters | None, new: Meters, at: float, before: float) -> bool:
        """Compare counters with those read ``before``; return whether any has moved."""
        news = self._see_run(old, new, at, before)
        if old is None:
            return news
        work = WORK_NS * max((at - before) / WORK_GAP, 1.0)
        if grown(old.main_cpu_ns, new.main_cpu_ns) > work and self._undisturbed(at):
            self.worked_at = at
            news = True
        if grown(old.main_read_bytes, new.main_read_bytes) and self._undisturbed(at):
            self.recurring.read(at)
            news = True
        return (at > before and self._see_io(old, new, at, at - before)) or news

    def _see_run(self, old: Meters | None, new: Meters, at: float, before: float) -> bool:
        """Note when the main thread last ran; return whether that is later than known before."""
        moved = moved_at(old, new, at)
        if moved is None or (
            self.moved_at is not None
            and (moved <= self.moved_at + MOVE_JITTER or not self._undisturbed(moved))
        ):
            return False
        self.moved_at = moved
        if old is None or not sent_back(old, new):
            if self.left_at is not None:
                self.recurring.left(self.left_at, before, moved)
            self.left_at = moved
            self.window.leaves()
        return True

    def _see_io(self, old: Meters, new: Meters, at: float, span: float) -> bool:
        """Note data printed, written and read in ``span`` seconds; return if there were any."""
        read, written = io_bytes(old, new)
        if written / span > MUCH:
            self.wrote_at = at
        if read / span > MUCH_READ:
            self.read_at = at
        printed = new.main_printed_bytes > old.main_printed_bytes
        if printed:
            self.printed_at = at
        if (read + written) / span > IO_NOISE:
            self.io_moved_at = at
            return True
        return printed

    def pass_time(self, at: float) -> None:
        """Note the counters at ``at``, changed or not, and compute the shares."""
        meters = self.process.meters
        self.window.see(at, meters.cpu_s)
        points = self._points
        points.append(point(at, meters))
        while len(points) > 2 and (
            at - points[1].at >= SHARE_WINDOW - 0.5 or len(points) > MAX_POINTS
        ):
            del points[0]
        first, last = points[0], points[-1]
        span = last.at - first.at
        if span <= 0:
            return
        cpu = round(max(last.cpu_s - first.cpu_s, 0.0) / span, 3)
        main = None
        if first.main_ns is not None and last.main_ns is not None:
            ran, slept = grown(first.main_ns, last.main_ns), grown(first.switches, last.switches)
            main = round(ran / 1e9 / span, 3)
            if main >= COMPUTES_SHARE and ran > slept * COMPUTES_NS and span > SHARE_WINDOW / 2:
                self.computed_at = at
        if (cpu, main) != (self.cpu_share, self.main_cpu_share):
            self.cpu_share, self.main_cpu_share = cpu, main
            self.touch()
        self.settled = span >= SHARE_WINDOW and cpu == 0.0 and not main

    def leave(self, at: float, exit_code: int | None) -> None:
        """Note that the process has exited."""
        self.process = msgspec.structs.replace(self.process, gone_at=at, exit_code=exit_code)
        self.cpu_share = self.main_cpu_share = None
        self.settled = True
        self.touch()

    def take_sample(self, sample: StackSample, stacks: StackTable) -> None:
        """Set a new sample, which continues the counts of the last one if the stack is the same."""
        last = self.sample
        self.full_sample_at = sample.at
        self.touch()
        if sample.failure is not None:
            self._take_failure(sample, gone=sample.failure.kind == "gone")
            return
        self.attempts = 0
        self.moving_samples += 1
        self.serves = bool(stacks.served(sample))
        lines, functions = stacks.equal(last, sample)
        if lines and last is not None and last.mode == "native" and self.still_since(last.at):
            # C frames are not read again, which would pause the rank, while the thread stays in
            # them.
            sample = with_native_frames(sample, last)
        self.sample = self._at_home(continued(sample, last, lines, functions), stacks)
        if not sample.threads:
            return
        main = sample.threads[0].stack
        self.recurring.sampled(for_ranks=stacks.waits_for_ranks(main))
        frames = stacks.frames(main)
        if self.process.role == "rank" and (loops := self.whiles.see(frames, sample.at)):
            self.sample = msgspec.structs.replace(self.sample, loops=loops)

    def _take_failure(self, sample: StackSample, *, gone: bool) -> None:
        last = self.sample
        self.attempts += 1
        if last is not None and last.threads:
            if gone:
                return  # its last stack is worth more than that it is gone
            if self.still_since(last.at):
                self.renew(sample.at)
                return
        failed = last is not None and last.failure is not None
        self.sample = continued(sample, last, failed, failed)

    def _at_home(self, sample: StackSample, stacks: StackTable) -> StackSample:
        """Return a sample with the same functions, if others were only sampled in passing."""
        rests = sample.threads and not self.serves
        function, caller = stacks.homes(sample.threads[0].stack) if rests else (None, None)
        since, in_passing = self._home.see(function, caller, sample.at)
        if since is None or since >= (sample.same_functions_since or since):
            return sample
        return msgspec.structs.replace(sample, same_functions_since=since, in_passing=in_passing)

    def still_since(self, at: float) -> bool:
        """Return whether the main thread is known not to have run since ``at``."""
        return self.moved_at is not None and self.moved_at < at - MOVE_JITTER

    def renew(self, at: float) -> None:
        """Count the present sample once more: the main thread has not run since."""
        self.moving_samples = 0
        if self.sample is not None:
            count = self.sample.count + 1
            self.sample = msgspec.structs.replace(self.sample, at=at, count=count)
            self.touch()

    def rank(self) -> Rank:
        """Return the rank that this process is; the same object until something changes."""
        if self._built is None:
            children = sorted(self.children.values(), key=_pid) if self.children else ()
            samples, moved, left, io_moved, much, given, shares, descriptors = (
                [_each(children, name) for name in _OF_CHILDREN] if children else _OF_NONE
            )
            self._built = Rank(
                rank=self.process.number,
                node=self.node,
                state=rank_state(self.process),
                process=self.process,
                children=tuple(child.process for child in children),
                sample=self.sample,
                child_samples=samples,
                child_moved_at=moved,
                child_left_at=left,
                child_io_moved_at=io_moved,
                child_much_at=much,
                child_given=given,
                child_cpu_share=shares,
                child_descriptors=descriptors,
                descriptors=self.descriptors,
                recorder=self.recorder,
                ras=self.ras,
                numerics=self.numerics,
                waits=self.recurring.waits,
                given=self.recurring.given,
                moved_at=self.moved_at,
                left_at=self.left_at,
                slept=self.slept,
                io_moved_at=self.io_moved_at,
                printed_at=self.printed_at,
                wrote_at=self.wrote_at,
                read_at=self.read_at,
                worked_at=self.worked_at,
                computed_at=self.computed_at,
                file_moved_at=self.file_rate.moved_at,
                file_rate=self.file_rate.rate,
                flowed_at=_flows(self, children),
                cpu_share=self.cpu_share,
                main_cpu_share=self.main_cpu_share,
                lately=self.window.recent,
            )
        return self._built


def _each(children: Sequence[Tracked], name: str) -> Mapping[int, Any]:
    """Return an attribute of each child that has it, by pid."""
    return {c.process.pid: got for c in children if (got := getattr(c, name)) is not None}


def _flows(tracked: Tracked, children: Sequence[Tracked]) -> Mapping[int, float]:
    """Return when threads of a rank and its children last made progress in a connection."""
    if not tracked.flowed_at and not any(child.flowed_at for child in children):
        return _NOTHING
    return {tid: at for process in (tracked, *children) for tid, at in process.flowed_at.items()}
