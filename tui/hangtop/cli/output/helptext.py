"""The layout of `--help`: as wide as the terminal, with commands that can be copied."""

from __future__ import annotations

import argparse
import re
import textwrap
from itertools import groupby

MAX_WIDTH = 98
MIN_TOLD = 24
"""Least number of columns for a note beside a command."""
BELOW = " " * 8
_EXAMPLE = re.compile(r"( +(?:hangtop|\w+ =) .*?\S) {2,}(\S.*)")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps the lines of examples, and wraps long lines of text."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return wrapped paragraphs, and examples unchanged if they fit; never split commands."""
        width = min(width, MAX_WIDTH)
        lines: list[str] = []
        for is_text, lines_of_kind in groupby(text.splitlines(), lambda row: row[:1].strip() != ""):
            if is_text:
                # A path is not split either.
                lines += textwrap.wrap(
                    " ".join(lines_of_kind), width, break_long_words=False, break_on_hyphens=False
                )
            else:
                lines += [part for row in lines_of_kind for part in _fitted(row, width)]
        return "\n".join(indent + row for row in lines)


def _fitted(text: str, width: int) -> list[str]:
    """Return an indented line, with the note on its command beside or below it."""
    example = _EXAMPLE.match(text)
    if len(text) <= width or (example is None and text.lstrip().startswith("hangtop ")):
        return [text]
    if example is None:
        start = text[: len(text) - len(text.lstrip())]
        return textwrap.wrap(text, width, subsequent_indent=start)
    command, note = example.groups()
    column = example.start(2)
    if width - column >= MIN_TOLD:
        return textwrap.wrap(
            note, width, initial_indent=text[:column], subsequent_indent=" " * column
        )
    return [command, *textwrap.wrap(note, width, initial_indent=BELOW, subsequent_indent=BELOW)]
