"""How `--help` is laid out: in the width of the terminal, with commands that can be copied."""

from __future__ import annotations

import argparse
import re
import textwrap
from itertools import groupby

MAX_WIDTH = 98
MIN_TOLD = 24
"""Columns that are worth it to say something beside a command."""
BELOW = " " * 8
_EXAMPLE = re.compile(r"( +(?:hangtop|\w+ =) .*?\S) {2,}(\S.*)")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of examples, and wraps what is one long line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs filled, examples as they are where they fit; a command is never cut in two."""
        width = min(width, MAX_WIDTH)
        lines: list[str] = []
        for is_text, some in groupby(text.splitlines(), lambda one: one[:1].strip() != ""):
            if is_text:
                # A path stays whole, too.
                lines += textwrap.wrap(
                    " ".join(some), width, break_long_words=False, break_on_hyphens=False
                )
            else:
                lines += [part for one in some for part in _fitted(one, width)]
        return "\n".join(indent + one for one in lines)


def _fitted(text: str, width: int) -> list[str]:
    """An indented line, with what is said of its command beside or below that."""
    example = _EXAMPLE.match(text)
    if len(text) <= width or (example is None and text.lstrip().startswith("hangtop ")):
        return [text]
    if example is None:
        start = text[: len(text) - len(text.lstrip())]
        return textwrap.wrap(text, width, subsequent_indent=start)
    command, told = example.groups()
    column = example.start(2)
    if width - column >= MIN_TOLD:
        return textwrap.wrap(
            told, width, initial_indent=text[:column], subsequent_indent=" " * column
        )
    return [command, *textwrap.wrap(told, width, initial_indent=BELOW, subsequent_indent=BELOW)]
