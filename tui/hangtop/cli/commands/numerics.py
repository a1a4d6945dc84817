"""`hangtop numerics`: which rank had the first inf or nan, and where."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs import fromfile
from hangtop.cli.jobs.observe import choose, find_job, tell_unanswered
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output import redacting
from hangtop.cli.output.output import width
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoLogError, UsageError
from hangtop_core.jobs.following import follow
from hangtop_core.jobs.named import answers_to
from hangtop_core.model.numerics import Numerics, earliest
from hangtop_core.model.snapshot import pids_of
from hangtop_core.report.numerics import document, numerics_text
from hangtop_core.session.observing import SETTLE_S
from hangtop_core.session.session import Session
from hangtop_core.text.clean import clean
from hangtop_core.tools.numerics_files import find, read

if TYPE_CHECKING:
    import argparse

    from hangtop_core.model.snapshot import Job
    from hangtop_core.model.updates import Update

ANSWER_S = 25.0
"""Seconds that a node gets to read the files of its ranks."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    records = [record for record in collect(arguments) if arguments.rank in (None, record.rank)]
    if not records:
        raise NoLogError(f"nothing was written by rank {arguments.rank}", "")
    renamer = redacting.of(arguments)
    renamer.learn_hosts(record.node for record in records)
    records = renamer.several(records, Numerics)
    records.sort(key=lambda r: (r.rank is None, r.rank or 0, r.attempt, r.pid))
    if arguments.json:
        print(to_json(document(records)).decode())
    else:
        print(numerics_text(records, min(width(), 140), arguments.calls), end="")
    return 0 if earliest(records) is None else 10


def collect(arguments: argparse.Namespace) -> list[Numerics]:
    """Return what ranks have recorded: in a capture, in files, or in running ranks.

    Raises:
        NoLogError: no file can be read.
        UsageError: a batch of running ranks is asked for.
    """
    path = fromfile.only([str(path) for path in arguments.path])
    if path is not None:
        return fromfile.numerics(arguments, path)
    if arguments.path:
        files = find(arguments.path)
        records = [read(file, lambda batch: traced(arguments, batch)) for file in files]
        if all(record.failure and not record.pid for record in records):
            raise NoLogError(f"{clean(records[0].path, 200)} {records[0].failure}", "")
        return records
    if arguments.batch:
        raise UsageError("--batch needs the folder of a run: only files hold traced batches")
    return live(arguments)


def traced(arguments: argparse.Namespace, batch: int) -> bool:
    """Return whether a batch was traced."""
    return any(first <= batch <= last for first, last in arguments.batch)


def live(arguments: argparse.Namespace) -> list[Numerics]:
    """Ask the ranks of a running job."""
    arguments = complete(arguments)
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        update, _ = find_job(session, arguments.job_key, arguments.pid)
        update = session.wait(partial(is_whole, arguments), SETTLE_S) or session.latest or update
        job = choose(update.snapshot, arguments.job_key)
        ask(session, job)
        tick = update.snapshot.tick
        newest = (
            session.wait(lambda candidate: candidate.snapshot.tick > tick + 1, ANSWER_S) or update
        )
        job = follow(job, newest.snapshot) or job
    recorded = [rank.numerics for rank in job.ranks if rank.numerics is not None]
    if not any(record.path for record in recorded):
        why = next(
            (record.failure for record in recorded if record.failure), "no rank has answered"
        )
        raise NoLogError(
            f"no rank of this job looks for inf and nan: {clean(why, 200)}",
            "Start it with: hangtop run --detect-overflow -- COMMAND",
        )
    return recorded


def is_whole(arguments: argparse.Namespace, update: Update) -> bool:
    """Return whether all ranks of the job are observed."""
    key = arguments.job_key
    jobs = [job for job in update.snapshot.jobs if key is None or answers_to(job, key)]
    return any(len(job.ranks) >= (job.world_size or 1) for job in jobs)


def ask(session: Session, job: Job) -> None:
    """Ask every node for its ranks, and report which did not answer."""
    wanted = pids_of(job.ranks)
    futures = {node: session.numerics(node, pids) for node, pids in wanted.items()}
    tell_unanswered(futures, ANSWER_S)
