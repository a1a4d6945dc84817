"""Keys of the app itself."""

from __future__ import annotations

from hangtop.actions import Action

APP: tuple[Action, ...] = (
    Action("help", ("question_mark", "h", "f1"), "help", "This help", "App"),
    Action("commands", ("at",), "log", "Every command that ran on a node", "App"),
    Action("redraw", ("ctrl+l",), "redraw", "Draw the screen again", "App"),
    Action("mouse", ("M",), "mouse", "Mouse on or off", "App"),
    Action("suspend", ("ctrl+z",), "suspend", "Back to the shell; fg returns", "App"),
    Action("quit", ("q", "f10"), "quit", "Close what is open, else leave hangtop", "App"),
    Action("leave", ("ctrl+c",), "leave", "Leave hangtop at once", "App"),
)
