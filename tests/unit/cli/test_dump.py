from __future__ import annotations

import argparse
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from hangtop.cli.dump import sample
from hangtop_core.model import Job, Snapshot
from hangtop_core.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable


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
