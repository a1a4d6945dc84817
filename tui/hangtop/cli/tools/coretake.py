"""`hangtop core --take`: take a core of a running rank, after showing the cost."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.observe import choose, find_job
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output.output import StatusLine, width
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.cores import take
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoJobError, UsageError
from hangtop_core.report.diagnosis import wrap
from hangtop_core.session.session import Session
from hangtop_core.text import rank_sets
from hangtop_core.text.clean import clean, duration
from hangtop_core.text.commands import spelt_or_why
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    import argparse
    from concurrent.futures import Future

    from hangtop_core.model.snapshot import Job, Rank

T = TypeVar("T")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments)
    if arguments.path:
        raise UsageError("--take takes a core of a rank: name no core", "Try: --take --rank 3")
    if arguments.redact_hosts or arguments.redact_paths:
        raise UsageError(
            "--take tells where the core is, by its real name", "Leave --redact-... out."
        )
    if arguments.readonly:
        raise UsageError("--take stops a rank for a while, and --readonly forbids that")
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        # The session has ended, and with it the probe and its gdb.
        print("hangtop: given up; the rank goes on, and no core is left", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace) -> int:
    directory = str(arguments.to) if arguments.to is not None else None
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        update, _ = find_job(session, arguments.job_key, arguments.pid)
        rank = chosen(choose(update.snapshot, arguments.job_key), arguments.rank, arguments.pid)
        node, pid = rank.node, rank.process.pid
        cost = _wait(take.cost(session, node, pid, directory), take.COST_S, "")
        place = rank.place
        for line in wrap(f"a core of {place}: {cost.description}", width(), "", "  "):
            print(line, file=sys.stderr)
        if not cost.fits:
            raise UsageError(
                f"there is too little room in {clean(cost.dir, 300)}", "--to DIR names another one."
            )
        if not arguments.yes and not agreed():
            print("no core was taken", file=sys.stderr)
            return 1
        future = take.take(session, node, pid, directory)
        taken = _wait(future, take.LIMIT_S, f"writing the core of {place}")
    if arguments.json:
        data = {"schema": "hangtop.core-taken/1", "rank": rank.rank, "node": node, "pid": pid}
        print(to_json({**data, "taken": taken}).decode())
    else:
        print(f"core of {place}: {taken.outcome}")
        print(f"to read it, there: {spelt_or_why(('hangtop', 'core', taken.path))}")
    return 0 if taken.running_again else 1


def chosen(job: Job, number: int | None, pids: list[int]) -> Rank:
    """Return the one rank that was named.

    Raises:
        UsageError: none or several were named, or match.
        NoJobError: it does not exist, or has exited.
    """
    if number is None and len(pids) != 1:
        raise UsageError("say which rank: --rank R, or --pid PID")
    matches = [rank for rank in job.ranks if _is_named(rank, number, pids)]
    name = rank_name(number) if number is not None else f"rank with pid {pids[0]}"
    if not matches:
        existing = rank_sets.fold(rank.rank for rank in job.ranks)
        raise NoJobError(f"there is no {name} in this job", f"There is: {existing or 'none'}")
    running = [rank for rank in matches if not rank.ended]
    if not running:
        what = f"{matches[0].name} has exited"
        raise NoJobError(what, "Its core, if it left one: hangtop core.")
    if len(running) > 1:
        places = "; ".join(rank.place for rank in running)
        option = "--pid PID" if number is not None else "its number"
        raise UsageError(f"there is more than one {name}: {places}", f"Name it by {option} alone.")
    return running[0]


def _is_named(rank: Rank, number: int | None, pids: list[int]) -> bool:
    """Return whether a rank has the number, or one of the pids where no number is given."""
    if number is None:
        return rank.process.pid in pids
    return rank_sets.contains(frozenset({number}), rank.rank)


def agreed() -> bool:
    """Ask for confirmation on the terminal.

    Raises:
        UsageError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError("this must be agreed to: add --yes")
    print("Take it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _wait(future: Future[T], limit: float, label: str) -> T:
    """Wait for an answer, showing the seconds waited."""
    began = time.monotonic()
    with StatusLine() as status:
        while (spent := time.monotonic() - began) < limit:
            if label:
                status.show(f"{label}: {duration(spent)} (Ctrl-C gives it up) ...")
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=0.5)
    raise TimeoutError
