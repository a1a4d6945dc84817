"""How often a node is looked at: seldom while nothing is new, and at once when something is."""

from __future__ import annotations

from itertools import pairwise

from hangtop_core.scheduling.pace import LONG_S, MOST_S, NODES, TOGETHER, Pace


def looks(pace: Pace, told: int, begin: float, end: float) -> list[float]:
    """When a node is looked at that could be every second."""
    return [at for at in range(int(begin), int(end)) if pace.due("n1", told, float(at))]


def test_the_longer_nothing_is_new_the_seldomer_a_node_is_looked_at() -> None:
    pace = Pace()
    found = looks(pace, 1, 0, 200)
    gaps = [later - before for before, later in pairwise(found)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert gaps[-1] == MOST_S
    for other in range(2 * NODES - 1):
        pace.due(f"other{other}", 0, 200.0)
    found = looks(pace, 1, 200, 400)
    assert found[-1] - found[-2] == 2 * MOST_S


def test_what_is_new_on_a_node_is_looked_at_at_once() -> None:
    pace = Pace()
    last = looks(pace, 1, 0, 200)[-1]
    assert not pace.due("n1", 1, last + 0.5)
    assert pace.due("n1", 2, last + 0.6)
    assert pace.due("n1", 2, last + 1.6), "and soon again"
    assert pace.due("n2", 1, last + 0.5), "each node by itself"


def test_of_many_nodes_one_at_rest_is_looked_at_each_time_it_has_rested_twice_as_long_again() -> (
    None
):
    pace = Pace()
    for node in range(16 * NODES):
        pace.due(f"n{node}", 1, 0.0)
    found = looks(pace, 1, 1, 800)
    assert all(later == 3 * before for before, later in pairwise(found) if later <= 16 * MOST_S)
    assert found[-1] - found[-2] == 16 * MOST_S


def test_nodes_that_began_to_rest_together_are_looked_at_one_after_the_other() -> None:
    pace, nodes = Pace(), [f"n{number}" for number in range(4 * TOGETHER)]

    def round_at(now: float, told: int = 0) -> list[str]:
        pace.begin()
        return [name for name in nodes if pace.due(name, told, now)]

    assert round_at(0.0) == round_at(0.0) == round_at(LONG_S) == nodes, "soon after, all at once"
    later = [round_at(100.0 + number) for number in range(5)]
    assert [len(some) for some in later] == [TOGETHER] * 4 + [0]
    assert sorted(name for some in later for name in some) == sorted(nodes), "each of them once"
    assert round_at(106.0, told=1) == nodes, "what is new never waits"
