"""From pairs that fail to the node that they have in common."""

from __future__ import annotations

from itertools import permutations

import pytest

from hangtop_core.nettest.culprits import fold


@pytest.mark.parametrize(
    ("nodes", "failing", "blamed"),
    [
        ("abcd", "", []),
        ("abcd", "ac bc dc", [("into", "c")]),
        ("abcd", "ca cb cd", [("from", "c")]),
        ("abcd", "ac bc dc ca cb cd", [("both", "c")]),
        # Two guilty: what each has with the other counts for one of them.
        ("abcd", "ab cb db ac bc dc", [("into", "b"), ("into", "c")]),
        ("abcd", "ab", [("pair", "ab")]),
        ("abcd", "ab ba", [("pair", "ab")]),
        ("abcd", "ab cd", [("pair", "ab"), ("pair", "cd")]),
        # With one other it could be either.
        ("ab", "ab", [("pair", "ab")]),
        ("ab", "ab ba", [("pair", "ab")]),
        ("abc", "ab ba ac ca bc cb", [("all", "abc")]),
        # Too many to tell one by one.
        ("abcdef", "ab bc cd de ef", [("some", "bcdeaf")]),
        # One that nobody reaches, and a pair beside it.
        ("abcd", "ad bd cd ab", [("into", "d"), ("pair", "ab")]),
    ],
)
def test_a_node_is_guilty_of_what_all_its_ways_share(
    nodes: str, failing: str, blamed: list[tuple[str, str]]
) -> None:
    tested = [(a, b) for a, b in permutations(nodes, 2)]
    found = fold(tested, [(pair[0], pair[1]) for pair in failing.split()])
    assert [(one.what, "".join(one.nodes)) for one in found] == blamed
    # Every failing pair is explained, once.
    explained = [pair for one in found for pair in one.pairs]
    assert sorted(explained) == sorted((pair[0], pair[1]) for pair in failing.split())
