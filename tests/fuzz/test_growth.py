"""No decoder, nor what follows from what it has read, costs more than in proportion to its input.

Good input grows at one place after the other, by parts that differ: see `grow.py`. What C does by itself
is not counted: `python tests/fuzz/steep.py` compares its time, and `largest.py` measures the largest input.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

import fuzz.files  # noqa: F401
from fuzz import steep
from fuzz.grow import Place, places
from fuzz.target import TARGETS
from support.growth import QUADRATIC, growth

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuzz.target import Target

SIZE = 48
SIZES = {"program": 400, "log": 16, "redaction": 24, "capture": 24}
"""More where not every part is looked at, and less where one is large."""
MOST = 2.5
"""Growth up to which cost counts as linear: numbers that are moved on get longer."""
AT_ONCE = 10
"""Places of one target that are looked at."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda one: one.name)
def test_cost_is_linear_wherever_input_grows(target: Target) -> None:
    every = list(places(target))
    chosen = every[:: -(-len(every) // AT_ONCE)]
    assert chosen
    size = SIZES.get(target.name, SIZE)
    grown = {place.name: growth(partial(run, target, place), size) for place in chosen}
    assert {name: one for name, one in grown.items() if one > MOST} == {}


def run(target: Target, place: Place, times: int) -> Callable[[], object]:
    """Return a run of a target, with so much more at a place of its input."""
    return partial(target.run, place.grown(times))


def test_what_compares_all_with_all_is_seen() -> None:
    """The test above can fail."""

    def pairs(times: int) -> Callable[[], object]:
        return lambda: [one for one in range(times) for other in range(times)]

    assert growth(pairs, SIZE) > 0.9 * QUADRATIC


def test_what_c_does_by_itself_is_seen_by_its_time() -> None:
    """`steep.py` compares processor time: no line of Python runs more often here."""
    place = Place("", lambda times: b"a" * 64 * times)

    def searched(data: bytes) -> None:
        numbers = list(range(len(data) // 64))
        for _ in numbers:
            numbers.count(-1)

    assert steep.steepness(list(steep.costs(searched, place, 1 << 20))) > steep.MOST
