"""Lines of styled text: sanitising, widths, wrapping."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangtop.terminal.spans import (
    Line,
    Span,
    cells,
    crop,
    fit,
    line,
    plain,
    second_in_view,
    spread,
    unbroken,
    wrap,
    wrap_all,
)
from hangtop.terminal.theme import asciify

TEXTS = st.text(max_size=60)
LINES = st.lists(st.tuples(TEXTS, st.sampled_from(["", "bad", "label"])), max_size=6).map(
    lambda parts: line(*parts)
)


@given(TEXTS)
def test_nothing_unprintable_gets_through(text: str) -> None:
    assert plain(line(text)).isprintable()


def test_what_is_cleaned_stays_apart_from_its_neighbours() -> None:
    assert plain(line("hung", ("  \x1b[2Jna\nme  ", "bold"), "here")) == "hung  na me  here"


def test_escape_sequences_and_markup_stay_harmless() -> None:
    assert plain(line("\x1b[2J\x1b]0;owned\x07rank")) == "rank"
    assert plain(line("[red]rank[/red]")) == "[red]rank[/red]"
    assert plain(line("a\nb")) == "a b"


@given(LINES, st.integers(0, 80))
def test_fit_is_exact(spans: tuple[Span, ...], width: int) -> None:
    assert cells(fit(spans, width)) == width
    assert cells(fit(spans, width, align="right")) == width
    assert cells(fit(spans, width, keep_end=True)) == width


@given(LINES, st.integers(0, 80))
def test_crop_never_exceeds(spans: tuple[Span, ...], width: int) -> None:
    assert cells(crop(spans, width)) <= max(width, 0)
    assert cells(crop(spans, width, keep_end=True)) <= max(width, 0)


@given(LINES, st.integers(8, 60), st.integers(0, 20))
def test_wrap_keeps_every_character(spans: tuple[Span, ...], width: int, indent: int) -> None:
    lines = wrap(spans, width, indent)
    assert all(cells(part) <= width for part in lines)
    text = "".join(plain(part) for part in lines).replace(" ", "")
    assert text == plain(spans).replace(" ", "")


def test_what_belongs_together_is_not_broken_and_looks_like_any_text() -> None:
    leads = line("state S  ", unbroken("→ 3 Rank", "dim"))
    assert [plain(part) for part in wrap(leads, 11, 2)] == ["state S", "  → 3 Rank"]
    assert [plain(part) for part in wrap(leads, 40)] == ["state S  → 3 Rank"]
    assert plain(leads) == "state S  → 3 Rank"


@given(LINES, LINES, st.integers(1, 100))
def test_spread_is_exact(left: tuple[Span, ...], right: tuple[Span, ...], width: int) -> None:
    assert cells(spread(left, right, width)) == width


def test_crop_marks_what_was_cut() -> None:
    assert plain(crop(line("abcdef"), 4)) == "abc…"
    assert plain(crop(line("abcdef"), 4, keep_end=True)) == "…def"


@given(TEXTS)
def test_ascii_keeps_widths(text: str) -> None:
    clean = plain(line(text))
    assert asciify(clean).isascii()
    assert cells(line(asciify(clean))) == cells(line(clean))


@given(LINES, LINES, st.integers(12, 60), st.integers(3, 8))
def test_the_second_line_is_in_view_when_the_first_is_long(
    first: Line, second: Line, width: int, rows: int
) -> None:
    given = [first, second, line("rest")]
    laid = wrap_all(second_in_view(given, width, rows), width)
    assert all(cells(one) <= width for one in laid)
    wanted = wrap(second, width)
    assert wanted[0] in laid[:rows]
    if len(wrap(first, width)) < rows:
        assert laid == wrap_all(given, width), "nothing is cut without need"
