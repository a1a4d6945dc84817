"""The last line of every screen: its most important keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, cells, line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop.keys.keymap import Keymap
    from hangtop.source.situation import Situation

FOOTERS: dict[str, tuple[str, ...]] = {
    "overview": (
        "open",
        "next_outlier",
        "sample",
        "filter",
        "sort_next",
        "group",
        "pause",
        "help",
        "quit",
    ),
    "stacks": (
        "open",
        "next_outlier",
        "merged",
        "cut",
        "native",
        "unfold",
        "sample_all",
        "diff",
        "help",
    ),
    "rank": (
        "next_rank",
        "sample",
        "strace",
        "descriptors",
        "environment",
        "cut",
        "zoom",
        "copy",
        "help",
    ),
    "recorder": (
        "open",
        "next_outlier",
        "read_recorders",
        "sample",
        "filter",
        "copy",
        "next_pane",
        "help",
        "quit",
    ),
    "verdict": (
        "open",
        "copy",
        "copy_all",
        "pager",
        "next_pane",
        "zoom",
        "pause",
        "palette",
        "help",
    ),
    "gpus": (
        "open",
        "next_outlier",
        "filter",
        "sort_next",
        "group",
        "zoom",
        "copy",
        "help",
        "quit",
    ),
    "logs": (
        "open",
        "next_error",
        "filter",
        "follow_log",
        "wrap_log",
        "read_logs",
        "pager",
        "help",
        "quit",
    ),
    "nodes": (
        "open",
        "retry",
        "shell",
        "next_outlier",
        "filter",
        "sort_next",
        "group",
        "help",
        "quit",
    ),
}
"""At most nine actions per screen, in an order that never changes."""

ENDS = ("help", "quit")
"""Actions that always have the last cells of the line."""


def footer(now: Situation, keymap: Keymap, width: int) -> Line:
    """Return keys with their labels, dim where not possible now; as many as fit."""
    out: Line = line(" ")
    for name in _names(now):
        action, key = keymap.by_id[name], keymap.shown(name)
        if not key or not action.offered(now):
            continue
        possible = action.possible(now) is None
        item = line(
            (key, "key" if possible else "off"),
            " ",
            (action.label, "" if possible else "off"),
            "  ",
        )
        if cells(out) + cells(item) > width - (0 if name in ENDS else 8) and name != "help":
            continue
        out = (*out, *item)
    return out


def _names(now: Situation) -> Iterator[str]:
    """Yield the actions of the screen; in a capture, history keys replace those that ask nodes."""
    first, *actions = FOOTERS[now.screen]
    yield first
    if not now.live and not now.files:
        yield "step_back"
    yield from actions
