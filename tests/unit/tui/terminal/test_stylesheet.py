"""Style sheets are parsed once, and anew for another theme."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.css.stylesheet import StylesheetParseError

from hangtop.terminal.stylesheet import KeptStylesheet


def color(sheet: KeptStylesheet) -> Color:
    (rule,) = sheet.rules
    return rule.styles.color


def test_nothing_is_parsed_twice_until_the_theme_is_another() -> None:
    sheet = KeptStylesheet(variables={"words": "red"})
    sheet.add_source("Screen { color: $words; }", ("a.tcss", ""))
    (first,) = sheet.rules
    sheet.set_variables({"words": "red"})
    sheet.reparse()
    assert sheet.rules[0] is first
    sheet.add_source("Screen { color: $words; }", ("b.tcss", ""))
    assert sheet.rules[0] is first
    assert len(sheet.rules) == 2
    del sheet.source["b.tcss", ""]
    sheet.set_variables({"words": "blue"})
    sheet.reparse()
    assert color(sheet) == Color.parse("blue")


def test_what_is_wrong_is_told_and_leaves_what_there_is() -> None:
    sheet = KeptStylesheet(variables={"words": "red"})
    sheet.add_source("Screen { color: $words; }", ("a.tcss", ""))
    sheet.reparse()
    sheet.add_source("Screen { color: 7 7; }", ("b.tcss", ""))
    with pytest.raises(StylesheetParseError):
        sheet.reparse()
    del sheet.source["b.tcss", ""]
    sheet.reparse()
    assert color(sheet) == Color.parse("red")
