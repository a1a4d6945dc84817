"""Actions, and the notation of keys.

An action that is not possible now is dimmed, not hidden, and its key shows the reason. An action is
implemented by a method `do_<id>` of the screen, or of the app.
"""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from hangtop.keys.possible import Possible, always

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop.source.situation import Situation

Risk = Literal["none", "asks"]
"""`requests`: may touch a process beyond reading it; shown and confirmed once per session."""

GROUPS = ("Go", "Move", "Find and arrange", "Look", "Ask the node", "Keep", "App")
"""Groups in the order of help and docs/keys.md."""


@dataclass(frozen=True)
class Action:
    """The effect of a key."""

    id: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    screens: tuple[str, ...] = ()
    """Screens where it works; empty for all."""
    risk: Risk = "none"
    possible: Possible = always
    live: bool = False
    """Whether it is for running jobs alone: in a capture, and on files, it has no key."""

    def offered(self, now: Situation) -> bool:
        """Return whether it can become possible in this session."""
        return now.live or not self.live


KEY_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "backslash": "\\",
    "colon": ":",
    "at": "@",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "plus": "+",
    "minus": "-",
    "asterisk": "*",
    "exclamation_mark": "!",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "ctrl+end": "Ctrl-End",
    "underscore": "_",
    "space": "Space",
    "enter": "Enter",
    "escape": "Esc",
    "backspace": "Backspace",
    "tab": "Tab",
    "shift+tab": "Shift-Tab",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "up": "Up",
    "down": "Down",
}

PAIRED = {
    "next_rank": "j/k",
    "sort_next": "< >",
    "next_outlier": "n/N",
    "unfold": "+ -",
    "sample": "b/B",
    "retry": "r/R",
    "read_recorders": "r/R",
    "step_back": "[ ]",
}
"""Keys as the footer shows them, where two belong together."""


MAX_BLANKS = 12
"""Limit of blanks and hyphens in the Unicode name of a key; each doubles the names to try."""


def page_names(pages: Sequence[str], limit: int = 99) -> str:
    """Return `Overview, Stacks, GPUs`; at most ``limit`` names, and how many more there are."""
    names = ["GPUs" if page == "gpus" else page.capitalize() for page in pages]
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return ", ".join(names)


def key_name(key: str) -> str:
    """Return a key as people write it."""
    if key in KEY_NAMES:
        return KEY_NAMES[key]
    if key.startswith("ctrl+"):
        return f"Ctrl-{key[5:]}"
    if len(key) > 1 and key[0] == "f" and key[1:].isdecimal():
        return key.upper()
    return _character(key) if len(key) > 1 else key


def _character(key: str) -> str:
    """Return the character of Textual's name, or the key: `_` is a blank or hyphen of the name."""
    first, *words = key.split("_")
    if len(words) <= MAX_BLANKS:
        for marks in product(" -", repeat=len(words)):
            with suppress(KeyError):
                parts = (mark + word for mark, word in zip(marks, words, strict=True))
                return unicodedata.lookup(first + "".join(parts))
    return key


def key_from(text: str) -> str:
    """Return Textual's name of a key from how people write it: `q`, `?`, `Ctrl-r`, `F5`, `PgUp`.

    Raises:
        ValueError: terminals send no such key.
    """
    written = {name.casefold(): key for key, name in KEY_NAMES.items()}
    low = text.strip().casefold().replace("ctrl+", "ctrl-")
    if len(text) == 1 and text.isalnum():
        return text
    if low in written:
        return written[low]
    if low in KEY_NAMES:
        return low
    if low.startswith("f") and low[1:].isdecimal() and 1 <= int(low[1:]) <= 12:
        return low
    if low.startswith("ctrl-") and len(low) == 6 and low[5].isascii() and low[5].isalpha():
        return f"ctrl+{low[5]}"
    if len(text) == 1 and text.isprintable():
        # The name that Textual gives a key without a shorter name (textual.keys).
        return unicodedata.name(text, "").casefold().replace(" ", "_").replace("-", "_")
    raise ValueError(f"{text!r} is no key")


def keys_of(action: Action) -> str:
    """Return all keys of an action as people write them."""
    return " ".join(key_name(key) for key in action.keys)
