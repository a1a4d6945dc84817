"""Runs of `squeue`: with bounded time and output, and without the user's settings.

``squeue -h -o`` is read because every Slurm has it and its columns are chosen here; ``--json``
differs between versions, and ``scontrol`` has none in 22.05. The output is untrusted text: every
column has a form, and a line without it is an error, never a guess.
"""

from __future__ import annotations

import os
import re
import subprocess

from hangtop_core.attach.ways import subprocesses
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean

PATIENCE_S = 20.0
"""Seconds for squeue: a busy slurmctld is slow; squeue itself gives up after about as long."""
MAX_OUTPUT = 4 * 1024 * 1024
"""Maximum bytes of squeue's output."""
SHOWN = r"\d{1,10}(?:_(?:\d{1,10}|\[[0-9,%:.\-]*\])|\+\d{1,6})?"
"""A job as %i shows it: ``123``, ``123_4``, ``123_[5-9]``, ``123+0``."""

RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"})
"""States in which a job has processes on its nodes."""
WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    }
)

_OWN_SETTINGS = ("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
_NOT_SET_UP = re.compile(r"configuration (?:source|file)|slurm\.conf")


class NoSlurmError(UsageError):
    """This machine has no Slurm, or only its programs without a cluster."""


def ask(asked: str, *options: str, patience: float | None = None) -> str:
    """Return squeue's output with ``options``; ``asked`` is the job that the user named.

    Raises:
        UsageError: squeue cannot be run, fails, or does not answer.
    """
    seconds = PATIENCE_S if patience is None else patience
    try:
        done = subprocesses.run(["squeue", "-h", *options], seconds, MAX_OUTPUT, environment())
    except FileNotFoundError:
        raise NoSlurmError(
            "--job needs Slurm's squeue, and there is none on this machine",
            "Run hangtop where you submit jobs, or name the nodes: -w NODES",
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"Slurm does not answer: squeue took more than {seconds:.0f} s",
            "`scontrol ping` says whether its controller is up. The nodes can be named: -w NODES",
        ) from None
    except subprocesses.TooMuchOutputError:
        raise UsageError(
            f"squeue printed more than {MAX_OUTPUT >> 20} MiB about job {asked}",
            "Name the nodes: -w NODES",
        ) from None
    except OSError as error:
        raise UsageError(f"squeue cannot be run: {error.strerror}") from error
    if done.code:
        raise _failure(asked, done.err.strip())
    return done.out


def environment() -> dict[str, str]:
    """Return the environment without variables that change the output of Slurm's programs."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_OWN_SETTINGS)}


def _failure(asked: str, printed: str) -> UsageError:
    if "Invalid job id" in printed:
        return unknown(asked)
    kind = NoSlurmError if _NOT_SET_UP.search(printed) else UsageError
    return kind(f"squeue failed: {clean(printed.rpartition(chr(10))[2], 200)}")


def unknown(asked: str) -> UsageError:
    """Return the error that Slurm knows no such job."""
    return UsageError(
        f"Slurm knows no job {asked}",
        "It may have ended: Slurm forgets a job minutes after its end.\n"
        f"`squeue --me` lists your jobs, `sacct -j {asked.partition('+')[0]}` those that are over.",
    )


def unreadable(line: str) -> UsageError:
    """Return the error that a line does not have the requested form."""
    return UsageError(f"squeue printed what cannot be read: {clean(line, 120)!r}")
