"""Keys that show more of what is known already."""

from __future__ import annotations

from hangtop.actions import Action, can_native, has_stacks, needs_job, needs_rank
from hangtop.keymap.traces import TRACE_LOOKS

STACKY = ("stacks", "rank")

LOOKING: tuple[Action, ...] = (
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
        live=True,
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
        "All open descriptors; of a running rank read again now",
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
)
