"""The keys of the Logs screen, for the registry in `hangtop.keymap`."""

from __future__ import annotations

from hangtop.actions import Action, can_ask_all

LOGS = ("logs",)


LOG_ACTIONS: tuple[Action, ...] = (
    Action("next_error", ("n",), "error", "The next error of this rank's log", "Move", LOGS),
    Action("previous_error", ("N",), "error", "The error before", "Move", LOGS),
    Action(
        "follow_log", ("F",), "follow", "Keep the end of the log in view, or let it be read",
        "Look", LOGS,
    ),
    Action("wrap_log", ("W",), "wrap", "Wrap long lines, or cut them", "Look", LOGS),
    Action(
        "read_logs", ("r",), "read", "Read the logs of this job again now", "Ask the node", LOGS,
        possible=can_ask_all, live=True,
    ),
)  # fmt: skip
