"""Ranks that try again and again what fails, by calling themselves or by a library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.state.stack_table import StackTable
from support.build import NOW, World, judged
from support.situations import BASE, FUTEX, POLL, SLEEP, Stack, frame, thread, user
from support.verdicts import blamed, printing

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Frame

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


WRAPPER = replace(
    frame("with_retries.<locals>.wrapper", "store.py", 46, SOURCE),
    within=((37, "while True:"),),
    beside=((39, "return function(*args)"), (40, "except StoreError as error:")),
)
POLLS = replace(
    frame("Features.ask", "features.py", 30, "time.sleep(5)"),
    within=((24, "while True:"),),
    beside=(),
)
SAYS = (
    "store: 503 for http://10.0.0.9/shards/6; attempt 4, next one in 14.1 s",
    "store: 503 for http://10.0.0.9/shards/6; attempt 5, next one in 29.8 s",
)
STEPS = ("step 502 loss 1.2", "step 503 loss 1.1", "step 504: trying again")
TORCH = ("[rank2]: c10d store: connection refused, retry 1", "c10d: connection refused, retry 2")


@pytest.mark.parametrize(
    ("asleep", "lines", "code"),
    [
        (WRAPPER, (), "remote-service-wait"),
        (WRAPPER, SAYS, "remote-service-wait"),
        (POLLS, SAYS, "remote-service-wait"),
        (POLLS, ("answer was HTTP 429", "answer was HTTP 429"), "remote-service-wait"),
        # nothing tells; said once, or long ago; said of other ranks
        (POLLS, (), "missing-collective"),
        (POLLS, SAYS[:1], "missing-collective"),
        (POLLS, (*SAYS, *STEPS * 3), "missing-collective"),
        (POLLS, STEPS * 2, "missing-collective"),
        (POLLS, TORCH, "missing-collective"),
        # what fails is a file
        (
            replace(WRAPPER, beside=((39, "return read(path)"), (40, "except FileNotFoundError:"))),
            (),
            "missing-collective",
        ),
    ],
)
def test_what_the_log_and_names_tell(asleep: Frame, lines: tuple[str, ...], code: str) -> None:
    world = World()
    world.waiters(2)
    world.add((asleep, FIT, *BASE), SLEEP, moved_at=NOW)
    verdict = printing(world, *lines).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == (code, [2])
    if lines == SAYS and code == "remote-service-wait":
        assert f"; the log says again and again `{SAYS[-1]}`" in verdict.summary
    if asleep is WRAPPER:
        assert "with_retries calls it again and again at store.py:46" in verdict.summary


@pytest.mark.parametrize(("lines", "code"), [(SAYS, "remote-service-wait"), ((), "queue-wait")])
def test_the_thread_that_tries_again_or_the_event_loop(lines: tuple[str, ...], code: str) -> None:
    get = (frame("Queue.put", "py:queue.py", 140), *user("log", 44))
    facts = thread(4101, SLEEP)
    for main, others in (
        (get, [("sender", 4101, (POLLS, frame("Thread.run", "py:threading.py", 982)), False)]),
        ((frame("_run_once", "py:asyncio/base_events.py", 1898), *user("score", 9)), []),
    ):
        world = World()
        world.waiters(2)
        threads = {"threads": (facts,)} if others else {}
        world.add(main, FUTEX if others else POLL, process=threads, sample={"others": others})
        verdict = printing(world, *lines).verdicts[0]
        assert (verdict.cause, blamed(verdict)) == (code, [2])
        assert not (lines and others) or (
            "waits in put at train.py:44 (log) for its thread 'sender', which sleeps between two"
            in verdict.summary
        )


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
