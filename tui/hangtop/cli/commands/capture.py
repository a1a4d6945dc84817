"""`hangtop capture`: observe, request the rest, and write it into one file."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.commands.diagnose import observe
from hangtop.cli.commands.dump import pids_by_node
from hangtop.cli.jobs.fromfile import no_targets
from hangtop.cli.jobs.observe import choose, exit_status, find_job, tell_unseen
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output.output import StatusLine, opening
from hangtop.cli.output.writing import STDOUT, check_folder, check_new
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import (
    Facts,
    Redaction,
    Saved,
    counted,
    default_name,
    load,
    save,
    stream,
    target_names,
    unused,
)
from hangtop_core.capture.redact import HOSTS, PATHS
from hangtop_core.capture.take import take
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import BadCaptureError, UsageError
from hangtop_core.jobs.following import follow
from hangtop_core.session.observing import conclusion
from hangtop_core.session.session import Session
from hangtop_core.state.history import History
from hangtop_core.text.clean import clean, duration, plural, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.model.snapshot import Job
    from hangtop_core.model.updates import Update

MISSING_SHOWN = 5
"""Number of unanswered requests that are named; the others are counted."""


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    check(arguments)
    if arguments.capture is not None:
        return again(arguments)
    arguments = complete(arguments, sample_every=1.0)
    history = History()
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        session.subscribe(history.add)
        update, interrupted = find_job(session, arguments.job_key, arguments.pid)
        job = choose(update.snapshot, arguments.job_key)
        try:
            if not interrupted:
                look(session, job, arguments)
        except KeyboardInterrupt:
            interrupted = True
        newest = session.latest or update
        commands = session.commands
    history.add(newest)
    job = follow(job, newest.snapshot) or job
    tell_unseen(newest.snapshot)
    facts = Facts(
        by="hangtop capture",
        targets=target_names(newest),
        job=job.key,
        hang_after=arguments.hang_after,
    )
    write(arguments, history.pictures, facts, commands, job)
    if interrupted:
        print("interrupted: this is what was known by then", file=sys.stderr)
        return 130
    diagnosis = conclusion(newest, job)
    return exit_status(diagnosis) if diagnosis is not None else 0


def again(arguments: argparse.Namespace) -> int:
    """Write the snapshots of a capture to another one, with more redacted."""
    no_targets(arguments)
    capture = load(arguments.capture)
    header = capture.header
    if capture.partial:
        raise BadCaptureError(
            f"{clean(arguments.capture, 200)} holds too little to be written anew: {capture.cut}",
            "",
        )
    if capture.cut:
        print(f"hangtop: not all of it could be read: {capture.cut}", file=sys.stderr)
    facts = Facts(header.by, header.targets, header.job, header.hang_after)
    job = capture.newest.snapshot.job(header.job)
    write(arguments, capture.pictures, facts, capture.commands, job, header.redacted)
    return 0


def write(
    arguments: argparse.Namespace,
    pictures: Sequence[Update],
    facts: Facts,
    commands: Iterable[CommandRecord],
    job: Job | None,
    redacted: Sequence[str] = (),
) -> None:
    """Write the file, and report its content; ``redacted`` names earlier redactions."""
    redaction = Redaction(
        paths=arguments.redact_paths or PATHS in redacted,
        hosts=arguments.redact_hosts or HOSTS in redacted,
    )
    given = arguments.output
    path = Path(given) if given is not None else unused(Path(default_name(pictures[-1], job)))
    with StatusLine() as status, not_now() as hurried:
        status.show(f"writing {clean(str(path), 60)} ...")
        if given == STDOUT:
            out = sys.stdout.buffer
            saved = stream(out, pictures, facts, redaction, commands, hurried)
            out.flush()
        else:
            saved = save(path, pictures, facts, redaction, commands, hurried)
    before = "on the nodes, before they were sent" if not redacted else "in that capture already"
    if arguments.json:
        tell_json(saved)
    else:
        tell(saved, before)


def check(arguments: argparse.Namespace) -> None:
    """Refuse early an output that could not be written.

    Raises:
        UsageError: it exists, or cannot be written.
    """
    given = arguments.output
    if given is None:
        check_folder(Path(), "without --output")
    elif given != STDOUT:
        check_new(given)
    elif arguments.json:
        raise UsageError("--output - and --json both write to the standard output")
    elif sys.stdout.isatty():
        fix = "Redirect it: hangtop capture -o - > hang.hangtop"
        raise UsageError("--output -: a capture is not for a terminal", fix)


def look(session: Session, job: Job, arguments: argparse.Namespace) -> None:
    """Observe, and request what a session does not collect by itself; Ctrl-C ends it."""
    began = time.monotonic()
    observe(session, job, arguments.observe, arguments.hang_after)
    with StatusLine() as status:
        while (left := arguments.history - (time.monotonic() - began)) > 0:
            status.show(f"observing for another {duration(left)} ... (Ctrl-C: write it now)")
            time.sleep(min(left, 1.0))
        latest = session.latest
        now = (follow(job, latest.snapshot) if latest is not None else None) or job

        def show_progress(done: int, total: int) -> None:
            status.show(f"stacks, descriptors, recorders, logs: {done} of {total} answers ...")

        pids = pids_by_node(now)
        missing = take(session, now, pids, want_locals=arguments.locals, progress=show_progress)
    for text in missing[:MISSING_SHOWN]:
        print(f"hangtop: {clean(text, 300)}", file=sys.stderr)
    if len(missing) > MISSING_SHOWN:
        more = len(missing) - MISSING_SHOWN
        print(f"hangtop: and {plural(more, 'request')} more without answer", file=sys.stderr)


@contextmanager
def not_now() -> Iterator[Callable[[], bool]]:
    """Keep Ctrl-C from ending the writing of a file; yield a check whether it came."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


def tell_json(saved: Saved) -> None:
    """Print what was written as a document."""
    document = {"schema": "hangtop.captured/1", "path": saved.path, "bytes": saved.bytes}
    print(to_json({**document, "header": saved.header}).decode())


def tell(saved: Saved, before: str) -> None:
    """Report what was written; ``before`` says where secrets were already masked on arrival."""
    header = saved.header
    holds = header.holds
    what = ", ".join(
        plural(holds[name], word)
        for name, word in (
            ("nodes", "node"), ("ranks", "rank"), ("recorders", "flight recorder"),
            ("logs", "log"), ("pictures", "picture"),
        )
        if holds.get(name)
    )  # fmt: skip
    span = duration(header.taken_at - header.since)
    piped = saved.path == STDOUT
    name, file = ("standard output", sys.stderr) if piped else (clean(saved.path, 300), sys.stdout)
    lines = [f"{name}: {size(saved.bytes)}, {what} over {span}"]
    lines += counted(header.redactions, before) or ["no secret was found that is to be masked"]
    lines += [] if piped else [f"`{opening(saved.path)}` shows it"]
    print("\n".join(lines), file=file)
