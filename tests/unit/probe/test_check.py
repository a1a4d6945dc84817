"""What a probe tries on its node when it is asked to check it."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from hangtop_core.attach.wire.messages import decode
from hangtop_core.model.node.check import Check
from hangtop_probe import check
from hangtop_probe.ranks import rows
from hangtop_probe.stacks import stacks, trial
from hangtop_probe.wire.tools import Tools
from support.probe_client import ProbeClient
from support.processes import all_pids

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_answer_is_what_the_head_understands() -> None:
    with ProbeClient() as probe:
        request = probe.send(op="check")
        said = decode(probe.receive(request)["data"], Check)
        assert "end" in probe.receive(request)
    assert said.python.path == sys.executable
    assert said.trial.ptrace == 0
    assert said.trial.py_spy is not None
    assert said.trial.py_spy.frames
    if said.gdb.ok:
        assert said.gdb_call is not None
        assert said.gdb_call.code == "works"
    assert said.source.probe == "installed"
    assert said.rights.uid == os.geteuid()
    assert said.processes.seen > 1
    assert said.processes.others < said.processes.seen


def test_a_gdb_that_breaks_what_it_calls_into_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gdb = tmp_path / "gdb"
    breaks = 'for word; do [ "$before" = -p ] && kill -SEGV $word; before=$word; done'
    gdb.write_text(f"#!/bin/sh\n{breaks}\necho 'GNU gdb 13.1'\n")
    gdb.chmod(0o755)
    with ProbeClient() as probe:
        [piece] = probe.pieces(op="check")
    said = decode(piece, Check)
    assert (said.gdb.version, said.gdb_call and said.gdb_call.code) == ("13.1", "harmful")


def sleepers() -> list[int]:
    found = []
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if trial.FRAME.encode() in file.read():
                    found.append(pid)
        except OSError:
            continue
    return found


def test_the_process_it_is_tried_on_is_gone_afterwards() -> None:
    tools = Tools()
    before = set(sleepers())
    assert trial.run(tools, threading.Event())["ptrace"] == 0
    assert set(sleepers()) <= before
    assert tools.pids() == set()


def test_a_stack_of_something_else_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    other = rows.Sample([], {"k": [["main", "/x.py", "x.py", 1, False, None]]})
    monkeypatch.setattr(stacks, "sample", lambda *_: other)
    said = trial.run(Tools(), threading.Event())
    assert "not the one of the process: main" in said["py_spy"]["failure"]["text"]


def test_a_program_that_does_not_run_is_told_from_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    broken = tmp_path / "strace"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    said = check.version(Tools(), "strace", ["-V"], threading.Event())
    assert (said["ok"], said["why"]) == (False, f"{broken} does not run: it ended with 127")
    said = check.version(Tools(), "no-such-tool", [], threading.Event())
    assert said == {"ok": False, "why": "no-such-tool is not on PATH"}
