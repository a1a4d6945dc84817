"""`hangtop diagnose`: observe, diagnose, print, and return the result as exit status."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.jobs.observe import choose, exit_status, find_job, tell_unseen
from hangtop.cli.jobs.ras import ask_ras
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine, coloured, opening, width
from hangtop.cli.output.writing import check_new
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, Redaction, save, target_names
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import NoJobError, UsageError
from hangtop_core.report.diagnosis import diagnosis_text, need_text
from hangtop_core.session.observing import (
    conclusion,
    lacking,
    limit_s,
    missing,
    needs_limit_s,
    wait_while,
)
from hangtop_core.session.session import Session
from hangtop_core.state.history import History
from hangtop_core.text.clean import clean, name_pids, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot
    from hangtop_core.session.observing import Lack
    from hangtop_core.session.session import Update


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments, sample_every=1.0)
    if arguments.allow_pause and arguments.readonly:
        raise UsageError("--allow-pause stops ranks for a moment, and --readonly forbids that")
    if arguments.capture is not None:
        return captured(arguments)
    if arguments.output is not None:
        check_new(arguments.output)
    options = replace(session_options(arguments), allow_pause=arguments.allow_pause)
    history = History()
    with Session(options, diagnose, launchers(arguments)) as session:
        session.subscribe(history.add)
        try:
            update, interrupted = find_job(session, arguments.job_key, arguments.pid)
        except (NoJobError, KeyboardInterrupt):
            if arguments.json and session.latest is not None:
                snapshot = session.latest.snapshot
                show(diagnose(snapshot, None), snapshot, arguments)
            raise
        job = choose(update.snapshot, arguments.job_key)
        interrupted = interrupted or not observe_to_end(session, job, arguments)
        latest = session.latest or update
        commands = session.commands
    if arguments.output is not None:
        history.add(latest)
        keep(arguments, history.pictures, commands, job)
    diagnosis = conclusion(latest, job) or update.diagnoses[job.key]
    if interrupted:
        tell_unseen(latest.snapshot)
        print("interrupted: this is what was known by then", file=sys.stderr)
    status = show(diagnosis, latest.snapshot, arguments)
    return 130 if interrupted else status


def captured(arguments: argparse.Namespace) -> int:
    """Diagnose a capture; return the exit status."""
    from hangtop.cli.jobs.fromfile import diagnosis_of

    if arguments.output is not None:
        fix = "hangtop capture CAPTURE -o FILE writes a capture to another one"
        raise UsageError("--output keeps what was observed, and nothing is", fix)
    return show(*diagnosis_of(arguments), arguments)


def observe_to_end(session: Session, job: Job, arguments: argparse.Namespace) -> bool:
    """Observe a job until it can be diagnosed; return False where Ctrl+C ended that."""
    try:
        observe(session, job, arguments.observe, arguments.hang_after)
        wait_for_needs(session, job)
        if arguments.ras is not None:
            ask_ras(session, job, anyway=arguments.ras == "anyway")
    except KeyboardInterrupt:
        return False
    return True


def keep(
    arguments: argparse.Namespace,
    pictures: Sequence[Update],
    commands: Iterable[CommandRecord],
    job: Job,
) -> None:
    """Write the observations behind a diagnosis to a capture, and report how to open it.

    Raises:
        CaptureWriteError: it cannot be written.
    """
    facts = Facts(
        by="hangtop diagnose",
        targets=target_names(pictures[-1]),
        job=job.key,
        hang_after=arguments.hang_after,
    )
    redaction = Redaction(paths=arguments.redact_paths, hosts=arguments.redact_hosts)
    saved = save(Path(arguments.output), pictures, facts, redaction, commands)
    name = clean(saved.path, 300)
    print(f"{name}: {size(saved.bytes)}; `{opening(saved.path)}` shows it", file=sys.stderr)


def show(diagnosis: Diagnosis, snapshot: Snapshot, arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a snapshot; return the exit status."""
    renamer = redacting.of(arguments)
    renamer.learn(snapshot)
    diagnosis = renamer.one(diagnosis)
    if arguments.json:
        print(to_json(diagnosis).decode())
    else:
        print(coloured(diagnosis_text(diagnosis, min(width(), 120))), end="")
    return exit_status(diagnosis)


def observe(session: Session, job: Job, at_least: float, hang_after: float) -> None:
    """Observe a job for `at_least` seconds, and longer while it is unclear whether it hangs.

    Takes at most a little more than `hang_after` seconds from now; a minute more where stacks are
    late.
    """
    started = time.monotonic()
    is_reported = False

    def lack_of(update: Update) -> Lack | None:
        nonlocal is_reported
        lack = lacking(update, job, time.monotonic() - started, at_least)
        diagnosis = conclusion(update, job)
        if lack == "time":
            status.show(f"observing for {at_least:g} s ... (Ctrl-C: say what is known)")
        if lack == "stacks":
            status.show("waiting for the first stacks ...")
        if lack == "certainty" and diagnosis is not None:
            text = why_longer(diagnosis.stalled_for_s, hang_after)
            status.show(text)
            if not status.shown and not is_reported:
                print(text, file=sys.stderr, flush=True)
            is_reported = True
        return lack

    with StatusLine() as status:
        wait_while(session, lack_of, limit_s(at_least, hang_after))


def wait_for_needs(session: Session, job: Job) -> None:
    """Wait for what rules have asked for, and report that on stderr."""
    reported: set[str] = set()

    def come(update: Update) -> bool:
        diagnosis = conclusion(update, job)
        for need in missing(diagnosis):
            text = f"asking for {need_text(need)} ..."
            if text not in reported:
                print(text, file=sys.stderr, flush=True)
            reported.add(text)
        return not missing(diagnosis)

    session.wait(come, needs_limit_s(session))
    for command in session.commands:
        if command.pauses:
            where = f"{command.node}, {name_pids(command.pids)}"
            text = f"{command.what} on {where}: it was paused for a moment"
            print(text, file=sys.stderr, flush=True)


def why_longer(stalled_for_s: float | None, hang_after: float) -> str:
    """Return for how long there was no progress, and what is still awaited."""
    still = "it is not clear yet whether anything moves"
    if stalled_for_s is not None:
        still = f"nothing has moved for {int(stalled_for_s)} s"
    text = f"{still}; a hang is {hang_after:.0f} s of that (--hang-after); "
    if (stalled_for_s or 0.0) >= hang_after:
        text = f"{still}, but no rank is known to wait for another; "
    return text + "still observing ..."
