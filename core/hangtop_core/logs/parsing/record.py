"""What parsing gives: a record for everything of note that was printed, and who printed it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.text.clean import clean, shorten, signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.model.file_log import Record

KEPT_LINES = 60
"""Lines of one record that are kept, the first and the last of them."""
KEPT_CHARS = 2000
"""Characters of one kept line."""

_BLANKS = re.compile(r" {2,}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_RUNS = re.compile(r"( {2,})")


def printable(line: str) -> str:
    """A line that is safe to print, with its blanks: tables and boxes stay straight."""
    body = line.lstrip(" \t")
    lead = line[: len(line) - len(body)].replace("\t", "    ")[:80]
    if "  " not in body or "\x1b" in body:
        return lead + clean(body, KEPT_CHARS)
    parts = _RUNS.split(body[: 2 * KEPT_CHARS].rstrip())
    straight = (one if one[:1] == " " else clean(one, KEPT_CHARS) for one in parts)
    return lead + shorten("".join(straight), KEPT_CHARS)


def kept(lines: list[str]) -> tuple[str, ...]:
    """The lines of a record that are kept."""
    if len(lines) > KEPT_LINES:
        half = KEPT_LINES // 2
        left = len(lines) - 2 * half
        lines = [*lines[:half], f"    ... {left} more lines", *lines[-half:]]
    return tuple(printable(line) for line in lines)


def lines_at(record: Record, texts: Sequence[str], at: int) -> int:
    """How many of these lines, from one on, are those of a record; 0 where they are others."""
    lines = record.lines
    if len(lines) <= KEPT_LINES:
        return len(lines) if tuple(texts[at : at + len(lines)]) == lines else 0
    half = KEPT_LINES // 2
    left = int(lines[half].split()[1])
    begin, end = tuple(texts[at : at + half]), at + half + left
    same = begin == lines[:half] and tuple(texts[end : end + half]) == lines[half + 1 :]
    return 2 * half + left if same else 0


def fill(template: str, fields: Mapping[str, str]) -> str:
    """A row's meaning with the fields of a line; what it lacks leaves nothing (`Known.means`)."""
    text = _OPTIONAL.sub(lambda part: part[1] if _told(part[1], fields) else "", template)
    for name in re.findall(r"{(\w+)}", template):
        text = text.replace(f"{{{name}}}", fields.get(name, "").strip())
    text = re.sub(r"\(\s*\)|:\s*$", "", _BLANKS.sub(" ", text))
    return clean(text.replace(" ,", ",").replace(" :", ":"), 400)


def _told(part: str, fields: Mapping[str, str]) -> bool:
    return any(fields.get(name) for name in re.findall(r"{(\w+)}", part))


def ending(status: int) -> str:
    """`SIGKILL` for a negative exit status, `exit status 1` for another."""
    return f"exit status {status}" if status >= 0 else signal_name(-status)
