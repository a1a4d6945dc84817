"""py-spy that hangs, that dies, and that leaves its target stopped, in place of the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from support.probe_client import ProbeClient
from support.processes import PATIENCE, Held, all_pids, command_line, state, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real
SLEEPS = f"1234.{os.getpid()}"
"""Seconds, by which the process that hangs is found."""
AT_FIRST = 'case "$*" in *--nonblocking*) echo "[]"; exit;; esac'
"""The samples that hangtop takes by itself are no part of this."""


@pytest.fixture(scope="module")
def target() -> Iterator[subprocess.Popen[bytes]]:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"}
    argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(argv, env={**os.environ, **rank, "MASTER_ADDR": "h"}) as child:
        yield child
        child.kill()


class Spied(NamedTuple):
    """A session whose py-spy does what `does` writes down."""

    session: Session
    node: str
    script: Path

    def does(self, what: str) -> None:
        self.script.write_text(what)


@pytest.fixture(scope="module")
def spied(
    target: subprocess.Popen[bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Spied]:
    spy = tmp_path_factory.mktemp("spy") / "py-spy"
    script = spy.with_name("script")
    spy.write_text(f"#!/bin/sh\n{AT_FIRST}\nfor pid; do :; done\n. {script}\n")
    spy.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANGTOP_PY_SPY", str(spy))
        with Session(Options(pids=(target.pid,)), diagnose) as session:
            update = session.wait(lambda u: bool(u.snapshot.jobs), PATIENCE)
            assert update is not None, session.latest
            yield Spied(session, update.snapshot.nodes[0].name, script)


@pytest.mark.parametrize(
    ("does", "deadline", "kind", "told", "stopped"),
    [
        ("exec sleep {0}", 0.5, "timeout", "gave no answer in 0.5 s", False),
        ("kill -KILL $$", 60.0, "error", "py-spy was killed by SIGKILL", False),
        ('kill -STOP "$pid"; exit 1', 60.0, "error", "said nothing; py-spy left", True),
        ('kill -STOP "$pid"; exec sleep {0}', 2.0, "timeout", "ended; py-spy left", True),
        ('kill -STOP "$pid"; echo "[]"', 60.0, None, "", True),
    ],
)
def test_what_py_spy_does_wrong_is_put_right_and_told(
    target: subprocess.Popen[bytes], spied: Spied,
    does: str, deadline: float, kind: str | None, told: str, stopped: bool,
) -> None:  # fmt: skip
    spied.does(does.format(SLEEPS))
    before = spied.session.latest
    assert before is not None
    asked = spied.session.sample({spied.node: [target.pid]}, mode="blocking", deadline=deadline)
    ((*_, sample),) = asked.result(PATIENCE)
    assert wait_until(lambda: state(target.pid) == "S"), state(target.pid)
    assert (sample.failure and sample.failure.kind) == kind, sample
    if sample.failure is not None:
        assert told in sample.failure.text
        assert ("SIGCONT made it run again" in sample.failure.text) is stopped
    note = f"py-spy left process {target.pid} stopped; it was made to run again"
    lines = before.snapshot.nodes[0].noise_lines + stopped
    later = spied.session.wait(lambda u: u.snapshot.nodes[0].noise_lines == lines, PATIENCE)
    assert later is not None, spied.session.latest
    assert (later.snapshot.nodes[0].noise[-1:] == (note,)) >= stopped
    assert wait_until(lambda: not any(SLEEPS in command_line(pid) for pid in all_pids()))


def test_a_rank_that_nothing_makes_run_again_is_told(
    target: subprocess.Popen[bytes], spied: Spied, tmp_path: Path
) -> None:
    """A tracer holds it, which SIGCONT does not change."""
    called, go_on = tmp_path / "called", tmp_path / "go on"
    spied.does(f"touch '{called}'; until [ -e '{go_on}' ]; do sleep 0.05; done; echo '[]'")
    asked = spied.session.sample({spied.node: [target.pid]}, mode="blocking", deadline=30.0)
    assert wait_until(called.exists)
    with Held(target.pid):
        go_on.touch()
        ((*_, sample),) = asked.result(PATIENCE)
    assert sample.failure is not None
    assert f"it does NOT run again: kill -CONT {target.pid}" in sample.failure.text, sample
    assert wait_until(lambda: state(target.pid) == "S")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_trace_lasts_as_long_as_was_asked_for_where_strace_comes_late(
    target: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "strace"
    late.write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which("strace")} "$@"\n')
    late.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with ProbeClient() as client:
        *pieces, last = client.ask(op="strace", pid=target.pid, seconds=0.5)
    assert last["end"]["running_again"], last
    assert last["end"]["seconds"] >= 0.5
    assert any("nanosleep(" in line for piece in pieces for line in piece["data"]["lines"]), pieces
