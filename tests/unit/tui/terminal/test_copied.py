"""What `y` copies of an entry is on the screen, character for character, whatever a text holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hangtop.terminal.spans import fit, holds, line, plain, plain_lines, wrap
from hangtop.views.nodes.node import node_items
from hangtop.views.nodes.nodes import node_rows
from hangtop.views.verdict.verdict import (
    blind_items,
    evidence_items,
    other_items,
    step_items,
    timeline_items,
)
from hangtop_core.analysis.verdict.steps import spelt
from hangtop_core.diagnosis import BlindSpot, Need
from hangtop_core.model.snapshot import Fact, Node, Snapshot
from hangtop_core.text.clean import is_plain
from hangtop_core.text.commands import Advice, Command
from support.build import NOW
from support.record import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop.terminal.items import Item
    from hangtop_core.diagnosis import Diagnosis

EVIL = "ls\n;reboot\r\x1b]52;c;eA==\x07\u202e\u200b \u3164x"
TEXTS = st.one_of(st.text(max_size=40), st.sampled_from([EVIL, "a: sudo rm", "`hangtop flight`"]))
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)


def diagnosis(name: str) -> Diagnosis:
    return next(iter(load(name).diagnoses.values()))


def check(items: Iterable[Item], width: int = 200) -> None:
    """An entry is wrapped where it is too long: breaks at blanks are all that may differ."""
    for item in items:
        assert all(map(is_plain, item.copied.split("\n"))), item.copied
        assert item.copied in plain_lines(item.lines), item
        shown = " ".join(plain(part).strip() for one in item.lines for part in wrap(one, width))
        assert " ".join(item.copied.split()) in " ".join(shown.split())


@quick
@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS, TEXTS)
@example([EVIL], EVIL, EVIL)
def test_next_steps(words: list[str], why: str, advice: str) -> None:
    steps = [
        spelt(one, {})
        for one in (Command("", tuple(words), why), Command("", tuple(words)), Advice(advice))
    ]
    one = diagnosis("stopped")
    verdict = replace(
        one.verdicts[0],
        next_steps=tuple(step.text for step in steps),
        commands=tuple(step.command for step in steps),
    )
    items = step_items(replace(one, verdicts=(verdict,)), None)
    check(items)
    assert [item.copied for item, step in zip(items, steps, strict=True) if step.command] == [
        step.command for step in steps if step.command
    ]


@quick
@given(TEXTS, TEXTS)
@example(EVIL, EVIL)
def test_whatever_a_diagnosis_says(text: str, other: str) -> None:
    """Also one that was stored, and says of commands what it likes."""
    one = diagnosis("stopped")
    told = replace(one.verdicts[0].evidence[0], text=text)
    verdict = replace(
        one.verdicts[0], next_steps=(text, other), commands=(other,), evidence=(told,)
    )
    need = Need("logs", 3, other, 7, text, "needs consent", other)
    spots = (BlindSpot(text, (other,), (), text, other), BlindSpot("x", (), (1,), text, text))
    moments = tuple(replace(moment, text=text) for moment in one.timeline)
    one = replace(one, verdicts=(verdict,), needs=(need,), blind_spots=spots, timeline=moments)
    check(evidence_items(one, None))
    check(blind_items(one))
    check(other_items(one, None))
    check(timeline_items(one, NOW))
    check(step_items(replace(one, verdicts=(replace(verdict, commands=()),)), None))


@quick
@given(TEXTS, TEXTS)
@example(EVIL, EVIL)
def test_whatever_a_node_says(text: str, other: str) -> None:
    facts = {"strace": Fact(False, why=text, fix=other), other: Fact(False, fix=text)}
    node = Node(
        "n1", "ready", python=text, boot_id=other, noise=(text,), noise_lines=1, fix=other,
        capabilities=facts, reason=text, via=other, full_mounts=(text,), python_processes=(other,),
    )  # fmt: skip
    snapshot = Snapshot(at=NOW, observed_since=NOW, tick=1, nodes=(node,))
    for shell in (None, ["ssh", text, other]):
        for row in node_rows(snapshot, None, None, NOW, folded=False):
            check(node_items(row, shell))


def test_a_part_that_is_copied_is_a_part_of_what_is_shown() -> None:
    """Of real recordings: every entry of the verdict, in the width of a small terminal."""
    for name in ("stopped", "skip", "lock", "logs", "cluster"):
        one = diagnosis(name)
        check([*evidence_items(one, None), *blind_items(one), *step_items(one, None)], 80)


@pytest.mark.parametrize("hidden", ["\u3164", "\u200b", "\ufe0f", "\u202e", "\x1b[2K", "\x07"])
def test_what_nobody_sees_is_in_no_line(hidden: str) -> None:
    assert plain(line(f"a{hidden}b")) == "ab"


@quick
@given(TEXTS, st.integers(8, 40), st.integers(0, 6))
@example(EVIL, 8, 2)
@example("a  b " * 9, 8, 0)
def test_a_text_is_held_by_what_is_wrapped_and_not_by_what_is_cut(
    text: str, width: int, indent: int
) -> None:
    whole = line(text)
    copied = plain(whole)
    assert holds([plain(part) for part in wrap(whole, width, indent)], copied)
    cut = plain(fit(whole, width))
    assert holds([cut], copied) == (cut == copied)


@pytest.mark.parametrize(
    ("shown", "text", "held"),
    [
        (["ls /tmp", "  /data"], "ls /tmp /data", True),
        (["ls /tmp", "  /data"], "ls /tmp/data", True),
        (["a b"], "a\nb", False),
        (["a", "b"], "a\nb", True),
        (["a", "", "b"], "a\n\nb", True),
        (["ab"], "a b", False),
        (["a b"], "ab", False),
        (["rm a"], "rm a; reboot", False),
        ([], "", True),
    ],
)
def test_a_line_break_and_a_blank_are_held_by_no_other(
    shown: list[str], text: str, held: bool
) -> None:
    assert holds(shown, text) == held
