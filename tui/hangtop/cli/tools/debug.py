"""`hangtop debug`: a pdb prompt in a running rank."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.observe import choose, find_job
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output.output import StatusLine
from hangtop.cli.tools.coretake import chosen
from hangtop.terminal import pager
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.errors import RequestError, UsageError
from hangtop_core.jobs.following import follow
from hangtop_core.session.session import Session
from hangtop_core.tools.debugging import COST, debugging, outcome

if TYPE_CHECKING:
    import argparse

    from hangtop_core.collect.fan_out import Sampled
    from hangtop_core.model.snapshot import Job, Rank
    from hangtop_core.model.updates import Update
    from hangtop_core.tools.debugging import Debugging

SAMPLE_S = 30.0
"""Seconds to wait for the rank's stack, which shows whether it is at a prompt already."""
NO_PROMPT = 1


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments)
    if arguments.readonly:
        raise UsageError("a prompt stops a rank, and --readonly forbids that")
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        update, _ = find_job(session, arguments.job_key, arguments.pid)
        job = choose(update.snapshot, arguments.job_key)
        rank = chosen(job, arguments.rank, arguments.pid)
        plan = planned(session, job, rank)
    place = rank.place
    if plan.why is not None:
        say(f"no prompt in {place}: {plan.why}. Now {plan.doing}", *plan.steps)
        return NO_PROMPT
    say(f"a prompt in {place}. {COST}", f"now {plan.doing}")
    if plan.warning is not None:
        say(plan.warning)
    return prompt(plan)


def prompt(plan: Debugging) -> int:
    """Run the prompt, and report how it ended; return the exit status."""
    say(f"run: {plan.shown}")
    try:
        status = pager.status(pager.dying_with_us(plan.argv))
    except OSError as error:
        say(f"{plan.argv[0]}: {error.strerror}")
        return NO_PROMPT
    say(*outcome(status, plan))
    return NO_PROMPT if status else 0


def planned(session: Session, job: Job, rank: Rank) -> Debugging:
    """Take the rank's stack now, and return how to get a prompt."""
    with contextlib.suppress(TimeoutError, RequestError), StatusLine() as status:
        status.show(f"taking the stack of {rank.name} ...")
        future = session.sample({rank.node: [rank.process.pid]}, deadline=SAMPLE_S)
        sampled = future.result(2 * SAMPLE_S)[0]
        # An update made meanwhile does not contain the sample yet; a later one may contain a newer
        # one.
        session.wait(lambda update: has_sample(update, sampled), SAMPLE_S)
    update = session.latest
    if update is None:
        raise RequestError("the session has ended")
    now = follow(job, update.snapshot) or job
    rank = next(
        (
            candidate
            for candidate in now.ranks
            if candidate.process.identity == rank.process.identity
        ),
        rank,
    )
    node = next(
        (candidate for candidate in update.snapshot.nodes if candidate.name == rank.node), None
    )
    return debugging(update.snapshot, rank, node, terminal=sys.stdin.isatty())


def has_sample(update: Update, sampled: Sampled) -> bool:
    """Return whether an update contains a sample, or one that says the same."""
    samples = (
        rank.sample
        for job in update.snapshot.jobs
        for rank in job.ranks
        if (rank.node, rank.process.pid) == (sampled.node, sampled.pid)
    )
    new = sampled.sample
    return any(
        old is not None and (old.at >= new.at or old.threads == new.threads) for old in samples
    )


def say(*lines: str) -> None:
    """Print a message, set apart from the output of the prompt."""
    for number, text in enumerate(lines):
        print(f"{'  - ' if number else 'hangtop: '}{text}", file=sys.stderr, flush=True)
