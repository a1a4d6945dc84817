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

from hangtop.cli.diagnose import exit_status
from hangtop_core import nodesets
from hangtop_core.rankset import fold
from hangtop_core.text import clean, signal_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model import Job

LONGEST = 4000
"""Characters of one variable: all variables and arguments of a program have to fit together."""
CAPTURE = "hang.hangtop"
"""The capture of a hang, beside the texts."""
GRACE_S = 5.0
"""Seconds the command gets to end by itself after it was told to."""
LOOK_S = 0.05
"""Seconds between two looks whether it has."""


def variables(job: Job, diagnosis: Diagnosis, written: Path | None) -> dict[str, str]:
    """What the command is told, as `HANGTOP_*` of its environment.

    Args:
        job: that hangs.
        diagnosis: of it.
        written: the directory with what was written of it; None if nothing was.
    """
    verdict = diagnosis.verdicts[0] if diagnosis.verdicts else None
    culprits = verdict.culprits if verdict is not None else ()
    ended = diagnosis.ended
    hung_for = ended.after_hanging_s if ended is not None else diagnosis.hung_for_s
    told: dict[str, object] = {
        "STATE": diagnosis.state,
        "STATUS": exit_status(diagnosis),
        "CAUSE": verdict.cause if verdict is not None else "unknown",
        "CONFIDENCE": verdict.confidence if verdict is not None else "",
        "SUMMARY": verdict.summary if verdict is not None else "",
        "RANKS": fold(sorted({one.rank for one in culprits if one.rank is not None})),
        "VICTIMS": fold(verdict.victims) if verdict is not None else "",
        "NODES": nodesets.fold(one.node for one in culprits),
        "JOB_NODES": nodesets.fold(job.nodes),
        "JOB": job.key,
        "JOB_ID": job.id or "",
        "LAUNCHER": job.launcher or "",
        "WORLD_SIZE": job.world_size or "",
        "HUNG_FOR": "" if hung_for is None else int(hung_for),
    }
    # It may have had no room, though the texts are there.
    has_capture = written is not None and os.path.isfile(written / CAPTURE)
    paths = {
        "DIRECTORY": written or "",
        "JSON": written / "diagnosis.json" if written else "",
        "TEXT": written / "diagnosis.txt" if written else "",
        "CAPTURE": written / CAPTURE if written and has_capture else "",
        "STACKS": written / "stacks.txt" if written else "",
    }
    words = {name: clean(str(value), LONGEST) for name, value in told.items()}
    words |= {name: str(path) for name, path in paths.items()}
    return {f"HANGTOP_{name}": value for name, value in words.items()}


def run_command(
    argv: Sequence[str], told: Mapping[str, str], limit_s: float, *, apart: bool
) -> str | None:
    """Run the command; return why it did not do well, None if it did.

    What it prints goes where hangtop prints; with ``apart`` to stderr, so that stdout stays JSON.
    It has a process group of its own, which is ended as a whole: after ``limit_s`` seconds, or when
    hangtop is to stop.
    """
    with contextlib.suppress(OSError):  # a full disk
        sys.stdout.flush()
    try:
        with _held_back() as came:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **told},
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
    """Signals that come while a process is being made, which nobody could end before it is there.

    Whoever uses it raises them afterwards. Python handles them in its main thread alone.
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
    """Whatever happens inside, end the command's process group if it still runs then."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(PermissionError):  # what is left is another user's
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process group: by force what is left of it after a while, whoever led it."""
    with contextlib.suppress(ProcessLookupError):  # none is left
        os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(LOOK_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
