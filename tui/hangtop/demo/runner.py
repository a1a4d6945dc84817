"""Starts a scenario of the gallery and ends it again, whatever happens in between.

    with Demo(BY_NAME["skip"]) as demo:
        demo.wait_until_hung()
        ...

`python -m hangtop.demo.runner SCENARIO` does the same until Enter or Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.demo.gallery import BY_NAME, Scenario
from hangtop.demo.sweep import MARKER, kill_marked, marked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType


class DemoError(Exception):
    """The job could not be started; the text says why and what to do."""


class Demo:
    """One running scenario; a context manager. Leaving it ends every process of the job."""

    def __init__(self, scenario: Scenario, environment: Mapping[str, str] | None = None) -> None:
        self.scenario = scenario
        self.environment = environment or {}
        """Variables for the job, beside those of this process."""
        self.members: tuple[int, ...] = ()
        """Once it hangs, the pids that identify the job: its launcher, or without it its ranks."""
        self.token = secrets.token_hex(6)
        self.directory = Path()
        self.keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Demo:
        """Start the job; return at once.

        Raises:
            DemoError: torch or a program that the scenario needs is not installed.
        """
        if reason := missing(self.scenario):
            raise DemoError(reason)
        self.directory = Path(tempfile.mkdtemp(prefix="hangtop-demo-"))
        atexit.register(self.stop)
        module = "hangtop.demo.keeper"
        try:
            self.keeper = subprocess.Popen(
                [sys.executable, "-m", module, self.scenario.name, str(self.directory), self.token],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **self.environment, MARKER: self.token},
                start_new_session=True,
            )
        except OSError:
            atexit.unregister(self.stop)
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the job."""
        self.stop()

    def wait_until_hung(self, timeout_s: float = 180.0) -> None:
        """Wait until the job is where its scenario goes wrong.

        Raises:
            DemoError: it ended before, or needs more than `timeout_s` seconds.
        """
        if not self.poll(timeout_s):
            raise DemoError(f"the demo job was not ready after {timeout_s:.0f} s")

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Return whether the job is where it goes wrong, waiting up to `timeout_s` seconds for it.

        Raises:
            DemoError: the job ended before.
        """
        assert self.keeper is not None
        assert self.keeper.stdout is not None
        if not select.select([self.keeper.stdout], [], [], timeout_s)[0]:
            return False
        line = self.keeper.stdout.readline().decode(errors="replace").strip()
        word, _, arguments = line.partition(" ")
        if word != "hung":
            raise DemoError(f"the demo job did not start: {arguments or 'its keeper ended'}")
        self.members = tuple(int(pid) for pid in arguments.split())
        return True

    def stop(self) -> None:
        """End every process of the job and remove its files. May be called again."""
        keeper, self.keeper = self.keeper, None
        if keeper is None:
            return
        atexit.unregister(self.stop)
        for stream in (keeper.stdin, keeper.stdout):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(timeout=15.0)
        left = kill_marked(self.token)
        keeper.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        if left:
            pids = " ".join(str(pid) for pid in left)
            print(f"hangtop: demo processes that would not go: {pids}", file=sys.stderr)

    def pids(self) -> list[int]:
        """Return every process of the demo that is alive, the keeper included."""
        return [process.pid for process in marked(self.token)]


def missing(scenario: Scenario) -> str | None:
    """Return what must be installed before this scenario can run, or None."""
    if importlib.util.find_spec("torch") is None:
        return (
            "the demo trains a small model and needs torch, which this Python does not have.\n"
            "Install it with:\n"
            f"    {sys.executable} -m pip install torch numpy\n"
            "A build for the CPU is enough."
        )
    for program in scenario.needs:
        if shutil.which(program) is None:
            return f"scenario {scenario.name} needs {program}; install the package {program}"
    return None


def main() -> None:
    """Run one scenario until Enter, end of input or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m hangtop.demo.runner")
    parser.add_argument("scenario", choices=BY_NAME)
    parser.add_argument("--for", dest="seconds", type=float, help="end after so many seconds")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt), Demo(BY_NAME[arguments.scenario]) as demo:
        started = time.monotonic()
        demo.wait_until_hung()
        took = time.monotonic() - started
        print(f"{arguments.scenario}: reached after {took:.1f} s in {demo.directory}")
        print(f"pids: {' '.join(map(str, demo.pids()))}", flush=True)
        if arguments.seconds is None:
            sys.stdin.readline()
        else:
            time.sleep(arguments.seconds)


if __name__ == "__main__":
    main()
