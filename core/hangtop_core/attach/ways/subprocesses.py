"""Run a local program with untrusted output: bounded in time and memory."""

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
"""Seconds that a killed program may take to be gone."""


class TooMuchOutputError(Exception):
    """A program printed too much."""


class Done(NamedTuple):
    """Exit code and output of a program."""

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
        seconds: time limit.
        limit: maximum bytes of standard output and error together.
        env: its environment.
        folder: working directory; by default that of hangtop.

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
        output = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        for descriptor in output:
            streams.register(descriptor, selectors.EVENT_READ)
        out, err = output.values()
        try:
            while streams.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(argv, seconds)
                for key, _ in streams.select(left):
                    data = os.read(key.fd, 65536)
                    output[key.fd] += data
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
    """Kill a program with its children: it may be a script around another one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A program that waits for a disk or a file server ends only after its answer: it is left.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
