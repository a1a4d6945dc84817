from __future__ import annotations

import argparse
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from hangtop.cli.dump import sample, say_stale
from hangtop_core.model import Job, Process, Rank, Snapshot, StackSample, ThreadStack
from hangtop_core.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Answering:
    """A session that publishes while answers come in, and once more when all are there."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.half = 0.0

    def sample(self, *_: Any, **__: Any) -> Future[tuple[()]]:
        self.half = time.time()
        time.sleep(0.01)
        future: Future[tuple[()]] = Future()
        future.set_result(())
        return future

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> None:
        half, whole = Snapshot(self.half, 0.0, 1), Snapshot(time.time() + 0.01, 0.0, 2)
        for name, snapshot in (("half", half), ("whole", whole)):
            if predicate(Update(snapshot, {}, 0.0)):
                self.accepted.append(name)


def test_a_dump_waits_for_the_picture_with_all_answers() -> None:
    session = Answering()
    arguments = argparse.Namespace(native=False, locals=False)
    sample(session, Job("k", "k", None, None, None, None), arguments)  # type: ignore[arg-type]
    assert session.accepted == ["whole"]


def test_an_older_stack_is_not_passed_off_as_what_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = StackSample(90.0, 0.1, "nonblocking", (ThreadStack(7, None, True, False, "k"),))
    process = Process(pid=7, ppid=1, start=1, started_at=0.0, role="rank", label="", state="S")
    rank = Rank(3, "n1", "sleeping", process, sample=old)
    one = Job("k", "k", None, None, None, None, ranks=(rank,))
    snapshot = Snapshot(100.0, 0.0, 1, jobs=(one,))
    say_stale(snapshot, one, {("n1", 7): "the probe was killed"})
    told = capsys.readouterr().err
    assert "pid 7 of rank 3 gave no new stack" in told
    assert "nonblocking one of 10 s ago: the probe was killed" in told
    say_stale(snapshot, one, {})
    assert not capsys.readouterr().err
