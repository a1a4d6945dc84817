"""`hangtop dump`: print the stacks of all ranks once."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.dumpdata import as_data
from hangtop.cli.jobs.observe import choose, find_job, tell_unseen
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine, draws_unicode, width
from hangtop.cli.output.writing import STDOUT, check_file, check_folder
from hangtop.keys import pauses
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoJobError, UsageError
from hangtop_core.jobs.following import follow
from hangtop_core.model.snapshot import pids_of
from hangtop_core.report.diagnosis import WIDTH
from hangtop_core.report.stacks import controllers_text, each_text, merged_text
from hangtop_core.session.session import Session
from hangtop_core.stacks.merging import Threads, merge
from hangtop_core.text import node_sets
from hangtop_core.text.clean import clean, duration, name_pids, plural

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from hangtop_core.model.snapshot import Job, Rank, Snapshot, StackSample
    from hangtop_core.model.updates import Update
    from hangtop_core.session.session import Sampled

    Failed = dict[tuple[str, int], str]

NATIVE_DEADLINE_S = 30.0
GPUS_S = 15.0
"""Seconds to wait for the GPUs of nodes that have some, with --json."""
DEADLINE_S = 10.0
TELL_EVERY_S = 0.2


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments)
    check_output(arguments)
    if arguments.capture is not None:
        return captured(arguments)
    if arguments.native and arguments.readonly:
        raise UsageError("--native pauses the ranks, and --readonly forbids that")
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        try:
            update, interrupted = find_job(session, arguments.job_key, arguments.pid)
            job = job_with_ranks(update.snapshot, arguments)
        except (NoJobError, KeyboardInterrupt):
            if arguments.json and session.latest is not None:
                snapshot = redacting.of(arguments).picture(session.latest.snapshot, None)[0]
                print(to_json(as_data(snapshot, None)).decode())
            raise
        answers = sample(session, job, arguments)
        if arguments.json:
            session.wait(gpus_read, GPUS_S)
        snapshot = (session.latest or update).snapshot
    job = answers.of(named(follow(job, snapshot) or job, arguments.pid))
    tell_unseen(snapshot)
    say_stale(snapshot, job, answers.failed)
    if answers.missing:
        names = node_sets.fold(answers.missing)
        print(f"interrupted: {names} had not answered; their stacks may lack", file=sys.stderr)
    put(snapshot, job, arguments)
    if interrupted or answers.missing:
        return 130
    return 0 if has_stacks(job) else 13


def job_with_ranks(snapshot: Snapshot, arguments: argparse.Namespace) -> Job:
    """Return the job asked for.

    Raises:
        NoJobError: there is none, or none of its ranks is running.
    """
    job = named(choose(snapshot, arguments.job_key), arguments.pid)
    if not job.members and not job.unnumbered:
        raise NoJobError(
            "no rank is there to take the stack of",
            "`hangtop diagnose` says what the launcher waits for.",
        )
    return job


def captured(arguments: argparse.Namespace) -> int:
    """Print the stacks in a capture; return the exit status."""
    from hangtop.cli.jobs.fromfile import no_targets, picture

    no_targets(arguments)
    if arguments.native:
        raise UsageError("--native asks the ranks; a capture has what was taken then")
    update, job = picture(arguments.capture, arguments.job_key)
    job = named(job, arguments.pid)
    put(update.snapshot, job, arguments)
    return 0 if has_stacks(job) else 13


def check_output(arguments: argparse.Namespace) -> None:
    """Refuse early an output that could not be written, and take `-` for standard output.

    Raises:
        UsageError: a file could not be written.
    """
    path = arguments.output
    if path == STDOUT:
        arguments.output = None
    elif path is not None and "%N" not in path:
        check_file(path)
    elif path is not None and "%N" not in os.path.dirname(path):
        check_folder(Path(path).parent)


def put(snapshot: Snapshot, job: Job, arguments: argparse.Namespace) -> None:
    """Print the dump, or write it to the requested file."""
    snapshot, job = redacting.of(arguments).picture(snapshot, job, masked=not arguments.locals)
    if arguments.output is None:
        print(render(snapshot, job, arguments), end="")
    else:
        write(snapshot, job, arguments)
    if not arguments.json:
        say_unnumbered(snapshot, job)


def say_unnumbered(snapshot: Snapshot, job: Job) -> None:
    """Report which processes gave no stack because their rank is unknown."""
    groups: dict[tuple[str, str], list[int]] = {}
    for process in job.unnumbered:
        why = clean(process.denied or "nothing in its environment says so", 600)
        groups.setdefault((process.node, why), []).append(process.pid)
    for (node, why), pids in groups.items():
        on = f" on {clean(node)}" if len(snapshot.nodes) > 1 else ""
        number = "a rank whose number is" if len(pids) == 1 else "ranks whose numbers are"
        print(f"\nno stack from {name_pids(pids)}{on}, {number} unknown: {why}")


def gpus_read(update: Update) -> bool:
    """Return whether every node with GPUs has reported all of them, or why it cannot."""
    for node in update.snapshot.nodes:
        able, nvml = node.capabilities.get("nvml"), node.nvml
        if node.state != "ready" or able is None or not able.ok:
            continue
        failed = nvml is not None and (nvml.error or nvml.missing)
        if not failed and (nvml is None or len(node.gpus) < (nvml.gpus or 0)):
            return False
    return True


def has_stacks(job: Job) -> bool:
    """Return whether there is a single stack to show."""
    samples = (
        sample for rank in job.members for sample in (rank.sample, *rank.child_samples.values())
    )
    return any(sample is not None and sample.threads for sample in samples)


def named(job: Job, pids: Sequence[int]) -> Job:
    """Return the job with only the named ranks, or the ranks whose children were named.

    Naming a launcher, or nothing, selects all ranks; a controller only itself.
    """
    control = {controller.process.pid for controller in job.controllers}
    if not pids or {launcher.pid for launcher in job.launchers}.difference(control).intersection(
        pids
    ):
        return job
    launchers = tuple(launcher for launcher in job.launchers if launcher.pid in pids)
    ranks = []
    for rank in job.ranks:
        children = tuple(child for child in rank.children if child.pid in pids)
        if rank.process.pid in pids:
            ranks.append(rank)
        elif children:
            ranks.append(replace(rank, children=children))
    return replace(job, ranks=tuple(ranks), launchers=launchers)


def say_stale(snapshot: Snapshot, job: Job, failed: Failed) -> None:
    """Report for which processes an older stack is shown, as no new one arrived, and why."""
    for rank in job.ranks:
        samples = {rank.process.pid: rank.sample, **rank.child_samples}
        for pid, sample in samples.items():
            if sample is not None and sample.threads and (rank.node, pid) in failed:
                why = failed[rank.node, pid]
                age = duration(snapshot.at - sample.at)
                print(
                    f"pid {pid} of {rank.name} gave no new stack, what is shown is a "
                    f"{sample.mode} one of {age} ago: {clean(why)}",
                    file=sys.stderr,
                )


def render(
    snapshot: Snapshot, job: Job, arguments: argparse.Namespace, *, whole: bool = True
) -> str:
    """Return the dump as text, in the requested form; ``whole`` is false for a part of the job."""
    if arguments.json:
        data = as_data(snapshot, job, all_threads=arguments.all_threads)
        return to_json(data).decode() + "\n"
    # Only ranks are merged: a named worker is shown below its own.
    workers = {child.pid for rank in job.ranks for child in rank.children}
    whole_stacks = {controller.process.pid for controller in job.controllers} | workers
    if arguments.each or arguments.locals or whole_stacks.intersection(arguments.pid):
        return each_text(snapshot, job, children=True)
    threads: Threads = "all" if arguments.all_threads else "main"
    # C frames are nearly all library frames, so asking for them asks for library frames.
    libraries = arguments.native if arguments.library is None else arguments.library
    merged = merge(snapshot, job, threads=threads, libraries=libraries)
    to_screen = arguments.output is None
    text = merged_text(
        merged,
        width() if to_screen else WIDTH,
        job=job,
        whole=whole and not arguments.pid,
        ascii_only=to_screen and not draws_unicode(),
    )
    return text + (controllers_text(snapshot, job) if whole else "")


def write(snapshot: Snapshot, job: Job, arguments: argparse.Namespace) -> None:
    """Write the dump to a file, or to one per node where its name holds `%N`.

    Raises:
        UsageError: a file cannot be written.
    """
    parts = {arguments.output: job}
    if "%N" in arguments.output:
        parts = {
            arguments.output.replace("%N", node.replace("/", "_")): replace(
                job, ranks=tuple(rank for rank in job.ranks if rank.node == node), nodes=(node,)
            )
            for node in job.nodes
        }
    for path, part in parts.items():
        try:
            text = render(snapshot, part, arguments, whole=part is job)
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {path}: {error.strerror}") from error
        print(f"{path}: {plural(len(part.ranks), 'rank')}", file=sys.stderr)


class Answers(NamedTuple):
    """The results of asking for stacks."""

    failed: Failed
    """Why there is no new stack, by node and pid."""
    missing: frozenset[str]
    """Nodes that had not answered when Ctrl-C came."""
    samples: Mapping[tuple[str, int], StackSample]
    """New samples, by node and pid."""

    def of(self, job: Job) -> Job:
        """Return the job with these samples, and not with later ones of hangtop's own.

        Those would not have the requested variables or native frames.
        """
        samples = {**job.launcher_samples}
        for controller in job.controllers:
            if (came := self.samples.get((controller.node, controller.process.pid))) is not None:
                samples[f"{controller.node}:{controller.process.pid}"] = came
        ranks = tuple(self._of_rank(rank) for rank in job.ranks)
        return replace(job, ranks=ranks, launcher_samples=samples)

    def _of_rank(self, rank: Rank) -> Rank:
        own = self.samples.get((rank.node, rank.process.pid), rank.sample)
        workers = dict(rank.child_samples)
        for child in rank.children:
            if (came := self.samples.get((rank.node, child.pid))) is not None:
                workers[child.pid] = came
        return replace(rank, sample=own, child_samples=workers)


def sample(session: Session, job: Job, arguments: argparse.Namespace) -> Answers:
    """Take the stacks of every rank and its children now; return when all have answered.

    On Ctrl-C return at once, with the stacks received so far.
    """
    wanted = pids_by_node(job)
    count = sum(len(pids) for pids in wanted.values())
    mode: Any = "native" if arguments.native else "nonblocking"
    if arguments.native:
        print(
            f"native stacks stop each process ({pauses.NATIVE}), one after the other: "
            f"{plural(count, 'process', 'processes')}, about {count * pauses.NATIVE_S:.0f} s",
            file=sys.stderr,
        )
    limit = NATIVE_DEADLINE_S if arguments.native else DEADLINE_S
    answered: set[str] = set()
    try:
        future = session.sample(
            wanted, mode=mode, locals=arguments.locals, deadline=limit, on_node=answered.add
        )
        answers = wait_for(future, limit * max(count, 1) + 5.0, answered, wanted)
        arrived = time.time()
        session.wait(lambda update: update.snapshot.at >= arrived, timeout=5.0)
    except KeyboardInterrupt:
        left = {node: pids for node, pids in wanted.items() if node not in answered}
        why = "interrupted before it answered"
        failed = {(node, pid): why for node, pids in left.items() for pid in pids}
        return Answers(failed, frozenset(left), {})
    return Answers(
        {
            (answer.node, answer.pid): answer.sample.failure.text
            for answer in answers
            if answer.sample.failure is not None
        },
        frozenset(),
        {(answer.node, answer.pid): answer.sample for answer in answers if answer.sample.threads},
    )


def wait_for(
    future: Future[tuple[Sampled, ...]],
    limit: float,
    answered: Collection[str],
    wanted: Collection[str],
) -> tuple[Sampled, ...]:
    """Wait for stacks at most `limit` seconds, showing how many nodes have answered."""
    until = time.monotonic() + limit
    with StatusLine() as status:
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=TELL_EVERY_S)
            if len(wanted) > 1:
                status.show(f"stacks of {len(answered)} of {len(wanted)} nodes ...")
    return ()


def pids_by_node(job: Job) -> dict[str, list[int]]:
    """Return a job's processes that can have a Python stack, by node: ranks first."""
    pids = pids_of(rank for rank in job.members if not rank.ended)
    for rank in job.ranks:
        for child in rank.children:
            if child.role == "dataloader-worker" and child.gone_at is None:
                pids.setdefault(rank.node, []).append(child.pid)
    return pids
