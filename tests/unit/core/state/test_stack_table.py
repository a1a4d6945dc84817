"""Stacks are dropped when there are too many, and never one that a probe may still refer to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangtop_core.model.snapshot import Frame
from hangtop_core.state.stack_table import StackTable

if TYPE_CHECKING:
    from random import Random

MAX = 20


def stack(key: str) -> tuple[Frame, ...]:
    return (Frame(key, "/a.py", "a.py", 1),)


class Probe:
    """What `hangtop_probe.stacks.stacks.Sampler` tells: a stack whole once, then its key."""

    def __init__(self) -> None:
        self.edition = 0
        self.told: set[str] = set()
        self.asked: deque[int] = deque()
        self.said: deque[tuple[int, set[str], set[str]]] = deque()
        """Editions of the requests, the keys in their answers, and which of them were told."""

    def answer(self, random: Random, fresh: int) -> None:
        edition = self.asked.popleft()
        if edition != self.edition:
            self.edition = edition
            self.told.clear()
        keys = {f"k{random.choice([random.randrange(8), fresh])}" for _ in range(3)}
        self.said.append((edition, keys, keys - self.told))
        self.told |= keys


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_whatever_is_dropped_when_no_probe_refers_to_it_afterwards(random: Random) -> None:
    table = StackTable(MAX)
    probes = [Probe() for _ in range(3)]
    used: dict[int, set[str]] = {}
    largest = 0
    for step in range(400):
        number = random.randrange(len(probes))
        probe = probes[number]
        what = random.randrange(4)
        if what == 0 and len(probe.asked) < 3:
            probe.asked.append(table.lend())
        elif what == 1 and probe.asked:
            random.shuffle(probe.asked)  # every request has a thread of its own
            probe.answer(random, 100 + step)
        elif what == 2 and probe.said:
            edition, keys, told = probe.said.popleft()
            for key in told:
                table.add(key, stack(key))
            assert all(key in table for key in keys)
            used[number] = keys
            table.give_back(edition)
        elif what == 3:
            table.trim(lambda: set().union(*used.values()))
            assert all(key in table for keys in used.values() for key in keys)
        largest = max(largest, len(table))
    assert largest < 5 * MAX, "it is bounded"


def test_what_is_in_use_may_be_more_than_the_bound_without_being_told_all_the_time() -> None:
    table = StackTable(MAX)
    keys = [f"k{n}" for n in range(3 * MAX)]
    for key in keys:
        table.add(key, stack(key))
    for _ in range(10):
        table.trim(lambda: keys)
    assert len(table) == 3 * MAX
    assert table.lend() == 1, "one new edition was enough"


PYTHON = "/usr/lib/python3.11/"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
LOOKS = {
    "data": (
        ["load_batch /job/train.py", f"__next__ {LOADER}", f"_get_data {LOADER}"],
        [f"_try_get_data {LOADER}", f"get {PYTHON}queue.py", f"wait {PYTHON}threading.py"],
        [f"_try_get_data {LOADER}", f"is_alive {PYTHON}multiprocessing/process.py"],
    ),
    "child": (
        ["build /job/train.py", f"Popen.wait {PYTHON}subprocess.py"],
        [f"Popen._wait {PYTHON}subprocess.py"],
        [f"Popen._wait {PYTHON}subprocess.py", f"Popen._remaining_time {PYTHON}subprocess.py"],
    ),
    "file-lock": (
        ["load /job/train.py", "acquire /venv/lib/python3.11/site-packages/filelock/_api.py"],
        [],
        ["_acquire /venv/lib/python3.11/site-packages/filelock/_unix.py"],
    ),
}
"""What calls a library's wait, how it sleeps there, and how it looks whether that is over."""


def frames(*calls: str) -> tuple[Frame, ...]:
    """The frames of calls, outermost first, as `name file`."""
    pairs = [call.split() for call in reversed(calls)]
    return tuple(Frame(name, file, file.rpartition("/")[2], 1) for name, file in pairs)


@pytest.mark.parametrize("kind", LOOKS)
def test_looking_whether_a_wait_is_over_makes_no_other_functions(kind: str) -> None:
    table = StackTable()
    outer, asleep, awake = LOOKS[kind]
    table.add("asleep", frames(*outer, *asleep))
    table.add("awake", frames(*outer, *awake))
    table.add("before", frames(*outer[:-1]))
    table.add("elsewhere", frames("evaluate /job/train.py", *outer[1:], *asleep))
    (lines, functions), awake_shape = table.shape("asleep"), table.shape("awake")
    assert awake_shape[1] == functions
    assert awake_shape[0] != lines
    assert functions not in (table.shape("before")[1], table.shape("elsewhere")[1])
