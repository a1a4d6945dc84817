"""The keys of the Logs screen, for the registry in `hangtop.keymap`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.actions import Action, needs_job, needs_live

if TYPE_CHECKING:
    from hangtop.situation import Situation

LOGS = ("logs",)


def can_read(now: Situation) -> str | None:
    """There must be a job, and somebody to ask."""
    return needs_live(now) or needs_job(now)


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
        possible=can_read, live=True,
    ),
)  # fmt: skip
