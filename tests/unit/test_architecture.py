"""docs/architecture.md: short, and every file, room and registry that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAX_WORDS = 1500
PLACES = {
    "hangtop_probe": ROOT / "core/hangtop_probe",
    "hangtop_hook": ROOT / "core/hangtop_hook",
    "hangtop_core": ROOT / "core/hangtop_core",
    "hangtop": ROOT / "tui/hangtop",
}
SUBJECTS = (
    "launcher",
    "transport",
    "screen",
    "column",
    "key",
    "cause",
    "log line",
    "secret",
    "GPU",
)
_CODE = re.compile(r"`([^`]+)`")


def _lists() -> dict[str, list[tuple[str, str]]]:
    """By what is to be added: files, and what to do in them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"\n\*\*(?=A )", PAGE.partition("## How to add")[2])[1:]:
        title, _, lines = part.partition("**\n")
        found[title] = re.findall(r"^- `([^`]+)`: (.+)$", lines, re.MULTILINE)
    return found


def _rooms() -> list[tuple[Path, list[str], list[str]]]:
    """Rows of the table of rooms: the package they are in, rooms, files to start reading at."""
    rows, place = [], ROOT
    table = PAGE.partition("## Rooms")[2].partition("\n## ")[0]
    for line in table.splitlines():
        cells = line.strip("| ").split("|")
        names = _CODE.findall(cells[0]) if line.startswith("|") else []
        if names and names[0] in PLACES:
            place = PLACES[names[0]]
            rows.append((place, [], _CODE.findall(cells[-1])))
        elif names:
            rows.append((place, names, _CODE.findall(cells[-1])))
    return rows


def test_it_is_short() -> None:
    assert len(PAGE.split()) <= MAX_WORDS


@pytest.mark.parametrize("subject", SUBJECTS)
def test_it_says_how_to_add(subject: str) -> None:
    (steps,) = (steps for title, steps in _lists().items() if subject in title)
    assert steps


@pytest.mark.parametrize("title", list(_lists()))
def test_files_and_registries_are_where_it_says(title: str) -> None:
    for path, what in _lists()[title]:
        file = ROOT / path
        assert file.is_file(), path
        names = [one for one in _CODE.findall(what) if re.fullmatch(r"_?[A-Za-z_]+", one)]
        missing = [one for one in names if not re.search(rf"\b{one}\b", file.read_text())]
        assert missing == [], path


def test_every_package_is_a_room_and_every_room_is_there() -> None:
    named: dict[Path, set[str]] = {place: set() for place in PLACES.values()}
    for place, rooms, files in _rooms():
        named[place] |= set(rooms)
        for room in rooms:
            assert (place / room).is_dir() or (place / f"{room}.py").is_file(), room
        for file in files:
            inside = [(place / room) for room in rooms] or [place]
            assert any(list(folder.rglob(file)) for folder in inside), file
    for place, rooms in named.items():
        packages = {one.parent.name for one in place.glob("*/__init__.py")}
        assert packages - rooms == set(), place
