"""The registry of everything a key can do.

Bindings, the footer, the help screen, the `:` palette and docs/keys.md are all made from
`ACTIONS`, so they cannot disagree.
"""

from __future__ import annotations

from hangtop.actions import (
    Action,
    Possible,
    always,
    can_dump,
    can_native,
    can_retry,
    can_sample,
    can_sample_all,
    can_shell,
    has_earlier,
    has_later,
    has_stacks,
    needs_job,
    needs_live,
    needs_processes,
    needs_rank,
    several_jobs,
)
from hangtop.logactions import LOG_ACTIONS
from hangtop.traceactions import TRACE_ASKS, TRACE_LOOKS

TABLES = ("overview", "stacks", "recorder", "verdict", "gpus", "logs", "nodes")
STACKY = ("stacks", "rank")
FOLDING = ("overview", "stacks")

PAGES: tuple[tuple[str, str, str, Possible], ...] = (
    ("1", "overview", "Overview: verdict, stack classes, ranks", needs_processes),
    ("2", "stacks", "Merged stacks, fewest ranks marked", needs_processes),
    ("3", "rank", "Everything about one rank", needs_processes),
    ("4", "recorder", "Flight recorders: who has joined what, group by group", always),
    ("5", "verdict", "Verdict: evidence, what to do, blind spots", always),
    ("6", "gpus", "GPUs: utilisation with power, whose they are; ports", needs_processes),
    ("8", "logs", "Logs: the first error, what follows, one rank's lines", needs_processes),
    ("9", "nodes", "Nodes: who answers, since when, what is wrong, the fix", needs_processes),
)
"""Key, name and help of every screen, and when there is something to show on it."""

