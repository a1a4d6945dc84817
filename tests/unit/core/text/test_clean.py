"""Texts of others are cleaned, and texts are shortened."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hangtop_core.text.clean import (
    clean,
    duration,
    plural,
    shorten,
    shorten_middle,
    shorten_path,
    size,
)


@given(st.text(max_size=300), st.integers(0, 50))
@example("\u0378 \xa0\u3000 x", 50)
def test_nothing_harmful_is_left(text: str, limit: int) -> None:
    result = clean(text, limit)
    assert len(result) <= limit
    assert result.isprintable()


@given(st.text(max_size=100))
@example("¡\r\x08\r0")
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text, 1000)
    assert clean(once, 1000) == once


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;ZXZpbA==\x1b\\text", "text"),
        ("\x1bP+q544e\x1b\\text", "text"),
        ("\x9b31mred", "red"),
        ("a\nb\r\n\tc", "a b c"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("bell\x07 null\x00", "bell null"),
        ("e" + "\u0301" * 40, "e\u0301\u0301"),
        ("lone \udc80 surrogate", "lone surrogate"),
        ("Größe 日本", "Größe 日本"),
    ],
)
def test_what_is_shown(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_a_huge_text_is_cut_before_it_is_looked_at() -> None:
    assert clean("\x1b[" + "9" * 10_000_000, 10) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (float("nan"), "?"),
        (-1, "0 s"),
        (0.04, "0 s"),
        (0.42, "0.4 s"),
        (9.97, "10 s"),
        (59.6, "1:00"),
        (192, "3:12"),
        (3599.7, "1 h 00 m"),
        (3840, "1 h 04 m"),
        (2 * 86400 + 3 * 3600, "2 d 03 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "?"), (17, "17 B"), (1536, "1.5 KiB"), (1023.9, "1.0 KiB"), (3 * 2**40, "3.0 TiB")],
)
def test_sizes(count: float | None, text: str) -> None:
    assert size(count) == text


@given(st.text(alphabet="abc/", max_size=40), st.integers(1, 30))
def test_shortened_texts_fit(text: str, limit: int) -> None:
    for short in (shorten(text, limit), shorten_middle(text, limit), shorten_path(text, limit)):
        assert len(short) <= limit
        assert len(text) > limit or short == text


def test_shortening_keeps_what_says_most() -> None:
    assert shorten("all_reduce", 5) == "all_…"
    assert shorten_middle("gpu-node-0017", 9) == "gpu-…0017"
    assert shorten_path("/usr/lib/python3/site/train.py", 16) == "…/site/train.py"
    assert plural(1, "rank") == "1 rank"
    assert plural(2, "process", "processes") == "2 processes"
