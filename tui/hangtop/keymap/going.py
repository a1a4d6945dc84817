"""Keys that go somewhere: screens, jobs, ranks, lines."""

from __future__ import annotations

from hangtop.actions import Action, Possible, always, needs_processes, needs_rank, several_jobs

TABLES = ("overview", "stacks", "recorder", "verdict", "gpus", "logs", "nodes")

PAGES: tuple[tuple[str, str, str, Possible], ...] = (
    ("1", "overview", "Overview: verdict, stack classes, ranks", needs_processes),
    ("2", "stacks", "Merged stacks, fewest ranks marked", needs_processes),
    ("3", "rank", "Everything about one rank", needs_processes),
    ("4", "recorder", "Flight recorders: who has joined what, group by group", always),
    ("5", "verdict", "Verdict: evidence, what to do, what is ruled out, timeline", always),
    ("6", "gpus", "GPUs: utilisation with power, whose they are; ports", needs_processes),
    ("8", "logs", "Logs: the first error, what follows, one rank's lines", needs_processes),
    ("9", "nodes", "Nodes: who answers, since when, what is wrong, the fix", needs_processes),
)
"""Key, name and help of every screen, and when there is something to show on it."""

GOING: tuple[Action, ...] = (
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
)