ACTIONS: tuple[Action, ...] = (
    *(Action(name, (key,), name, text, "Go", possible=why) for key, name, text, why in PAGES),
    Action(
        "palette",
        ("colon",),
        "command",
        "Go to a rank, node or screen; run any action by name",
        "Go",
    ),
    Action("jobs", ("J",), "job", "Choose another job", "Go", possible=several_jobs),
    Action("up", ("up",), "up", "Up one line; also k, except on Rank", "Move"),
    Action("down", ("down",), "down", "Down one line; also j, except on Rank", "Move"),
    Action("line_up", ("k",), "up", "Up one line", "Move", TABLES),
    Action("line_down", ("j",), "down", "Down one line", "Move", TABLES),
    Action(
        "previous_rank", ("k",), "rank", "The rank before", "Move", ("rank",), possible=needs_rank
    ),
    Action("next_rank", ("j",), "rank", "The next rank", "Move", ("rank",), possible=needs_rank),
    Action("page_up", ("pageup",), "page up", "Up one page", "Move"),
    Action("page_down", ("pagedown",), "page down", "Down one page", "Move"),
    Action("home", ("home", "g"), "top", "To the top", "Move"),
    Action("end", ("end", "G"), "bottom", "To the bottom", "Move"),
    Action(
        "open",
        ("enter",),
        "open",
        "Open what the cursor is on: class, rank, process group, evidence, node; fold a branch "
        "or a group of ranks",
        "Move",
    ),
    Action(
        "back",
        ("escape", "backspace"),
        "up",
        "One level up: stop zooming, clear the filter, leave the screen; never quits",
        "Move",
    ),
    Action("next_pane", ("tab",), "pane", "Next pane", "Move"),
    Action("previous_pane", ("shift+tab",), "pane", "Previous pane", "Move"),
    Action("zoom", ("z",), "zoom", "This pane alone, and back", "Move"),
    Action(
        "next_outlier",
        ("n",),
        "outlier",
        "Next outlier, fewest ranks first; on Recorder the next group that stalls, on GPUs and "
        "Nodes the next in trouble",
        "Move",
        ("overview", "stacks", "recorder", "gpus", "nodes"),
    ),
    Action(
        "previous_outlier",
        ("N",),
        "outlier",
        "Previous outlier",
        "Move",
        ("overview", "stacks", "recorder", "gpus", "nodes"),
    ),
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
    ),
    Action(
        "step_back",
        ("left_square_bracket",),
        "back",
        "Back to the picture before, held still; the farther back, the coarser",
        "Find and arrange",
        possible=has_earlier,
    ),
    Action(
        "step_forward",
        ("right_square_bracket",),
        "forward",
        "On to the next picture, and at the newest one live again",
        "Find and arrange",
        possible=has_later,
    ),
    Action(
        "merged",
        ("m",),
        "merged",
        "Merged over ranks, or each rank by itself",
        "Look",
        ("stacks",),
        possible=needs_job,
    ),
    Action(
        "cut",
        ("x",),
        "cut",
        "Cut library frames (torch, the standard library), or show them",
        "Look",
        ("stacks", "rank", "recorder"),
        possible=has_stacks,
    ),
    Action(
        "native",
        ("c",),
        "C frames",
        "C frames too: samples once with py-spy --native, which pauses the rank for it",
        "Look",
        STACKY,
        "asks",
        can_native,
    ),
    Action(
        "threads",
        ("t",),
        "threads",
        "Stacks of all threads, or of the main thread",
        "Look",
        STACKY,
        possible=has_stacks,
    ),
    Action(
        "diff",
        ("d",),
        "diff",
        "Two stacks side by side: two marked ranks, a marked one and this, this and the majority",
        "Look",
        ("overview", "stacks", "rank", "recorder"),
        possible=needs_rank,
    ),
    *TRACE_LOOKS,
    Action(
        "descriptors",
        ("l",),
        "files",
        "All open descriptors, read again now",
        "Look",
        ("rank",),
        possible=needs_rank,
    ),
    Action(
        "environment",
        ("e",),
        "environment",
        "Environment and command line of the rank",
        "Look",
        ("overview", "rank"),
        possible=needs_rank,
    ),
    Action(
        "information",
        ("i",),
        "all as text",
        "Everything known of the rank, as text",
        "Look",
        ("overview", "stacks", "rank", "recorder"),
        possible=needs_rank,
    ),
    Action(
        "sample",
        ("b",),
        "stack now",
        "Take the stack of this rank, or of the marked ones, now",
        "Ask the node",
        ("overview", "stacks", "rank", "recorder"),
        possible=can_sample,
    ),
    Action(
        "sample_all",
        ("B",),
        "stacks now",
        "Take the stacks of all ranks now",
        "Ask the node",
        possible=can_sample_all,
    ),
    *TRACE_ASKS,
    Action(
        "retry",
        ("r",),
        "retry",
        "Connect to this node again now",
        "Ask the node",
        ("nodes",),
        possible=can_retry,
    ),
    Action(
        "read_recorders",
        ("r",),
        "read",
        "Read the flight recorders of all ranks again now",
        "Ask the node",
        ("recorder",),
        possible=can_sample_all,
    ),
    Action(
        "dump_recorders",
        ("R",),
        "dump all",
        "Ask all ranks to dump their flight recorders, where there is no other way to read them",
        "Ask the node",
        ("recorder",),
        "asks",
        can_dump,
    ),
    Action(
        "retry_all",
        ("R",),
        "retry all",
        "Connect again now to every node that does not answer",
        "Ask the node",
        ("nodes",),
        possible=needs_live,
    ),
    Action(
        "shell",
        ("exclamation_mark",),
        "shell",
        "Your own shell on this node, or on this rank's; hangtop waits until you leave it",
        "Ask the node",
        possible=can_shell,
    ),
    Action(
        "refresh",
        ("ctrl+r",),
        "refresh",
        "Try lost nodes again now, and repaint",
        "Ask the node",
    ),
    Action(
        "copy",
        ("y",),
        "copy",
        "Copy the line; of a fix or a next step the command",
        "Keep",
    ),
    Action("copy_all", ("Y",), "copy pane", "Copy the whole pane", "Keep"),
    Action("pager", ("v",), "pager", "The whole pane in $PAGER", "Keep"),
    Action(
        "editor",
        ("V",),
        "editor",
        "Open $EDITOR at the frame under the cursor",
        "Keep",
        STACKY,
        possible=has_stacks,
    ),
    *LOG_ACTIONS,
    Action("help", ("question_mark", "h", "f1"), "help", "This help", "App"),
    Action("commands", ("at",), "log", "Every command that ran on a node", "App"),
    Action("redraw", ("ctrl+l",), "redraw", "Draw the screen again", "App"),
    Action("mouse", ("M",), "mouse", "Mouse on or off", "App"),
    Action("suspend", ("ctrl+z",), "suspend", "Back to the shell; fg returns", "App"),
    Action("quit", ("q", "f10"), "quit", "Close what is open, else leave hangtop", "App"),
    Action("leave", ("ctrl+c",), "leave", "Leave hangtop at once", "App"),
)

BY_ID = {action.id: action for action in ACTIONS}


def all_keys() -> list[str]:
    """Every key that does something, once."""
    return list(dict.fromkeys(key for action in ACTIONS for key in action.keys))


def find(key: str, screen: str) -> Action | None:
    """What a key does on a screen."""
    for action in ACTIONS:
        if key in action.keys and (not action.screens or screen in action.screens):
            return action
    return None


def elsewhere(key: str) -> Action | None:
    """What a key would do on some other screen, to say so."""
    return next((action for action in ACTIONS if key in action.keys), None)
