"""The tables of launchers in the pages, made of the table itself and of what was tried.

`python tests/support/launcherdocs.py` writes them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "core"), str(ROOT / "tests")]

from frameworks.shapes import SHAPES  # noqa: E402
from hangtop_probe.ranks import launchers  # noqa: E402

TRIED = ROOT / "tests/frameworks/tried.json"
PAGES = {"docs/launchers.md": ("table", "tried_table"), "README.md": ("short_table",)}
_BY = {"mp.spawn": "the argument of its function", launchers.AGENT: "`RANK`"}
_OTHERWISE = {
    "srun": ("Slurm 22.05",),
    "composer": ("composer 0.32.1 and torch 2.13.0, by hand on 2026-11-28",),
    "mpirun": ("Open MPI 4.1",),
    "verl": ("workers of verl 0.9.1, by hand on 2026-11-28",),
    "OpenRLHF": ("actors of openrlhf 0.11.2, by hand on 2026-11-28",),
    "mpiexec": ("Intel MPI 2021.19, by hand on 2026-11-28",),
    launchers.AGENT: ("torch 2.13",),
    "vLLM": ("stand-ins for its processes",),
    "SGLang": ("stand-ins for its processes",),
}
"""Tried by other tests (those of the suite, and jobs that accuracy is measured on), or by hand."""


def table() -> str:
    """Return the table of all launchers: what numbers their ranks, what names them, logs."""
    rows = ["| launcher | numbered by | named by | logs |", "|---|---|---|---|"]
    rows += [
        f"| {_called(one)} | {_numbers(one)} | {_names(one)} | {one.logs} |"
        for one in launchers.TABLE
    ]
    return "\n".join(rows)


def _called(one: launchers.Launcher) -> str:
    return f"{one.name} ({one.also})" if one.also else one.name


def _numbers(one: launchers.Launcher) -> str:
    told = one.ranks + one.pmi_ranks + one.tasks
    if not told and one.local_ranks:
        return f"`{one.local_ranks[0]}`, `{one.nodes[0]}`"
    names = ", ".join(f"`{name}`" for name in told)
    return names or _BY.get(one.name, "titles, arguments or frames")


def _names(one: launchers.Launcher) -> str:
    """Return by what it is recognised, the surest first."""
    words = one.marks + one.scripts + one.programs + one.daemons + one.parents
    names = [f"`{word}`" for word in words]
    names += [f"title like `{_shown(one.title)}`"] if one.title else []
    names += [f"frames of `{part.strip('/')}`" for part in one.frames]
    return ", ".join(dict.fromkeys(names)) or "its parent process"


def _shown(pattern: str) -> str:
    return pattern.replace("|", "\\|")


def tried() -> dict[str, dict[str, str]]:
    """Return what `make test-frameworks` has noted, by shape."""
    found: dict[str, dict[str, str]] = json.loads(TRIED.read_text()) if TRIED.exists() else {}
    return found


def tried_table() -> str:
    """Return the table of shapes: with which versions each was tried, when, and the outcome."""
    rows = ["| started by | called | tried with | on | hangtop was |", "|---|---|---|---|---|"]
    known = tried()
    for shape in SHAPES:
        note = known.get(shape.name, {"with": "not tried", "date": "", "result": ""})
        rows.append(
            f"| {shape.name} | {shape.launcher} | {note['with']} | {note['date']} "
            f"| {note['result']} |"
        )
    return "\n".join(rows)


def short_table() -> str:
    """Return the table of the README: each launcher that was tried, how, and with which version."""
    rows = ["| launcher | tried with |", "|---|---|"]
    tried_with = {one.name: _how(one) for one in launchers.TABLE}
    rows += [f"| {name} | {how} |" for name, how in tried_with.items() if how]
    untried = ", ".join(name for name, how in tried_with.items() if not how)
    return "\n".join([*rows, f"| {untried} | not tried: taken from their sources |"])


def _how(one: launchers.Launcher) -> str:
    shapes: dict[str, list[str]] = {}
    for shape in SHAPES:
        note = tried().get(shape.name)
        if shape.launcher == one.name and note and note["result"] == "right":
            shapes.setdefault(note["with"], []).append(shape.name)
    notes = [f"{packages} ({'; '.join(names)})" for packages, names in shapes.items()]
    return "; ".join([*notes, *_OTHERWISE.get(one.name, ())])


def write(page: Path, parts: tuple[str, ...]) -> None:
    """Put the tables between their marks in a page."""
    text = page.read_text()
    for part in parts:
        marks = f"<!-- {part} -->", f"<!-- end of {part} -->"
        between = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.S)
        made = f"{marks[0]}\n{globals()[part]()}\n{marks[1]}"
        text = between.sub(lambda _, made=made: made, text)
    page.write_text(text)


if __name__ == "__main__":
    for name, parts in PAGES.items():
        write(ROOT / name, parts)
