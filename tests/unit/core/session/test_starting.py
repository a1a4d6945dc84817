"""Too little of what a session needs is told at its start."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.errors import StartError
from hangtop_core.model.updates import Options
from hangtop_core.session.session import Session
from hangtop_core.session.starting import ADDRESS_SPACE


@pytest.mark.parametrize("kib", [60_000, 200_000, 700_000])
def test_too_little_address_space_is_told_at_once(kib: int) -> None:
    line = f'ulimit -v {kib}; exec "$0" -m hangtop diagnose -w 192.0.2.1'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "of address space, and hangtop needs 1.0 GiB" in done.stderr
    assert "Traceback" not in done.stderr


def test_enough_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (ADDRESS_SPACE, ADDRESS_SPACE))
    with Session(Options(watch=False), diagnose, [LocalLauncher()]):
        pass


@pytest.mark.parametrize("name", ["hangtop-engine", "hangtop-session"])
def test_a_thread_that_cannot_be_started_leaves_none_behind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    session = Session(Options(watch=False), diagnose, [LocalLauncher()])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StartError, match="can't start new thread") as caught:
        session.start()
    assert "ulimit -u" in caught.value.help
    assert not any(one.name.startswith("hangtop-") for one in threading.enumerate())
