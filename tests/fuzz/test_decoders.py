"""Every decoder of outside bytes, on good input that was changed: what `make fuzz` does for long.

What was found wrong once is kept in `cases`, a file for each, named after its target.
"""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz.files  # noqa: F401
from fuzz.change import WORDS, changed
from fuzz.target import TARGETS

if TYPE_CHECKING:
    from fuzz.target import Target

CASES = sorted((Path(__file__).parent / "cases").glob("*/*"))
NUMBERS = st.integers(0, 1 << 24)
CHANGES = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5)
MEMORY = 64 << 20
"""Bytes that any decoder may take for inputs of some KB; counted, not measured on the process."""
CPU_S = 5.0
"""For 64 KB of what is hard on patterns: a regex that backtracks takes minutes."""
by_name = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda one: one.name)


@by_name
def test_what_is_changed_is_read_or_refused(target: Target) -> None:
    seeds = target.seeds()

    @settings(
        max_examples=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(seeds), CHANGES)
    def check(seed: bytes, changes: list[tuple[int, int, int]]) -> None:
        target.run(changed(seed, changes))

    check()


@by_name
def test_good_input_takes_little_memory(target: Target) -> None:
    seeds = target.seeds()
    target.run(seeds[0])  # what is made once, is made
    tracemalloc.start()
    try:
        for seed in seeds:
            target.run(seed)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


@by_name
def test_no_repetition_takes_long(target: Target) -> None:
    """Of each odd word, and of the first words of good input. CPU time, so that a busy machine
    changes little."""
    first = target.seeds()[0]
    began = time.process_time()
    for word in (*WORDS[3:30:9], b"[", b"a ", first[:40]):
        target.run(first[:200] + word * (16_384 // max(len(word), 1)))
    assert time.process_time() - began < CPU_S


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.parent.name}-{one.name}")
def test_what_was_found_once(case: Path) -> None:
    TARGETS[case.parent.name].run(case.read_bytes())
