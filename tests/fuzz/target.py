"""What is fuzzed: a decoder of bytes from outside, and good input of it to begin with.

Each target takes any bytes and returns. What its decoder documents to raise is let pass there, and
nothing else; what the decoder promises of its result is asserted there. `test_decoders.py` runs all
of them in the ordinary tests, `run.py` for as long as one likes, guided by coverage.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Target(NamedTuple):
    """A decoder."""

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    """Good input, as recorded or as other tests make it. What is JSON is changed as such."""


TARGETS: dict[str, Target] = {}


def target(
    seeds: Callable[[], list[bytes]],
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """Make a function a target by its name."""

    def add(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        TARGETS[run.__name__] = Target(run.__name__, run, seeds)
        return run

    return add


def text_of(data: bytes) -> str:
    """Text, as whoever reads output of programs gets it."""
    return data.decode("utf-8", "replace")


def expect_harmless(shown: str, lines: bool = False) -> None:
    """Nothing in a text acts on a terminal; ``lines`` may stand below each other."""
    for char in shown:
        if not char.isprintable() and not (lines and char == "\n"):
            category = unicodedata.category(char)
            assert category not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"), f"{char!r} is shown"
