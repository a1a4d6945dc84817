"""Ranks that have left the training loop, and wait in what ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from support.build import World
from support.situations import BACKWARD, FUTEX, JOIN, QUEUE, Stack, frame
from support.verdicts import blamed, hung

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

ENDLESS = (101, "while True:")
WITH = (100, "with Tracker() as tracker:")
MODULE = replace(frame("<module>", "train.py", 120), within=(), beside=())
STEPS = replace(frame("Trainer.step", "train.py", 91), within=(), beside=())
CLOSE = replace(frame("Tracker.close", "train.py", 83, "self.sender.join()"), within=(), beside=())
FINALLY = (ENDLESS, (103, "finally:"))


def fit(line: int, *within: tuple[int, str], beside: tuple[tuple[int, str], ...] = ()) -> Stack:
    return (replace(frame("Trainer.fit", "train.py", line), within=within, beside=beside), MODULE)


def trains(*within: tuple[int, str], beside: tuple[tuple[int, str], ...] = ()) -> Stack:
    return (*BACKWARD[:4], STEPS, *fit(102, *within, beside=beside))


def closes(*outer: tuple[int, str], wait: Stack = JOIN) -> Stack:
    each = (104, "for callback in self.callbacks:")
    return (wait[0], CLOSE, *fit(105, *outer, each, beside=FINALLY))


def judge(others: Stack, odd: Stack) -> Verdict:
    world = World()
    for _ in range(2):
        world.add(others, FUTEX)
    world.add(odd, FUTEX, sample={"others": [("sender", 4025, (QUEUE[0], *CLOSE_BY), False)]})
    return hung(world)


CLOSE_BY: Stack = (frame("Tracker.send", "train.py", 71, "line = self.lines.get()"),)


def test_who_waits_for_its_thread_in_the_finally_of_the_loop_of_others_is_leaving() -> None:
    one = judge(trains(ENDLESS), closes())
    assert (one.cause, blamed(one)) == ("teardown", [2])
    assert (
        "is leaving: it is in the `finally` of the `try` (train.py:103) in whose loop ranks 0-1 "
        "still are. It waits for a thread of its own at train.py:83 (Tracker.close)"
    ) in one.summary
    assert "thread 'sender'" in one.summary


def test_so_is_who_waits_in_what_ends_a_with() -> None:
    leave = replace(CLOSE, name="Tracker.__exit__")
    one = judge(trains(ENDLESS, beside=(WITH,)), (JOIN[0], leave, *fit(100)))
    assert (one.cause, blamed(one)) == ("teardown", [2])
    assert "in what ends train.py:100 (`with Tracker() as tracker:`), in whose loop" in one.summary


@pytest.mark.parametrize(
    ("others", "odd"),
    [
        # once in each epoch
        (trains((98, "for epoch in range(3):"), ENDLESS), closes((98, "for epoch in range(3):"))),
        (trains(), closes()),  # not in a loop: in this very step
        (trains(ENDLESS), (JOIN[0], CLOSE, *fit(105, beside=FINALLY[:1]))),  # past that `try`
        (  # in another function of it, before what is in the `with`
            trains(ENDLESS, beside=(WITH,)),
            (JOIN[0], replace(CLOSE, name="Tracker.__enter__"), *fit(100)),
        ),
    ],
)
def test_all_others_that_wait_for_a_thread_are_not(others: Stack, odd: Stack) -> None:
    assert judge(others, odd).cause == "lock-wait"


def test_who_wants_a_lock_there_is_told_by_who_holds_it() -> None:
    taken = replace(CLOSE, source="self.lock.acquire()")
    assert judge(trains(ENDLESS), (taken, *fit(105, beside=FINALLY))).cause == "lock-wait"
