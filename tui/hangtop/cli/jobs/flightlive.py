"""`hangtop flight` on running ranks: read their recorders now, and report how, or why not."""

from __future__ import annotations

import glob
import os
import sys
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.observe import choose, exit_status, find_job, tell_unanswered, tell_unseen
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine, coloured, width
from hangtop_core.analysis.flight.live import empty, picture
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.analysis.verdict.recorderrules import SUBSET
from hangtop_core.collect.requests import INJECT_S, TRIGGER_S
from hangtop_core.diagnosis import MAKES_PROGRESS, to_json
from hangtop_core.dumps.load import default_patterns
from hangtop_core.errors import NoJobError, NoNodeError, UsageError
from hangtop_core.jobs.following import follow
from hangtop_core.report.flight import entries_text, flight_text
from hangtop_core.session.session import Session
from hangtop_core.text.clean import clean, name_pids

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping

    from hangtop_core.analysis.flight.picture import FlightDiagnosis, Picture
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Rank
    from hangtop_core.model.updates import Update

TWICE_S = 1.5
"""Seconds between two readings: an operation in flight may merely be in progress."""
ANSWER_S = 60.0
"""Seconds to wait for all nodes, without --trigger and gdb; the request itself has 30."""

NO_ENTRY = (-1, 0)
"""The progress of a rank whose recorder is empty."""


def run(arguments: argparse.Namespace, ranks: Collection[int] | None) -> int | None:
    """Run the command; return the exit status.

    None where no job runs, and torch's default place on this machine has dumps.
    """
    arguments = complete(arguments)
    if arguments.readonly:
        raise UsageError("--readonly forbids asking ranks; dumps can be named: hangtop flight PATH")
    if arguments.prefix is not None:
        raise UsageError("--prefix needs the PATH of dumps")
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        try:
            update_at_start, interrupted = find_job(session, arguments.job_key, arguments.pid)
        except NoJobError:
            if _names_targets(arguments) or not _has_dumps():
                raise
            print("no job runs here: this is what lies where torch writes dumps", file=sys.stderr)
            return None
        job = choose(update_at_start.snapshot, arguments.job_key)
        if not job.ranks and job.unnumbered:
            tell_unseen(update_at_start.snapshot)
            _refused(job)
        if not job.ranks:
            raise NoJobError(
                "no rank is there whose recorder could be read",
                "`hangtop diagnose` says what the launcher waits for.",
            )
        try:
            moved = ask(session, job, arguments)
        except KeyboardInterrupt:
            interrupted, moved = True, False
        update = session.latest or update_at_start
    job = follow(job, update.snapshot) or job
    tell_unseen(update.snapshot)
    verdict = update.diagnoses.get(job.key)
    gets_on = moved or (verdict is not None and verdict.state in MAKES_PROGRESS)
    diagnosis, recorded = judged(update, job, gets_on, arguments)
    keep(diagnosis, arguments)
    show(diagnosis, recorded, arguments, ranks)
    if interrupted:
        print("interrupted: this is what was known by then", file=sys.stderr)
        return 130
    return status_of(diagnosis, recorded)


def _refused(job: Job) -> NoReturn:
    """Report whose the ranks are that may not be inspected, and how they can be."""
    first = job.unnumbered[0]
    why, _, fix = (first.denied or "nothing in their environment says which ranks").partition("; ")
    pids = name_pids([process.pid for process in job.unnumbered])
    text = f"the ranks cannot be read ({pids}, of user {first.user}): {why}"
    raise NoNodeError(clean(text, 600), f"Try: {clean(fix, 300)}" if fix else "")


def _names_targets(arguments: argparse.Namespace) -> bool:
    """Return whether an option names ranks, so that arbitrary dump files must not be used."""
    named = (arguments.nodes, arguments.hostfile, arguments.job, arguments.pid, arguments.job_key)
    return any(named) or arguments.trigger or arguments.allow_inject


def _has_dumps() -> bool:
    return any(glob.glob(pattern) for pattern in default_patterns(os.environ))


def ask(session: Session, job: Job, arguments: argparse.Namespace) -> bool:
    """Read the recorders of all ranks, twice if they have entries; return whether they progress."""
    _ask(session, job, arguments.trigger, arguments.allow_inject)
    before = _now(session, job)
    if not any(place not in (None, NO_ENTRY) for place in before.values()):
        return False
    time.sleep(TWICE_S)
    # A triggered dump does not change: only ranks that answer by themselves can progress.
    _ask(session, job, False, False, only=_answering(session, job))
    after = _now(session, job)
    return any(
        # A rank that was not read before may have been there all along.
        place is not None and after.get(key) not in (None, NO_ENTRY, place)
        for key, place in before.items()
    )


