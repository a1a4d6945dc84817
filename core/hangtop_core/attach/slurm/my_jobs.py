"""The Slurm jobs of this user: running ones to choose from, or how the last ones ended."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct, convert
from msgspec.structs import replace

from hangtop_core.attach.slurm import squeue
from hangtop_core.attach.ways import subprocesses
from hangtop_core.attach.ways.targets import Names
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean, duration, plural, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LISTED = 20
"""Maximum jobs that are listed where several run."""
WIDEST_NODES = 40
"""Maximum characters for the nodes of a job in a list."""
_COLUMNS = "%i|%T|%M|%e|%N|%r|%j"
_LISTED = re.compile(
    rf"(?P<name>{squeue.SHOWN})\|(?P<state>[A-Z_]{{1,40}})\|(?P<elapsed>[\d:.-]{{1,40}}|INVALID)"
    r"\|(?P<ended>[\dT:.-]{1,40}|N/A|NONE)\|(?P<nodes>[A-Za-z0-9_.,\[\]-]*)"
    r"\|(?P<reason>[^|]*)\|(?P<title>.*)"
)
"""A job's own name comes last, because it may be any text."""
_ACCOUNTED = re.compile(
    r"(?P<name>\d{1,10}(?:_\d{1,10}|\+\d{1,6})?)\|(?P<state>[A-Z_]{1,40})(?: by \d{1,10})?"
    r"\|(?P<ended>\d[\dT:.-]{1,40})\|(?P<title>.*)"
)
_SACCT = ("sacct", "-X", "-n", "-P", "-S", "now-1hours", "-o", "JobID,State,End,JobName")


class ListedJob(Struct, frozen=True):
    """One job of this user, as Slurm lists it; its components are combined."""

    name: str
    """Name as `--job` takes it."""
    title: str
    """The job's own name; any text."""
    state: str
    elapsed: str = ""
    """Elapsed time in Slurm's form: ``1-02:03:04``."""
    nodes: str = ""
    """A node set."""
    ended: str = ""
    """Local time, as ``2026-01-31T12:00:00``."""
    reason: str = ""
    count: int = 0
    """Number of its nodes, while it runs."""

    def in_words(self) -> str:
        """Return its name, time, nodes and state."""
        nodes = f"{plural(self.count, 'node')} {shorten(self.nodes, WIDEST_NODES)}".rstrip()
        return f"{clean(self.title, 40)}, for {self.elapsed}, {nodes}, {self.state}"


class SeveralJobsError(UsageError):
    """Several jobs of this user run, so that one has to be chosen."""

    def __init__(self, jobs: Sequence[ListedJob]) -> None:
        lines = [f"  --job {job.name}  {job.in_words()}" for job in jobs[:MAX_LISTED]]
        more = [f"  and {len(jobs) - MAX_LISTED} more"] if len(jobs) > MAX_LISTED else []
        super().__init__(f"{len(jobs)} jobs of yours run", "\n".join([*lines, *more]))
        self.jobs = tuple(jobs)


def running_jobs(patience: float | None = None) -> list[ListedJob]:
    """Return the jobs of this user that have processes.

    Raises:
        UsageError: Slurm cannot be asked, or its output cannot be read.
    """
    names = Names()
    return [
        replace(job, count=len(names.add(job.nodes, "squeue"))) if job.nodes else job
        for job in _asked("running,suspended,completing", patience)
    ]


def only_job(jobs: Sequence[ListedJob]) -> ListedJob:
    """Return the job meant without a name; a completing one counts only if no other runs.

    Raises:
        SeveralJobsError: there is a choice.
    """
    lasting = [job for job in jobs if job.state != "COMPLETING"] or jobs
    if len(lasting) > 1:
        raise SeveralJobsError(jobs)
    return lasting[0]


def my_job() -> str:
    """Return the number of this user's only running job.

    Raises:
        UsageError: none runs, or several, which are listed, or a line cannot be read.
    """
    jobs = running_jobs()
    if not jobs:
        help_text = what_became() or "`squeue --me` lists those that wait."
        raise UsageError("--job mine: no job of yours runs", help_text)
    return only_job(jobs).name


def what_became(patience: float | None = None) -> str:
    """Return which job of this user ended in the last hour, or waits; ``""`` without one."""
    try:
        jobs = _asked("all", patience)
    except UsageError:
        return ""
    ended = [job for job in jobs if job.state not in squeue.RUNNING | squeue.WAITING]
    latest = max(ended or _accounted(), key=lambda job: job.ended, default=None)
    waiting = [job for job in jobs if job.state in squeue.WAITING]
    if latest is not None:
        return f"your job {_named(latest)} ended {_ago(latest.ended)}{latest.state}"
    if len(waiting) > 1:
        return f"{len(waiting)} jobs of yours wait"
    return "".join(f"your job {_named(job)} waits: {_waits(job)}" for job in waiting)


def _asked(states: str, patience: float | None) -> list[ListedJob]:
    options = ("-t", states, "-u", str(os.geteuid()), "-o", _COLUMNS)
    rows: dict[str, list[ListedJob]] = {}
    # Not splitlines: a name may hold other characters that end a line.
    for line in filter(None, squeue.ask("mine", *options, patience=patience).split("\n")):
        match = _LISTED.fullmatch(line)
        if match is None:
            raise squeue.unreadable(line)
        rows.setdefault(match["name"].partition("+")[0], []).append(
            convert(match.groupdict(), ListedJob)
        )
    return [_joined(name, parts) for name, parts in rows.items()]


def _joined(name: str, parts: Sequence[ListedJob]) -> ListedJob:
    """Return the components of one job as one; a single component stays as it is."""
    first = min(parts, key=lambda part: int(part.name.partition("+")[2] or 0))
    if len(parts) == 1:
        return first
    return replace(first, name=name, nodes=",".join(part.nodes for part in parts if part.nodes))


def _accounted() -> list[ListedJob]:
    """Return the jobs that ended in the last hour, by Slurm's accounting, if it exists."""
    argv = [*_SACCT, "-u", str(os.geteuid())]
    try:
        done = subprocesses.run(argv, squeue.PATIENCE_S, squeue.MAX_OUTPUT, squeue.environment())
    except (OSError, subprocess.TimeoutExpired, subprocesses.TooMuchOutputError):
        return []
    matches = map(_ACCOUNTED.fullmatch, done.out.split("\n"))
    return [convert(match.groupdict(), ListedJob) for match in matches if match]


def _named(job: ListedJob) -> str:
    return f"{job.name} ({clean(job.title, 40)})"


def _ago(ended: str) -> str:
    try:
        seconds = (datetime.now() - datetime.fromisoformat(ended)).total_seconds()
    except (ValueError, TypeError):
        return ": "
    return f"{duration(max(seconds, 0.0))} ago: "


def _waits(job: ListedJob) -> str:
    return f"{job.state} ({clean(job.reason, 80)})" if job.reason else job.state
