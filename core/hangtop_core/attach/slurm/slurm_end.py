"""How Slurm ended a job: cancelled and by whom, at its time limit, preempted, with a node.

Reads only. `sacct` shows who cancelled a job, where there is accounting; without it `scontrol show
job` shows only that it was cancelled, for some minutes after its end.
"""

from __future__ import annotations

import contextlib
import pwd
import re
import subprocess
from datetime import datetime
from typing import TYPE_CHECKING

from hangtop_core.attach.slurm import squeue
from hangtop_core.attach.ways import subprocesses

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 10.0
"""Seconds that each of the two programs may take."""
MAX_OUTPUT = 1 << 20
"""Maximum bytes of output of each."""
BEFORE_S = 300.0
"""Seconds by which clocks may differ: Slurm started the job before its ranks started."""
_NUMBER = re.compile(r"\d{1,10}")
_ACCOUNTED = (
    r"^{job}\|(?P<state>[A-Z_]{{1,40}})(?: by (?P<uid>\d{{1,10}}))?\+?"
    r"\|(?P<start>\d{{4}}-[\dT:-]{{1,40}})$"
)
_SHOWN = (
    r"\bJobId={job}\b(?:(?!\bJobId=).)*?\bJobState=(?P<state>[A-Z_]{{1,40}})\b"
    r"(?:(?!\bJobId=).)*?\bStartTime=(?P<start>\d{{4}}-[\dT:-]{{1,40}})"
)
"""Output of both programs about a job; for an array they print all tasks."""
_WORDS = {
    "CANCELLED": "cancelled with scancel",
    "TIMEOUT": "Slurm ended it at its time limit",
    "DEADLINE": "Slurm ended it at its deadline",
    "PREEMPTED": "Slurm preempted it",
    "NODE_FAIL": "Slurm ended it: a node failed",
    "OUT_OF_MEMORY": "Slurm ended it: out of memory",
}
"""States of a job that Slurm ended, unasked or on request."""
_OVER = frozenset({*_WORDS, "COMPLETED", "FAILED", "BOOT_FAIL"})


def how_ended(job: str, started: float) -> str | None:
    """Return how Slurm ended a job, empty if it did not; None while that is not known yet.

    Args:
        job: number of the job in a rank's environment.
        started: when its first rank started: a job with that number that started later is another.

    Raises:
        OSError: Slurm's programs are not on this machine.
    """
    if _NUMBER.fullmatch(job) is None:
        return ""
    for state, uid, start in _end_records(job):
        if _epoch(start) > started + BEFORE_S:
            return ""
        if state in _OVER:
            return _WORDS.get(state, "") + (f" by {_user(uid)}" if uid else "")
    return None


def _end_records(job: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield state, user id and start of a job: by accounting, then from Slurm itself."""
    with contextlib.suppress(FileNotFoundError):
        accounted = _asked("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobIDRaw,State,Start")
        if (match := re.search(_ACCOUNTED.format(job=job), accounted, re.M)) is not None:
            yield match["state"], match["uid"], match["start"]
    shown = _asked("scontrol", "show", "job", job)
    if (match := re.search(_SHOWN.format(job=job), shown, re.S)) is not None:
        yield match["state"], None, match["start"]


def _asked(*argv: str) -> str:
    """Return the output of one of Slurm's programs, empty if it fails."""
    try:
        done = subprocesses.run(argv, PATIENCE_S, MAX_OUTPUT, squeue.environment())
    except (subprocess.TimeoutExpired, subprocesses.TooMuchOutputError):
        return ""
    return "" if done.code else done.out


def _epoch(text: str) -> float:
    """Return the epoch seconds of a local time as Slurm prints it, 0 if it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _user(uid: str) -> str:
    """Return `alice (uid 20001)`."""
    try:
        return f"{pwd.getpwuid(int(uid)).pw_name} (uid {uid})"
    except (KeyError, OverflowError):
        return f"uid {uid}"
