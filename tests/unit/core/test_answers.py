"""What is made of the answers of nodes."""

from __future__ import annotations

import pytest

from hangtop_core.answers import Answers
from hangtop_core.attach import messages
from hangtop_core.store import Store
from support.pieces import EPOCH, meters, piece, process, stacks


def test_who_asks_for_a_stack_learns_that_there_is_no_new_one() -> None:
    # GIVEN a rank that has not run since its stack was taken
    store = Store()
    store.add_node("n1", EPOCH)
    store.connected("n1", EPOCH, False, EPOCH)
    answers = Answers(store)
    for at in (0.0, 60.0):
        new = [process(100, 0)] if not at else [{"pid": 100}]
        watch = piece(at, *(dict(one, meters=meters(main_last_ran_s=at + 30)) for one in new))
        store.fold_watch("n1", messages.decode(watch, messages.WatchPiece), pytest.fail)
    taken = stacks(100, 60.0, ("step", 1), ("main", 1))
    answers.stacks("n1", messages.decode(taken, messages.StackPiece))
    # WHEN the node cannot give one with C frames
    failure = {"kind": "denied", "text": "it is traced by process 7 (strace) already"}
    denied = stacks(100, 61.0, stacks={}, threads=[], failure=failure, mode="native")
    said = answers.stacks("n1", messages.decode(denied, messages.StackPiece))
    # THEN who asked is told so, and the rank keeps the one that still holds
    assert said.failure is not None
    assert said.failure.text == failure["text"]
    rank = store.publish(EPOCH + 62).jobs[0].ranks[0]
    assert rank.sample is not None
    assert rank.sample.threads
    assert rank.sample.failure is None
