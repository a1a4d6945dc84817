"""What an inf or nan adds to a verdict: of who is blamed, else of who saw the first one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.model.numerics import First, Numerics
from support.build import NOW, World, judged
from support.situations import SLEEP, user


def saw(rank: int, batch: int) -> Numerics:
    one = First(batch=batch, module="head", tensor="output", at=NOW - 60.0)
    return Numerics(rank, "n1", 4000 + 10 * rank, f"/run/{rank}", firsts=(one,))


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ({0: 7, 3: 9}, [(3, "saw nan in output of head at batch 9, 1:00 ago")]),
        ({0: 7, 1: 5}, [(1, "saw nan in output of head at batch 5, 1:00 ago")]),
        ({}, []),
    ],
)
def test_who_is_blamed_and_saw_one_else_who_saw_the_first(
    batches: dict[int, int], told: list[tuple[int, str]]
) -> None:
    world = World()
    world.waiters(3)
    world.add(user("skip", 41), SLEEP)
    for rank, batch in batches.items():
        world.ranks[rank] = replace(world.ranks[rank], numerics=saw(rank, batch))
    (verdict,) = judged(world).verdicts
    assert [culprit.rank for culprit in verdict.culprits] == [3]
    facts = [(one.rank, one.text) for one in verdict.evidence if one.source == "numerics"]
    assert facts == told
    assert any("loss or gradients" in step for step in verdict.next_steps) == bool(told)
