"""Records of everything notable that was printed, with its origin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.text.clean import clean, shorten, signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.model.file_log import Record

KEPT_LINES = 60
"""Maximum number of lines of a record that are kept: the first and the last."""
KEPT_CHARS = 2000
"""Maximum number of characters of a kept line."""

_BLANKS = re.compile(r" {2,}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_RUNS = re.compile(r"( {2,})")


def printable(line: str) -> str:
    """Return a line that is safe to print, with its blanks: tables and boxes stay straight."""
    body = line.lstrip(" \t")
    lead = line[: len(line) - len(body)].replace("\t", "    ")[:80]
    if "  " not in body or "\x1b" in body:
        return lead + clean(body, KEPT_CHARS)
    parts = _RUNS.split(body[: 2 * KEPT_CHARS].rstrip())
    straight = (part if part[:1] == " " else clean(part, KEPT_CHARS) for part in parts)
    return lead + shorten("".join(straight), KEPT_CHARS)


def kept(lines: list[str]) -> tuple[str, ...]:
    """Return the lines of a record that are kept."""
    if len(lines) > KEPT_LINES:
        half = KEPT_LINES // 2
        left = len(lines) - 2 * half
        lines = [*lines[:half], f"    ... {left} more lines", *lines[-half:]]
    return tuple(printable(line) for line in lines)


def lines_at(record: Record, texts: Sequence[str], at: int) -> int:
    """Return how many texts from ``at`` on are the lines of a record; 0 for other lines."""
    lines = record.lines
    if len(lines) <= KEPT_LINES:
        return len(lines) if tuple(texts[at : at + len(lines)]) == lines else 0
    half = KEPT_LINES // 2
    left = int(lines[half].split()[1])
    begin, end = tuple(texts[at : at + half]), at + half + left
    same = begin == lines[:half] and tuple(texts[end : end + half]) == lines[half + 1 :]
    return 2 * half + left if same else 0


def fill(template: str, fields: Mapping[str, str]) -> str:
    """Fill a row's meaning with a line's fields; see `Known.means` for missing ones."""
    text = _OPTIONAL.sub(lambda part: part[1] if _is_filled(part[1], fields) else "", template)
    for name in re.findall(r"{(\w+)}", template):
        text = text.replace(f"{{{name}}}", fields.get(name, "").strip())
    text = re.sub(r"\(\s*\)|:\s*$", "", _BLANKS.sub(" ", text))
    return clean(text.replace(" ,", ",").replace(" :", ":"), 400)


def _is_filled(part: str, fields: Mapping[str, str]) -> bool:
    return any(fields.get(name) for name in re.findall(r"{(\w+)}", part))


def ending(status: int) -> str:
    """Return `SIGKILL` for a negative exit status, `exit status 1` for another."""
    return f"exit status {status}" if status >= 0 else signal_name(-status)
