"""`hangtop watch`: wait until a job hangs, then diagnose it, save files and run a command."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.commands.dump import DEADLINE_S, pids_by_node, wait_for
from hangtop.cli.jobs.hangfiles import HangFiles
from hangtop.cli.jobs.observe import exit_status, no_job
from hangtop.cli.jobs.onhang import CAPTURE, run_command, variables
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.jobs.watchtext import Teller
from hangtop.cli.output import redacting
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, save
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import CaptureWriteError, HangtopError, NoNodeError
from hangtop_core.jobs.following import follow
from hangtop_core.judging.hangs import Hangs
from hangtop_core.report.diagnosis import WIDTH, diagnosis_text
from hangtop_core.report.stacks import merged_text
from hangtop_core.session.observing import SETTLE_S
from hangtop_core.session.session import Session
from hangtop_core.stacks.merging import merge
from hangtop_core.text import node_sets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.judging.hangs import Happened
    from hangtop_core.model.snapshot import Job
    from hangtop_core.model.updates import Update

INTERVAL_S = 5.0
SAMPLE_EVERY_S = 30.0
"""Seconds between two stacks of a rank that never rests; six times that once it was active for a
while.
"""
REST_SHARE = 0.5
"""Share of --hang-after for which a rank has to rest before its stack is taken."""
BUDGET = 0.001
"""Share of one core of a node for passes, and again for the stacks of active ranks: with what the
probe and this process use besides, less than 0.5 %.
"""
STACKS_S = 60.0
"""Seconds to wait for the stacks of all ranks that are saved."""
NOW_S = 5.0
JUMP_S = 5.0
"""Least jump of the clock, or sleep of the machine, in seconds, after which to start anew."""
RECENT = 12
"""Updates saved with a hang: the minute before it was reported, at the usual interval."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments, sample_every=SAMPLE_EVERY_S, interval=INTERVAL_S)
    rest_s = arguments.hang_after * REST_SHARE
    files = HangFiles(arguments.output, arguments.keep) if arguments.output is not None else None
    options = session_options(arguments)
    every = min(options.sample_every, rest_s)
    budget = BUDGET * max(INTERVAL_S / options.interval, 1.0)  # shorter intervals may cost more
    options = replace(options, rest=rest_s, sample_every=every, budget=budget)
    teller = Teller(redacting.of(arguments), json=arguments.json)
    watch = Watch(arguments, files, teller)
    status: int | None = None
    try:
        with told_to_stop():
            while status is None:
                with Session(options, diagnose, launchers(arguments)) as session:
                    status = watch.run(session)
    except KeyboardInterrupt:
        teller.stopped()
        status = 0
    teller.close()
    return status


