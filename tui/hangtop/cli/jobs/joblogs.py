"""`hangtop logs` without files: the logs of a running job, found by its descriptors."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.logprinting import print_kept, renamer, report
from hangtop.cli.jobs.observe import choose, find_job
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.errors import HangtopError, NoLogError, UsageError
from hangtop_core.logs.meaning.lacking import lacking
from hangtop_core.logs.reading.lines import Choice, Kept
from hangtop_core.logs.reading.of_jobs import alive_of, lines_of, of_job, outputs_of
from hangtop_core.session.session import Session
from hangtop_core.state.outputs import wanted
from hangtop_core.text.clean import clean
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    import argparse

    from hangtop_core.model.snapshot import Job, Snapshot

LIVE_S = 20.0
"""Limit in seconds for the logs of one node."""
LIVE_WINDOW = 1 << 20
"""Bytes to read from the end of each log."""


def live(arguments: argparse.Namespace, choice: Choice) -> int:
    """Read the logs of a running job, found by the descriptors of its processes."""
    arguments = complete(arguments)
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        update, _ = find_job(session, arguments.job_key, arguments.pid)
        job = choose(update.snapshot, arguments.job_key)
        asked = [session.log(request, LIVE_WINDOW) for request in wanted(job)]
        for request in asked:
            try:
                request.result(LIVE_S)
            except (HangtopError, TimeoutError) as error:
                why = str(error) or "a node has not sent its logs in time"
                print(f"hangtop: {why}", file=sys.stderr)
        tick = update.snapshot.tick
        newest = (
            session.wait(lambda candidate: candidate.snapshot.tick > tick + 1, LIVE_S) or update
        )
        snapshot = newest.snapshot
    return show(snapshot, job, arguments, choice, "hangtop logs FILE reads it, there")


def captured(arguments: argparse.Namespace, choice: Choice) -> int:
    """Read the ends of logs that are in a capture."""
    from hangtop.cli.jobs.fromfile import picture

    if arguments.follow or arguments.around:
        raise UsageError("--follow and --around need the logs themselves, not a capture")
    update, job = picture(arguments.path[0], complete(arguments).job_key)
    return show(update.snapshot, job, arguments, choice, "a capture has the ends of logs")


def show(
    snapshot: Snapshot, job: Job, arguments: argparse.Namespace, choice: Choice, more: str
) -> int:
    """Print what was read, and how to read the rest; return the exit status."""
    for lack in lacking(job, snapshot.outputs):
        where = f" on {clean(', '.join(lack.nodes), 60)}" if len(snapshot.nodes) > 1 else ""
        print(f"no log of {names(lack.ranks)}{where}: {lack.why}", file=sys.stderr)
        print(f"    {lack.fix}", file=sys.stderr)
    outputs = outputs_of(snapshot.outputs, job)
    if not outputs:
        raise NoLogError("no process of this job prints to a file that can be read", "")
    files = of_job(snapshot.outputs, job)
    if choice == Choice():
        return report(files, arguments, alive_of(job), more)
    kept = Kept()
    for number, file in enumerate(outputs):
        lines_of(file, partial(kept.add, number))
    return print_kept(kept, files, choice, renamer(arguments, files))
