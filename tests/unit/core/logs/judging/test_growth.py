"""What logs cost, and what is concluded from them, grows as they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.parsing import parse
from hangtop_core.model.file_log import Place
from support.growth import MOST, growth

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 64
EXPIRED = (
    "[E ProcessGroupNCCL.cpp:828] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={0}, OpType=ALLREDUCE, Timeout(ms)=60000) ran for 60021 milliseconds.\n"
)
RAISED = """[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/a/train.py", line {0}, in step
[rank{0}]: RuntimeError: number {0}
"""
LOGGED = """ERROR train: number {0}
Traceback (most recent call last):
  File "/a/train.py", line {0}, in step
RuntimeError: number {0}
"""
LEFT = "srun: error: n{0}: task {0}: Exited with exit code 1\n"
CAME_UP = (
    "n{0}:{0}:{0} [0] NCCL INFO comm 0x1 rank {0} nranks 9 cudaDev 0 busId 1 - Init COMPLETE\n"
)
QUOTED = """[pod/train-{0}/main] [rank{0}]:[W1121 x
[pod/train-{0}/main] [rank1]:[W1121 x
[pod/train-1/main] [rank{0}]:[W1121 x
"""
NO_ANSWER = (
    "n{0}:12:13 [0] NCCL WARN NET/IB: Got completion from peer 10.0.0.{0}<4> with status=12 "
    "opcode=0 len=0 vendor err 129\n"
)


@pytest.mark.parametrize(
    ("part", "size"),
    [
        (NO_ANSWER, 150),
        (EXPIRED, 400),
        (RAISED, SIZE),
        (LOGGED, SIZE),
        (LEFT, SIZE),
        (CAME_UP, SIZE),
        (QUOTED, SIZE),
    ],
)
def test_cost_is_linear(part: str, size: int) -> None:
    first = 10_000
    assert growth(lambda n: read("".join(map(part.format, range(first, first + n)))), size) < MOST


def read(text: str) -> Callable[[], object]:
    """Return the reading and the judging of a log, as something to run."""

    def run() -> None:
        parser = parse.Parser(near=1.8e9)
        parser.feed(text)
        parser.finish()
        conclude(judge([parser.log("/x.log", Place())]))

    return run


def test_the_time_of_a_line_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lines of note after it have none."""
    looked_at: list[str] = []

    def stamp(line: str, _: float) -> None:
        if line:
            looked_at.append(line)

    monkeypatch.setattr(parse, "stamp", stamp)
    read("".join(map(EXPIRED.format, range(50))))()
    assert max(map(looked_at.count, looked_at)) < 6