@contextlib.contextmanager
def told_to_stop() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the command as Ctrl-C does; once, so that it ends in order."""

    def stop(number: int, frame: FrameType | None) -> None:
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    before = {code: signal.signal(code, stop) for code in numbers}
    try:
        yield
    finally:
        for code, handler in before.items():
            signal.signal(code, handler)


class Watch:
    """One run of the command, over its sessions."""

    session: Session

    def __init__(
        self, arguments: argparse.Namespace, files: HangFiles | None, teller: Teller
    ) -> None:
        self.arguments, self.files, self.teller = arguments, files, teller
        self.renamer = redacting.of(arguments)
        self.hangs = Hangs()
        self.seen: Update | None = None
        self.recent: deque[Update] = deque(maxlen=RECENT)
        """The latest updates, oldest first: the time before a hang."""
        self.left = 0
        """The exit status for the job that ended last."""
        self.hung: dict[str, int] = {}
        """Exit status by key of each job that hangs."""

        self.patience: float | None = arguments.wait_for_job
        """Seconds within which a job must appear; None once one did, or for no limit."""
        self.began = time.monotonic()
        self.told_named = False

    def run(self, session: Session) -> int | None:
        """Watch until there is a reason to end; return the exit status.

        None when the clock was set meanwhile: times recorded before that are meaningless.
        """
        self.session = session
        clock = time.time() - time.monotonic()
        while True:
            set_by = time.time() - time.monotonic() - clock
            if abs(set_by) > JUMP_S:
                self.hangs.clock_was_set(set_by)
                self.recent.clear()
                self.teller.clock_was_set(set_by)
                return None
            clock += set_by
            update = self.session.wait(lambda update: update is not self.seen, NOW_S)
            if update is not None:
                self.seen = update
                if self.files is not None:
                    self.recent.append(update)
                status = self.take(update)
                if status is not None:
                    return status
            waited = time.monotonic() - self.began
            if self.patience is not None and waited >= self.patience:
                self.give_up()
                self.patience = None
            if waited >= SETTLE_S:
                self.tell_named()

    def take(self, update: Update) -> int | None:
        """Report the events of an update; return the exit status if the awaited event occurred."""
        self.teller.nodes(update.snapshot)
        for event in self.hangs.fold(update, self.arguments.job_key):
            self.renamer.learn(update.snapshot)
            if event.kind == "hang" and event.diagnosis is not None:
                self.hang(event, event.diagnosis)
                if self.arguments.once:
                    return exit_status(event.diagnosis)
                continue
            self.teller.tell(event)
            hung = self.hung.pop(event.job.key, 0)
            if event.kind == "ended" and not self.hangs.running:
                if self.arguments.until_exit:
                    return _status_at_end(event, hung)
                if self.arguments.once:
                    return 0
        return None

    def give_up(self) -> None:
        """End when there has been no job so far.

        Raises:
            NoJobError: says what was observed.
        """
        if self.seen is None:
            raise NoNodeError("no node has answered")
        if not self.hangs.any:
            raise no_job(self.seen.snapshot, self.arguments.job_key, self.arguments.pid)

    def tell_named(self) -> None:
        """Report, once, that processes the user named are not ranks, as far as is seen now."""
        if self.told_named or self.hangs.any or self.seen is None or not self.arguments.pid:
            return
        self.told_named = True
        error = no_job(self.seen.snapshot, None, self.arguments.pid)
        print(f"hangtop: {error}; waiting until there is a job", file=sys.stderr, flush=True)

    def hang(self, event: Happened, diagnosis: Diagnosis) -> None:
        """Report a hang, save its files, and run the command."""
        self.hung[event.job.key] = exit_status(diagnosis)
        self.teller.tell(event)
        written = self.write(self.files, event, diagnosis) if self.files is not None else None
        if self.arguments.on_hang is not None:
            argv, limit = self.arguments.on_hang, self.arguments.on_hang_limit
            environment = variables(event.job, diagnosis, written)
            self.teller.ran(argv, run_command(argv, environment, limit, apart=self.arguments.json))

    def write(self, files: HangFiles, event: Happened, diagnosis: Diagnosis) -> Path | None:
        """Save the files of a hang; return the directory, None where that failed."""
        stacks = self.stacks(event.job)  # asked for first, so that the capture has them, too
        diagnosis = self.renamer.one(diagnosis)
        texts = {
            "diagnosis.json": to_json(diagnosis).decode() + "\n",
            "diagnosis.txt": diagnosis_text(diagnosis, WIDTH),
            "stacks.txt": stacks,
        }
        try:
            written = files.write(texts, event.at, lambda folder: self.capture(folder, event))
        except OSError as error:
            self.teller.not_written(files.directory, error.strerror or str(error))
            return None
        self.teller.wrote(written)
        return written

    def capture(self, folder: Path, event: Happened) -> None:
        """Write the latest updates into one file, which `hangtop open` shows."""
        latest = self.session.latest
        updates = [*self.recent, *([latest] if latest and latest is not self.seen else [])]
        facts = Facts(
            by="hangtop watch",
            targets=node_sets.fold(event.job.nodes),
            job=event.job.key,
            hang_after=self.arguments.hang_after,
        )
        try:
            save(folder / CAPTURE, updates, facts, self.renamer.for_file(), self.session.commands)
        except CaptureWriteError as error:  # the texts are saved, and hold the most important facts
            self.teller.not_written(folder / CAPTURE, str(error))

    def stacks(self, job: Job) -> str:
        """Return the stacks of all ranks now, merged, as text."""
        wanted = pids_by_node(job)
        try:
            answered: set[str] = set()
            future = self.session.sample(wanted, deadline=DEADLINE_S, on_node=answered.add)
            wait_for(future, STACKS_S, answered, wanted)
        except HangtopError as error:
            return f"no stacks: {error}\n"
        arrived = time.time()
        self.session.wait(lambda update: update.snapshot.at >= arrived, NOW_S)
        latest = self.session.latest
        if latest is None:
            return "no stacks\n"
        now = follow(job, latest.snapshot) or job
        snapshot, now = self.renamer.picture(latest.snapshot, now)
        return merged_text(merge(snapshot, now), WIDTH, job=now, whole=True)


def _status_at_end(event: Happened, hung: int) -> int:
    """Return the exit status for an ended job: that of its hang, if it hung to the end.

    ``hung`` is the status of its hang, 0 once it made progress: it may have as it gave up.
    """
    if event.diagnosis is not None and event.diagnosis.hung_until_end:
        return exit_status(event.diagnosis)
    return hung if event.after_s is not None else 0
