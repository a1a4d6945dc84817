"""The table of what is fuzzed (CONTRIBUTING.md): it names every target, and modules that there are."""

from __future__ import annotations

import re
from pathlib import Path

import fuzz.files  # noqa: F401
from fuzz.target import TARGETS

ROOT = Path(__file__).parents[2]


def rows() -> list[list[str]]:
    """Decoders and targets of each row."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| bytes from |")[2]
    lines = [line for line in table.split("\n\n")[0].split("\n")[2:] if line]
    return [line.strip("| ").split(" | ") for line in lines]


def test_every_target_stands_there_once() -> None:
    named = [name for row in rows() for name in re.findall(r"`(\w+)`", row[2])]
    assert sorted(named) == sorted(TARGETS)


def test_decoders_are_there() -> None:
    packages = ("core/hangtop_probe", "core/hangtop_core", "core/hangtop_hook", "tui")
    for row in rows():
        for name in re.findall(r"`([\w.]+)`", row[1]):
            path = name.replace(".", "/")
            assert any(
                (ROOT / package / (path + end)).exists()
                for package in packages
                for end in (".py", "/__init__.py")
            ), name