def _ask(
    session: Session,
    job: Job,
    trigger: bool,
    inject: bool,
    only: Mapping[str, Collection[int]] | None = None,
) -> None:
    wanted: dict[str, list[int]] = {}
    for rank in job.ranks:
        pid = rank.process.pid
        if not rank.ended and (only is None or pid in only[rank.node]):
            wanted.setdefault(rank.node, []).append(pid)
    largest = max(map(len, wanted.values()), default=0)
    limit = ANSWER_S + (TRIGGER_S if trigger else 0.0) + (INJECT_S * largest if inject else 0.0)
    futures = {
        node: session.recorder(node, pids, trigger=trigger, inject=inject)
        for node, pids in wanted.items()
    }
    until = time.monotonic() + limit
    with StatusLine() as status:
        while (left := until - time.monotonic()) > 0:
            _, waiting = wait(futures.values(), timeout=min(left, 0.2))
            if not waiting:
                break
            status.show(f"recorders of {len(futures) - len(waiting)} of {len(futures)} nodes ...")
    tell_unanswered(futures, 0.0)
    arrived = time.time()
    session.wait(lambda update: update.snapshot.at >= arrived, timeout=5.0)


def _latest(session: Session, job: Job) -> tuple[Rank, ...]:
    update = session.latest
    now = follow(job, update.snapshot) if update is not None else None
    return now.ranks if now is not None else job.ranks


def _now(session: Session, job: Job) -> dict[tuple[str, int], tuple[int, int] | None]:
    """Return the progress of every rank: its newest entry, and the number of active entries.

    None where its recorder could not be read.
    """
    progress: dict[tuple[str, int], tuple[int, int] | None] = {}
    for rank in _latest(session, job):
        trace = rank.recorder.trace if rank.recorder is not None else None
        far = None
        if trace is not None:
            last = trace.record[-1] if trace.length else None
            far = NO_ENTRY if last is None else (last, len(list(trace.pending())))
        progress[rank.node, rank.process.pid] = far
    return progress


def _answering(session: Session, job: Job) -> dict[str, set[int]]:
    """Return the ranks whose recorders were read from the ranks themselves, by node."""
    answering: dict[str, set[int]] = {rank.node: set() for rank in job.ranks}
    for rank in _latest(session, job):
        recorder = rank.recorder
        if (
            recorder is not None
            and recorder.trace is not None
            and recorder.source in _BY_THEMSELVES
        ):
            answering.setdefault(rank.node, set()).add(rank.process.pid)
    return answering


_BY_THEMSELVES = ("server", "debug-server")


def judged(
    update: Update, job: Job, gets_on: bool, arguments: argparse.Namespace
) -> tuple[FlightDiagnosis, Picture | None]:
    """Return the diagnosis from the recorders of a job, and the recorders to show.

    Where other names are requested, both use ranks with those names.
    """
    verdict = update.diagnoses.get(job.key)
    renamer = redacting.of(arguments)
    _, job = renamer.picture(update.snapshot, job)
    if renamer.names and verdict is not None:
        verdict = renamer.one(verdict)
    recorded = picture(job.ranks)
    return concluded(recorded, job, gets_on, verdict), recorded


def concluded(
    recorded: Picture | None, job: Job, gets_on: bool, by_stacks: Diagnosis | None
) -> FlightDiagnosis:
    """Return the diagnosis from the recorders; without verdicts where the ranks make progress.

    A rank that creates a group has issued nothing, so the recorders alone would name it the
    culprit: a diagnosis by stacks takes precedence.
    """
    diagnosis = recorded.diagnosis if recorded is not None else empty(job.ranks)
    if gets_on:
        return replace(diagnosis, state="progressing", verdicts=(), hung_for_s=None)
    verdicts = by_stacks.verdicts if by_stacks is not None else ()
    making = [verdict for verdict in verdicts if verdict.cause == SUBSET.cause]
    return replace(diagnosis, verdicts=(*making, *diagnosis.verdicts))


def status_of(diagnosis: FlightDiagnosis, recorded: Picture | None) -> int:
    """Return the exit status for the diagnosis; 13 where no recorder has an entry."""
    if recorded is None or not diagnosis.flight.entries:
        return 13
    return 0 if diagnosis.state == "unknown" else exit_status(diagnosis)


def keep(diagnosis: FlightDiagnosis, arguments: argparse.Namespace) -> None:
    """Write the document to the requested file, if any."""
    if not arguments.output:
        return
    try:
        Path(arguments.output).write_bytes(to_json(diagnosis) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {arguments.output}: {error.strerror}") from error


def show(
    diagnosis: FlightDiagnosis,
    recorded: Picture | None,
    arguments: argparse.Namespace,
    ranks: Collection[int] | None,
) -> None:
    """Print the diagnosis in the requested form."""
    if arguments.json:
        print(to_json(diagnosis).decode())
    elif arguments.entries and recorded is not None:
        for line in entries_text(recorded, width(), ranks, arguments.pg_filters, arguments.stacks):
            print(line)
    else:
        text = flight_text(diagnosis, min(width(), 120), arguments.mismatch_cap or 0)
        print(coloured(text), end="")
