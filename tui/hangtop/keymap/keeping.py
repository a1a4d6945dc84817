"""Keys that keep what is seen: copies, files, other programs."""

from __future__ import annotations

from hangtop.actions import Action, can_capture, has_stacks

STACKY = ("stacks", "rank")

KEEPING: tuple[Action, ...] = (
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
        "capture",
        ("w",),
        "capture",
        "Write everything that is known, with the kept pictures, into a file; secrets masked",
        "Keep",
        possible=can_capture,
        live=True,
    ),
    Action(
        "editor",
        ("V",),
        "editor",
        "Open $EDITOR at the frame under the cursor",
        "Keep",
        STACKY,
        possible=has_stacks,
    ),
)
