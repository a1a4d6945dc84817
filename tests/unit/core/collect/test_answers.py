"""What is made of the answers of nodes."""

from __future__ import annotations

from support.pieces import meters, process
from support.stored import Bench


def test_who_asks_for_a_stack_learns_that_there_is_no_new_one() -> None:
    # GIVEN a rank that has not run since its stack was taken
    bench = Bench()
    for at in (0.0, 60.0):
        one = process(100, 0) if not at else {"pid": 100}
        bench.fold(at, {**one, "meters": meters(main_last_ran_s=at + 30)})
    bench.sample(100, 60.0, ("step", 1), ("main", 1))
    # WHEN the node cannot give one with C frames
    failure = {"kind": "denied", "text": "it is traced by process 7 (strace) already"}
    said = bench.sample(100, 61.0, stacks={}, threads=[], failure=failure, mode="native")
    # THEN who asked is told so, and the rank keeps the one that still holds
    assert said.failure is not None
    assert said.failure.text == failure["text"]
    (rank,) = bench.ranks(62.0)
    assert rank.sample is not None
    assert rank.sample.threads
    assert rank.sample.failure is None
    assert not bench.wrong
