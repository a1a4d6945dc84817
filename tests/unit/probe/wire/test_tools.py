"""Programs that the probe runs end, with all that they have started."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.connect.child import KILL_WAIT
from hangtop_probe.wire import tools
from hangtop_probe.wire.tools import GRACE, Tools
from support.processes import is_alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER = threading.Event()
FOR_EVER = 600
"""Seconds that these tools take if nobody ends them."""


@pytest.fixture
def running() -> Iterator[Tools]:
    tools = Tools()
    yield tools
    tools.close()


def stubborn(folder: Path) -> list[str]:
    """A tool that ignores every polite signal, and starts another that does so too."""
    script = f"trap '' INT TERM HUP; echo $$ >>{folder}/pids; sleep 600 & echo $! >>{folder}/pids;"
    return ["/bin/sh", "-c", script + f"echo >{folder}/up; while :; do wait; done"]


def pids(folder: Path) -> list[int]:
    assert wait_until(lambda: (folder / "up").exists())
    return [int(line) for line in (folder / "pids").read_text().split()]


def gone(found: list[int]) -> bool:
    return wait_until(lambda: not any(map(is_alive, found)))


def test_output_and_status_of_a_tool(running: Tools) -> None:
    done = running.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 5.0, NEVER)
    assert (done.code, done.out, done.err) == (3, b"out\n", b"err\n")
    assert not running.pids()


def test_a_tool_that_hangs_is_ended_with_what_it_started(running: Tools, tmp_path: Path) -> None:
    began = time.monotonic()
    done = running.run(stubborn(tmp_path), 0.5, NEVER)
    assert done.timed_out
    assert time.monotonic() - began < FOR_EVER / 4
    assert gone(pids(tmp_path))


def test_a_tool_is_ended_when_what_it_does_takes_too_long(running: Tools) -> None:
    asked: list[int] = []

    def is_overdue() -> bool:
        asked.append(1)
        return len(asked) > 2

    began = time.monotonic()
    done = running.run(["sleep", "600"], FOR_EVER, NEVER, is_overdue=is_overdue)
    assert (done.overdue, done.timed_out, done.cancelled) == (True, False, False)
    assert time.monotonic() - began < FOR_EVER / 4


def test_a_tool_that_closes_its_output_and_stays_is_ended(running: Tools) -> None:
    began = time.monotonic()
    assert running.run(["sh", "-c", "exec >&- 2>&-; exec sleep 600"], 0.3, NEVER).timed_out
    assert time.monotonic() - began < FOR_EVER / 4


def test_a_tool_whose_child_keeps_the_pipe_is_ended(running: Tools) -> None:
    done = running.run(["sh", "-c", "sleep 600 & exit 0"], 0.5, NEVER)
    assert done.timed_out


def test_a_flood_is_not_kept(
    running: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_OUTPUT", 1 << 20)
    script = f"head -c {24 << 20} /dev/zero; echo >{tmp_path}/all"  # and no more of it than that
    done = running.run(["sh", "-c", script], FOR_EVER, NEVER)
    assert (done.flooded, done.code, done.out) == (True, None, b"")
    assert not (tmp_path / "all").exists()


def test_cancelling_ends_a_tool(running: Tools) -> None:
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    done = running.run(["sleep", "600"], 20.0, cancel)
    assert (done.cancelled, done.timed_out) == (True, False)


def test_closing_ends_what_ignores_it_before_the_head_loses_patience(tmp_path: Path) -> None:
    tools = Tools()
    tools.start(stubborn(tmp_path))
    found = pids(tmp_path)
    began = time.monotonic()
    tools.close()
    # Its own limit; the rest is what else this machine has to do.
    assert time.monotonic() - began < FOR_EVER / 4
    assert GRACE < KILL_WAIT
    assert gone(found)
    with pytest.raises(OSError, match="ending"):
        tools.start(["true"])


@pytest.mark.parametrize("with_setpriv", [True, False])
def test_a_tool_does_not_outlive_a_killed_probe(tmp_path: Path, with_setpriv: bool) -> None:
    code = (
        "import sys, time; from hangtop_probe.wire.tools import Tools; tools = Tools()\n"
        f"if not {with_setpriv}: tools._setpriv = None\n"
        "tools.start(sys.argv[1:]); time.sleep(600)"
    )
    child = os.posix_spawn(
        sys.executable, [sys.executable, "-c", code, *stubborn(tmp_path)], os.environ
    )
    leader = pids(tmp_path)[0]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert gone([leader])
    os.kill(pids(tmp_path)[1], signal.SIGKILL)
