"""Tournaments: every pair once, and nobody with two others at a time."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from hangtop_core.nettest import schedule


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 17, 64])
def test_every_pair_meets_once_and_nobody_twice_at_a_time(count: int) -> None:
    players = list(range(count))
    rounds = schedule.rounds(players)
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == sorted(combinations(players, 2))
    for pairs in rounds:
        busy = [player for pair in pairs for player in pair]
        assert len(busy) == len(set(busy))
    order = schedule.orders(players)
    assert all(sorted([player, *order[player]]) == players for player in players)


def test_groups_and_what_goes_across_them() -> None:
    groups = schedule.groups(list(range(19)), 8)
    assert sorted(map(len, groups)) == [6, 6, 7]
    assert sorted(one for group in groups for one in group) == list(range(19))
    for some, others in ((groups[0], groups[1]), (groups[1], groups[0]), ([1], [2])):
        rounds = schedule.across(some, others)
        met = {frozenset(pair) for pairs in rounds for pair in pairs}
        assert met == {frozenset(pair) for pair in product(some, others)}
        assert all(len({p for pair in pairs for p in pair}) == 2 * len(pairs) for pairs in rounds)
