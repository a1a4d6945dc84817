"""Ways that were late on machines under load are tried once more before anybody is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.nettest.answers import Called, CalledPiece, Opened
from hangtop_core.nettest.conduct import Conductor, are_slow
from hangtop_core.nettest.facts import Spot, Wanted, Way

if TYPE_CHECKING:
    from collections.abc import Mapping

NODES = ("a", "b", "c")


class Answers:
    """Nodes in place of real ones: what each says of its connections."""

    def __init__(self, usual: float, late: int) -> None:
        self.usual = usual
        self.late = late
        """How often the way from a to c is late."""
        self.asked: list[Mapping[str, Any]] = []

    def each(self, asked: Mapping[str, Any], *_: Any) -> tuple[dict[str, Any], dict[str, str]]:
        self.asked.append(asked)
        found = {}
        for node, params in asked.items():
            calls = []
            for number, address, _ in params["targets"]:
                bad = (node, address) == ("a", "10.0.0.c") and len(self.asked) <= self.late
                how, took = ("timed-out", params["limit"]) if bad else ("ok", self.usual)
                calls.append(Called(number, how, took))
            found[node] = [CalledPiece(tuple(calls))]
        return found, {}


def called(usual: float, late: int) -> tuple[Conductor, Answers]:
    conductor = Conductor(None, NODES, Wanted(29500), print)  # type: ignore[arg-type]
    answers = conductor._nodes = Answers(usual, late)  # type: ignore[assignment]
    conductor.facts.spots = {n: Spot("eth0", f"10.0.0.{n}", 24) for n in NODES}
    conductor.facts.opened = {n: (Opened(29500, 29500),) for n in NODES}
    conductor._call("token")
    return conductor, answers


@pytest.mark.parametrize(
    ("usual", "late", "rounds", "blocked"),
    [(0.5, 1, 2, 0), (0.5, 2, 2, 1), (0.001, 1, 1, 1), (0.5, 0, 1, 0)],
    ids=["busy", "busy and blocked", "blocked", "works"],
)
def test_what_was_late(usual: float, late: int, rounds: int, blocked: int) -> None:
    conductor, answers = called(usual, late)
    assert len(answers.asked) == rounds
    assert len(conductor.facts.ways) == 6
    assert sum(not way.ok for way in conductor.facts.ways) == blocked
    if rounds == 2:
        [(node, params)] = answers.asked[1].items()
        assert (node, len(params["targets"]), params["limit"]) == ("a", 1, 10.0)


def test_nothing_is_slow_where_nothing_works() -> None:
    assert not are_slow([Way("a", "b", "any", 1, "timed-out", 2.0)], 2.0)
