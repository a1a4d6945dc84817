"""The command of `hangtop watch --on-hang`: run without a shell, in bounded time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from hangtop.cli.jobs.observe import exit_status
from hangtop_core.text import node_sets
from hangtop_core.text.clean import clean, signal_name
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hangtop_core.diagnosis import Diagnosis, Verdict
    from hangtop_core.model.snapshot import Job

LONGEST = 4000
"""Limit in characters of one variable: all variables and arguments of a program must fit."""
CAPTURE = "hang.hangtop"
"""Name of the capture of a hang, beside the texts."""
GRACE_S = 5.0
"""Seconds that the command gets to end after SIGTERM."""
LOOK_S = 0.05
"""Seconds between two checks whether it has ended."""


def variables(job: Job, diagnosis: Diagnosis, written: Path | None) -> dict[str, str]:
    """Return the `HANGTOP_*` environment variables of the command.

    Args:
        job: the job that hangs.
        diagnosis: its diagnosis.
        written: the directory that the hang was written to; None if writing failed.
    """
    values: dict[str, object] = {
        "STATE": diagnosis.state,
        "STATUS": exit_status(diagnosis),
        **_of_verdict(diagnosis.verdicts[0] if diagnosis.verdicts else None),
        **_of_job(job),
        "HUNG_FOR": _hung_for(diagnosis),
    }
    words = {name: clean(str(value), LONGEST) for name, value in values.items()}
    words |= {name: str(path) for name, path in _paths(written).items()}
    return {f"HANGTOP_{name}": value for name, value in words.items()}


def _of_verdict(verdict: Verdict | None) -> dict[str, object]:
    if verdict is None:
        empty = dict.fromkeys(("CONFIDENCE", "SUMMARY", "RANKS", "VICTIMS", "NODES"), "")
        return {"CAUSE": "unknown", **empty}
    ranks = {culprit.rank for culprit in verdict.culprits if culprit.rank is not None}
    return {
        "CAUSE": verdict.cause,
        "CONFIDENCE": verdict.confidence,
        "SUMMARY": verdict.summary,
        "RANKS": fold(sorted(ranks)),
        "VICTIMS": fold(verdict.victims),
        "NODES": node_sets.fold(culprit.node for culprit in verdict.culprits),
    }


def _of_job(job: Job) -> dict[str, object]:
    return {
        "JOB_NODES": node_sets.fold(job.nodes),
        "JOB": job.key,
        "JOB_ID": job.id or "",
        "LAUNCHER": job.launcher or "",
        "WORLD_SIZE": job.world_size or "",
    }


def _hung_for(diagnosis: Diagnosis) -> int | str:
    """Return the whole seconds the job has hung, or hung until it ended; empty if not known."""
    ended = diagnosis.ended
    seconds = ended.after_hanging_s if ended is not None else diagnosis.hung_for_s
    return "" if seconds is None else int(seconds)


def _paths(written: Path | None) -> dict[str, Path | str]:
    """Return the paths of the written files by variable; empty for files that were not written."""
    if written is None:
        return dict.fromkeys(("DIRECTORY", "JSON", "TEXT", "CAPTURE", "STACKS"), "")
    # The disk may have been too full for the capture, though the texts were written.
    has_capture = os.path.isfile(written / CAPTURE)
    return {
        "DIRECTORY": written,
        "JSON": written / "diagnosis.json",
        "TEXT": written / "diagnosis.txt",
        "CAPTURE": written / CAPTURE if has_capture else "",
        "STACKS": written / "stacks.txt",
    }


def run_command(
    argv: Sequence[str], environment: Mapping[str, str], limit_s: float, *, apart: bool
) -> str | None:
    """Run the command; return why it failed, or None if it succeeded.

    Its output goes where hangtop's goes; with ``apart`` to stderr, so that stdout stays JSON. It
    has a process group of its own, which is ended as a whole after ``limit_s`` seconds, or when
    hangtop is to stop.
    """
    with contextlib.suppress(OSError):  # the disk is full
        sys.stdout.flush()
    try:
        with _held_back() as came:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr if apart else None,
                start_new_session=True,
            )
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    with _ended(process):
        for number in came:
            signal.raise_signal(number)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"was ended after {limit_s:g} s (--on-hang-limit)"
    if status < 0:
        return f"was ended by {signal_name(-status)}"
    return f"ended with status {status}" if status else None


@contextlib.contextmanager
def _held_back() -> Iterator[list[signal.Signals]]:
    """Hold back signals while a process is being started, which could not yet be ended.

    The caller raises the yielded signals afterwards. Python handles them only in its main thread.
    """
    came: list[signal.Signals] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                before[number] = signal.getsignal(number)
                signal.signal(number, lambda number, _: came.append(signal.Signals(number)))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the command's process group on exit if it still runs, whatever happens inside."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(PermissionError):  # the remaining processes are another user's
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process group: SIGKILL after a while, even if its leader has exited."""
    with contextlib.suppress(ProcessLookupError):  # none is left
        os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(LOOK_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
