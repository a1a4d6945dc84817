"""Ranks that try again and again what fails, by calling themselves or by a library."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.stacktable import StackTable
from support.build import BASE, NOW, SLEEP, Stack, World, frame, judged, user

SOURCE = "time.sleep(delay)"
ASK = replace(
    frame("Judge.ask", "judge.py", 54, SOURCE),
    within=(),
    beside=(
        (49, "with socket.create_connection(self.at) as conn:"),
        (52, "except OSError as error:"),
    ),
)
AGAIN = replace(ASK, line=55, source=None)
FIT = replace(frame("fit", "train.py", 70), within=((69, "for step in range(steps):"),))


def cause(*stack: object, **fields: object) -> tuple[str, str]:
    world = World()
    world.waiters(2)
    world.add(stack, SLEEP, moved_at=NOW, **fields)  # type: ignore[arg-type]
    verdict = judged(world).verdicts[0]
    assert [one.rank for one in verdict.culprits] == [2]
    return verdict.cause, verdict.summary


def test_a_function_that_calls_itself_in_an_except() -> None:
    code, told = cause(ASK, AGAIN, AGAIN, FIT, *BASE)
    assert code == "remote-service-wait"
    assert "ask, which calls itself at judge.py:54" in told
    assert "`with socket.create_connection(self.at) as conn:` (judge.py:49)" in told


def test_a_sleep_in_an_except_that_is_not_gone_round() -> None:
    # GIVEN the same, called once, in a loop over steps: it may be what it is to do once
    assert cause(ASK, FIT, *BASE)[0] == "missing-collective"


@pytest.mark.parametrize("library", ["tenacity/nap.py", "backoff/_sync.py", "retrying.py"])
def test_a_library_that_tries_again(library: str) -> None:
    file = "/opt/venv/lib/python3.11/site-packages/" + library
    code, told = cause(frame("sleep", file, 31, "time.sleep(seconds)"), *user("download", 20))
    assert code == "remote-service-wait"
    assert "train.py:20 (download)" in told


def stack(*names: str) -> Stack:
    """A stack of functions, outermost first."""
    return tuple(frame(name, "train.py", 1) for name in reversed(names))


@pytest.mark.parametrize(
    ("before", "after", "deeper"),
    [
        ("main ask ask", "main ask ask ask", True),
        ("main ask wrap ask wrap", "main ask wrap ask wrap ask wrap", True),
        ("main ask ask", "main ask", False),  # it came back: it works on something
        ("main walk walk", "main walk walk leaf", False),
        ("main walk leaf", "main walk walk leaf leaf", True),
        ("main ask", "main ask", False),
        ("main a b", "main b a b", False),
    ],
)
def test_recursion_that_only_goes_deeper(before: str, after: str, *, deeper: bool) -> None:
    table = StackTable()
    table.add("old", stack(*before.split()))
    table.add("new", stack(*after.split()))
    assert table.only_deeper("old", "new") == deeper
