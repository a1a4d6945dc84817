"""Tracebacks whose lines are mixed: how many there were, and what tells them apart next time."""

from __future__ import annotations

import random

import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.report.logs import logs_text
from support.logs import judged, parsed

FRAMES = ("job.py:3 main", "data.py:785 __init__")
RAISED = "AttributeError: 'list' object has no attribute 'sum'"


def traceback(error: str = RAISED, head: bool = True) -> list[str]:
    lines = ["Traceback (most recent call last):"] if head else []
    for frame in FRAMES:
        place, name = frame.split()
        file, line = place.split(":")
        lines += [f'  File "/a/{file}", line {line}, in {name}', f"    {name}.call()"]
    return [*lines, error]


def mixed(columns: list[list[str]], seed: int) -> str:
    """Lines of several processes, each in its order, as they come."""
    rolls = random.Random(seed)
    rest = [list(column) for column in columns]
    lines = []
    while any(rest):
        lines.append(rolls.choice([column for column in rest if column]).pop(0))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(12))
def test_mixed_tracebacks_are_counted_and_the_remedy_is_named(seed: int) -> None:
    found = judged(mixed([traceback()] * 4, seed))
    assert found.first is not None
    assert (found.first.record.text, found.first.count) == (RAISED, 4)
    (one,) = found.ambiguities
    assert one.text.startswith("4 tracebacks are mixed line by line")
    text = logs_text(found, conclude(found), [parsed("")], 100)
    assert "torchrun --role $(hostname -s): --tee 3" in text
    assert "hangtop run" in text


@pytest.mark.parametrize("seed", range(6))
def test_mixed_tracebacks_of_which_the_beginnings_are_cut_off_are_counted(seed: int) -> None:
    text = mixed([traceback(head=False)] * 4, seed)
    found = judged(text)
    assert found.first is not None
    assert found.first.count == 4
    assert found.ambiguities[0].code == "mixed-tracebacks"


@pytest.mark.parametrize("error", ["pkg.Fault: no data", "StepFault: no data", "KeyboardInterrupt"])
def test_exceptions_of_the_program_s_own_are_counted(error: str) -> None:
    found = judged(mixed([traceback(error)] * 3, 7))
    assert found.first is not None
    assert (found.first.record.text, found.first.count) == (error, 3)
    assert found.ambiguities[0].text.startswith("3 tracebacks")


def test_mixed_tracebacks_of_which_the_ends_are_cut_off_are_counted() -> None:
    found = judged(mixed([traceback()[:-1]] * 3, 7))
    assert found.ambiguities[0].text.startswith("3 tracebacks")


def test_errors_that_differ_are_told_each() -> None:
    first, second = traceback(), traceback("KeyError: 'labels'")
    lines = [line for pair in zip(first, second, strict=True) for line in pair]
    found = judged("\n".join(lines) + "\n")
    errors = [one for one in (found.first, *found.others) if one is not None]
    assert {one.record.text for one in errors} == {RAISED, "KeyError: 'labels'"}
    assert found.ambiguities[0].text.startswith("2 tracebacks")


WHOLE = [
    "\n".join(traceback() + traceback()) + "\n",
    "\n".join([*traceback()[:-1], "RuntimeError: in a worker", "Original Traceback (most recent "
               "call last):", *traceback()[1:]]) + "\n",
    "\n".join(
        [*traceback(), "", "During handling of the above exception, another exception occurred:",
         "", *traceback("ValueError: x")]
    ) + "\n",
    "Traceback (most recent call last):\n" + '  File "<string>", line 1, in f\n' * 3
    + "KeyError: 1\n",
    "Traceback (most recent call last):\n" + '  File "/a/r.py", line 1, in f\n    f()\n' * 3
    + "  [Previous line repeated 9 more times]\nRecursionError: x\n",
]  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
def test_tracebacks_that_come_whole_are_not_mixed(text: str) -> None:
    assert judged(text).ambiguities == ()


def test_what_torchs_hook_prints_is_told_apart_by_its_prefix() -> None:
    columns = [[f"[rank{rank}]: {line}" for line in traceback()] for rank in range(3)]
    found = judged(mixed(columns, 1))
    assert found.first is not None
    assert found.first.ranks == (0, 1, 2)
    assert found.ambiguities == ()


def two_nodes(names: tuple[str, str], seed: int, ranks: int = 4) -> str:
    """The tracebacks of the ranks of two nodes as torchrun's labels tell them apart, or not."""
    columns = [
        [f"[{name}:{local}]:{line}" for line in traceback()]
        for name in names
        for local in range(ranks)
    ]
    return mixed(columns, seed)


@pytest.mark.parametrize("seed", range(4))
def test_one_name_for_all_nodes_is_noticed_by_tracebacks_that_are_mixed(seed: int) -> None:
    found = judged(two_nodes(("head", "head"), seed))
    (one,) = found.ambiguities
    assert one.code == "shared-label"
    assert one.text.startswith("Several nodes print as head")
    assert "\\$(hostname -s)" in one.steps[0]
    assert found.first is not None
    assert (found.first.ranks, found.first.count) == ((), 8)
    assert judged(two_nodes(("n1", "n2"), seed)).ambiguities == ()


SHARED = [
    # Two global ranks under one label, on both of its local ranks.
    "".join(f"[head:{r % 2}]:[rank{r}]:[W1121 x\n" for r in range(4)),
    "".join(f"[default{r % 2}]:[rank{r}]:[W1121 x\n" for r in range(4)),
    # What NCCL prints names its host.
    "[head:0]:n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    "[head:0]:n2:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n",
    # Another tool names the node.
    "".join(f"n{n}: [head:{r}]:step\n" for n in (1, 2) for r in (0, 1)),
    "".join(f"{n}: [head:{r}]:step\n" for n in (0, 1) for r in (0, 1)),
]


@pytest.mark.parametrize("text", SHARED)
def test_one_name_for_all_nodes_is_noticed(text: str) -> None:
    assert [one.code for one in judged(text).ambiguities] == ["shared-label"]


APART = [
    "".join(f"[n{r // 2}:{r % 2}]:[rank{r}]:[W1121 x\n" for r in range(4)),
    "".join(f"{n}: [n{n}:{r}]:step\n" for n in (0, 1) for r in (0, 1)),
    # One rank quotes another.
    "".join(f"[head:{r}]:[rank{r}]:[W1121 x\n" for r in range(4))
    + "[head:1]:[rank3]: KeyError: 1\n",
    "[head:0]:n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n[head:1]:step\n",
]


@pytest.mark.parametrize("text", APART)
def test_names_of_nodes_that_differ_are_no_matter(text: str) -> None:
    assert judged(text).ambiguities == ()


def test_many_mixed_errors_are_one_thing_with_their_count() -> None:
    head = "Traceback (most recent call last):\n"
    (one,) = parsed(head * 2 + "".join(f"KeyError: {n}\n" for n in range(3000))).records
    assert (one.count, one.fields["mixed"]) == (3000, "3000")
