"""The table of docs/security.md is that of the tool which measures it."""

from __future__ import annotations

from pathlib import Path

import fuzz.files  # noqa: F401
from fuzz import largest
from fuzz.target import TARGETS

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


def test_each_decoder_has_a_row_of_its_size() -> None:
    assert set(largest.ROWS) == set(largest.SIZES) == set(TARGETS)
    assert list(largest.table(SECURITY.read_text("utf-8"))) == list(largest.ROWS.values())


def test_each_row_was_measured() -> None:
    text = SECURITY.read_text("utf-8")
    assert largest.written(text, {}) == text
    for line in largest.table(text).values():
        seconds, memory = line.split("|")[3:5]
        assert float(seconds.split()[0]) >= 0
        assert int(memory.split()[0]) >= 0


def test_what_is_measured_takes_the_place_of_its_row() -> None:
    text = SECURITY.read_text("utf-8")
    line, ends = largest.row("core_pattern")
    assert ends == set()
    assert line.startswith("| core_pattern | 128 B | ")
    changed = largest.written(text, {"core_pattern": "| core_pattern | 9 B | 9.9 s | 9 MiB |"})
    assert largest.table(changed)["core_pattern"] == "| core_pattern | 9 B | 9.9 s | 9 MiB |"
    assert largest.written(changed, {"core_pattern": largest.table(text)["core_pattern"]}) == text
