"""Keys that find, sort, fold, mark, and step through time."""

from __future__ import annotations

from hangtop.actions import Action, can_pause, has_earlier, has_later, needs_rank

FOLDING = ("overview", "stacks")

ARRANGING: tuple[Action, ...] = (
    Action(
        "filter",
        ("slash", "f3", "f4", "backslash"),
        "filter",
        "Filter this table: text, rank set 3-7, state=stopped, node~gpu, idle>60",
        "Find and arrange",
        ("overview", "stacks", "rank", "recorder", "gpus", "logs", "nodes"),
    ),
    Action(
        "sort_previous",
        ("less_than_sign",),
        "sort",
        "Sort by the column to the left",
        "Find and arrange",
        ("overview", "rank", "recorder", "gpus", "logs", "nodes"),
    ),
    Action(
        "sort_next",
        ("greater_than_sign", "f6"),
        "sort",
        "Sort by the column to the right",
        "Find and arrange",
        ("overview", "rank", "recorder", "gpus", "logs", "nodes"),
    ),
    Action(
        "invert",
        ("I",),
        "invert",
        "Turn the sort order round",
        "Find and arrange",
        ("overview", "rank", "recorder", "gpus", "logs", "nodes"),
    ),
    Action(
        "group",
        ("t", "f5"),
        "group",
        "Ranks by node, by stack class, or in one list; equal nodes, GPUs of a node",
        "Find and arrange",
        ("overview", "gpus", "nodes"),
    ),
    Action("unfold", ("plus",), "unfold", "Unfold here", "Find and arrange", FOLDING),
    Action("fold", ("minus",), "fold", "Fold here", "Find and arrange", FOLDING),
    Action("unfold_all", ("asterisk",), "unfold", "Unfold all", "Find and arrange", FOLDING),
    Action(
        "mark",
        ("space",),
        "mark",
        "Mark this rank, or this group; b and d work on marked ranks",
        "Find and arrange",
        ("overview",),
        possible=needs_rank,
    ),
    Action(
        "mark_class",
        ("a",),
        "mark class",
        "Mark all ranks on the same stack as this one",
        "Find and arrange",
        ("overview",),
        possible=needs_rank,
    ),
    Action("unmark", ("U",), "unmark", "Take all marks away", "Find and arrange", ("overview",)),
    Action(
        "pause",
        ("p", "Z"),
        "pause",
        "Hold the picture still, and back to live; collection goes on",
        "Find and arrange",
        possible=can_pause,
        live=True,
    ),
    Action(
        "step_back",
        ("left_square_bracket",),
        "history",
        "Back to the picture before, held still; the farther back, the coarser",
        "Find and arrange",
        possible=has_earlier,
    ),
    Action(
        "step_forward",
        ("right_square_bracket",),
        "forward",
        "On to the next picture; after the newest one of a running job live again",
        "Find and arrange",
        possible=has_later,
    ),
    Action(
        "oldest",
        ("left_curly_bracket",),
        "oldest",
        "To the oldest picture that is kept, held still",
        "Find and arrange",
        possible=has_earlier,
    ),
    Action(
        "newest",
        ("right_curly_bracket", "ctrl+end"),
        "newest",
        "To the newest picture; of a running job live again",
        "Find and arrange",
        possible=has_later,
    ),
)
