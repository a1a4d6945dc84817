"""`diagnose`, `dump` and `flight` on a capture: the same output, without asking any node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.commands.opening import opened, tell
from hangtop.cli.jobs import flightlive
from hangtop.cli.jobs.observe import choose
from hangtop.cli.output.output import opening
from hangtop_core.capture import is_capture
from hangtop_core.diagnosis import MAKES_PROGRESS
from hangtop_core.errors import BadCaptureError, NoJobError, NoLogError, UsageError
from hangtop_core.text.clean import clean
from hangtop_hook.numericsfile import VARIABLE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.numerics import Numerics
    from hangtop_core.model.snapshot import Job, Snapshot
    from hangtop_core.model.updates import Update

NOT_HERE = ("nodes", "hostfile", "job", "command", "kube", "ray")
"""Options that name nodes."""


def only(paths: Sequence[str]) -> str | None:
    """Return the path of the capture; None when there is none among the files.

    Raises:
        UsageError: there are other files beside it.
    """
    captures = [path for path in paths if is_capture(path)]
    if captures and len(paths) > 1:
        raise UsageError(
            f"{clean(captures[0], 200)} is a capture, which is looked at by itself", ""
        )
    return captures[0] if captures else None


def picture(path: str, job_key: str | None) -> tuple[Update, Job]:
    """Return the newest snapshot of a capture, and its job.

    Raises:
        BadCaptureError: it cannot be opened.
        NoJobError: it holds no job, or none with that key.
    """
    capture, notices = opened(path)
    tell(notices)
    update = capture.newest
    if not update.snapshot.jobs:
        raise NoJobError("the capture holds no training job", "")
    own = job_key or capture.header.job
    held = own is not None and any(job.key == own for job in update.snapshot.jobs)
    return update, choose(update.snapshot, own if job_key is not None or held else None)


def no_targets(arguments: argparse.Namespace) -> None:
    """Refuse options that name nodes.

    Raises:
        UsageError: there is one.
    """
    if any(getattr(arguments, name, None) for name in NOT_HERE):
        raise UsageError("a capture is looked at without any node: leave out which ones")


def diagnosis_of(arguments: argparse.Namespace) -> tuple[Diagnosis, Snapshot]:
    """Return a fresh diagnosis of a capture, and the snapshot it is based on.

    Raises:
        BadCaptureError: it is damaged, and the diagnosis of this job is lost.
    """
    no_targets(arguments)
    update, job = picture(arguments.capture, arguments.job_key)
    diagnosis = update.diagnoses.get(job.key)
    if diagnosis is None:
        raise BadCaptureError(
            f"what was concluded of {clean(job.key, 100)} is not among what is left of the capture",
            f"`{opening(arguments.capture)}` shows what is.",
        )
    return diagnosis, update.snapshot


def numerics(arguments: argparse.Namespace, path: str) -> list[Numerics]:
    """Return the non-finite values that the ranks in a capture had found.

    Raises:
        NoLogError: no rank looked for them.
    """
    no_targets(arguments)
    if arguments.batch:
        raise UsageError("--batch needs the folder of a run: only files hold traced batches")
    _, job = picture(path, complete(arguments).job_key)
    recorded = [
        rank.numerics for rank in job.ranks if rank.numerics is not None and rank.numerics.path
    ]
    if not recorded:
        asked = [rank.numerics for rank in job.ranks if rank.numerics is not None]
        if asked or any(VARIABLE in rank.process.env for rank in job.ranks):
            why = next(
                (clean(record.failure, 200) for record in asked if record.failure), "not read yet"
            )
            raise NoLogError(
                f"ranks of this job look for inf and nan, but when the capture was made: {why}", ""
            )
        raise NoLogError(
            "no rank of this capture's job looks for inf and nan",
            "Start it with: hangtop run --detect-overflow -- COMMAND",
        )
    return recorded


def flight(arguments: argparse.Namespace, ranks: Collection[int] | None) -> int:
    """Print what the flight recorders in a capture show; return the exit status."""
    if arguments.tui:
        raise UsageError(
            "--tui shows dump files", f"`{opening(arguments.path[0])}` shows it, on Recorder."
        )
    update, job = picture(arguments.path[0], getattr(arguments, "job_key", None))
    verdict = update.diagnoses.get(job.key)
    gets_on = verdict is not None and verdict.state in MAKES_PROGRESS
    diagnosis, recorded = flightlive.judged(update, job, gets_on, arguments)
    flightlive.keep(diagnosis, arguments)
    flightlive.show(diagnosis, recorded, arguments, ranks)
    return flightlive.status_of(diagnosis, recorded)
