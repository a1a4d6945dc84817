"""The theme: the style of each role, and the glyphs for terminals without Unicode.

Uses the sixteen colours that every terminal has, on the terminal's own background, so that it reads
the same over ssh, in tmux and on light and dark themes. Nothing depends on colour alone: states
have a glyph or a word as well, the focused pane a heavier frame, the cursor a mark and reverse
video.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style

ROLES: dict[str, Style] = {
    "": Style.null(),
    "dim": Style(dim=True),
    "label": Style(dim=True),
    "bold": Style(bold=True),
    "title": Style(bold=True),
    "frame": Style(dim=True),
    "focus": Style(color="cyan"),
    "head": Style(bold=True, dim=True),
    "key": Style(color="cyan", bold=True),
    "off": Style(dim=True),
    "brand": Style(bold=True, reverse=True),
    "hung": Style(color="red", bold=True),
    "bad": Style(color="red"),
    "culprit": Style(color="red", bold=True),
    "warn": Style(color="yellow"),
    "good": Style(color="green"),
    "info": Style(color="cyan"),
    "victim": Style(dim=True),
    "code": Style(color="cyan"),
    "link": Style(color="cyan", underline=True),
    "cursor": Style(reverse=True, dim=False),  # dim text on a bright background is unreadable
    "resting": Style(bold=True),
    "tab": Style(bold=True, reverse=True),
}
"""Style of each role. `cursor` and `resting` are laid over the roles of a whole line."""

LIGHT = {
    "focus": Style(color="blue"),
    "key": Style(color="blue", bold=True),
    "warn": Style(color="magenta"),
    "good": Style.null(),
    "info": Style(color="blue"),
    "code": Style(color="blue"),
    "link": Style(color="blue", underline=True),
}
"""Styles that differ on light backgrounds: yellow, green and cyan of many palettes (xterm's, the
Linux console's) have a contrast of 2:1 or less to white.
"""


def use_light() -> None:
    """Use the styles for a light background; call before anything is drawn."""
    ROLES.update(LIGHT)


ASCII = str.maketrans(
    {
        "●": "*",
        "○": "o",
        "▶": ">",
        "◀": "<",
        "▸": ">",
        "▾": "v",
        "▲": "^",
        "▼": "v",
        "■": "#",
        "□": ".",
        "✔": "+",
        "✖": "x",
        "⋯": "~",
        "…": "~",
        "·": "-",
        "›": ">",
        "←": "<",
        "→": ">",
        "↑": "^",
        "↓": "v",
        "↺": "@",
        "‖": "=",
        "─": "-",
        "│": "|",
        "┌": "+",
        "┐": "+",
        "└": "`",
        "┘": "+",
        "├": "|",
        "━": "=",
        "┃": "|",
        "┏": "#",
        "┓": "#",
        "┗": "#",
        "┛": "#",
        "–": "-",
        "—": "-",
        "’": "'",
    }
)
"""ASCII replacements, one character for one, so that widths stay the same."""


def asciify(text: str) -> str:
    """Return a text in ASCII; characters without a replacement become question marks."""
    if text.isascii():
        return text
    translated = text.translate(ASCII)
    # As many as the character has cells, so that columns stay where they are.
    return "".join(char if char.isascii() else "?" * cell_len(char) for char in translated)
