"""Running a program of this machine that prints what others decide: bounded in time and memory."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

END_S = 1.0
"""Seconds that one may take to be gone once it is killed."""


class TooMuchOutputError(Exception):
    """A program printed more than it may."""


class Done(NamedTuple):
    """How a program ended and what it printed."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str],
    seconds: float,
    limit: int,
    env: Mapping[str, str],
    folder: str | None = None,
) -> Done:
    """Run ``argv`` without input or terminal, to its end.

    Args:
        argv: the program and its arguments.
        seconds: how long it may take.
        limit: bytes it may print, standard output and error together.
        env: its environment.
        folder: where it runs; by default where hangtop does.

    Raises:
        OSError: it does not start.
        subprocess.TimeoutExpired: it took too long, and was killed.
        TooMuchOutputError: it printed too much, and was killed.
    """
    deadline = time.monotonic() + seconds
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=env,
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  # they were opened as pipes
    assert process.stderr is not None  # noqa: S101
    with process.stdout, process.stderr, selectors.DefaultSelector() as streams:
        said = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        for descriptor in said:
            streams.register(descriptor, selectors.EVENT_READ)
        out, err = said.values()
        try:
            while streams.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(argv, seconds)
                for key, _ in streams.select(left):
                    data = os.read(key.fd, 65536)
                    said[key.fd] += data
                    if not data:
                        streams.unregister(key.fd)
                if len(out) + len(err) > limit:
                    raise TooMuchOutputError
            code = process.wait(max(deadline - time.monotonic(), 0.1))
        except BaseException:
            _kill(process)
            raise
    return Done(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with what it started: it may be a script around another one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # One that waits for a disk or a file server ends only when that answers: it is left.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
