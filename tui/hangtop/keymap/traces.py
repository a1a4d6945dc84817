"""The keys of traces and open files on the Rank screen, for the registry in `hangtop.keymap`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.actions import Action, can_stop, can_strace, has_trace, needs_live, needs_rank

if TYPE_CHECKING:
    from hangtop.situation import Situation

RANK = ("rank",)


def can_ask(now: Situation) -> str | None:
    """There must be a rank, and its node must answer."""
    return needs_live(now) or needs_rank(now)


TRACE_LOOKS: tuple[Action, ...] = (
    Action(
        "follow", ("F",), "follow", "Keep the end of the trace in view, or let it be read",
        "Look", RANK, possible=has_trace, live=True,
    ),
    Action(
        "trace_form", ("f",), "calls/lines",
        "The trace folded by thread: all calls, network, files, waits; or its lines",
        "Look", RANK, possible=has_trace, live=True,
    ),
)  # fmt: skip
TRACE_ASKS: tuple[Action, ...] = (
    Action(
        "strace", ("s",), "strace",
        "Trace the system calls of this rank for 10 s; shown and saved",
        "Ask the node", RANK, "asks", can_strace, live=True,
    ),
    Action(
        "stop", ("S",), "stop", "Stop the trace",
        "Ask the node", RANK, possible=can_stop, live=True,
    ),
    Action(
        "holders", ("o",), "who has it",
        "Who else on the node has the file, pipe or socket under the cursor open",
        "Ask the node", RANK, possible=can_ask, live=True,
    ),
)  # fmt: skip
