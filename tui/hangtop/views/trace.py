"""The strace pane: what would run and what it costs, the countdown, what came, where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.actions import can_strace
from hangtop.spans import Line, line
from hangtop.state import TRACE_SECONDS, Trace
from hangtop_core.text import plural

if TYPE_CHECKING:
    from hangtop.situation import Situation
    from hangtop_core.model import Rank

COST = "It slows the rank down: every system call stops for an instant at its start and end."


def strace_command(pid: int) -> str:
    """What is run on the node, as it is shown before it is."""
    return f"strace -f -p {pid} -tt -T -y -s 64"


def trace_title(trace: Trace | None, now: float) -> tuple[Line, Line]:
    """Title and note of the pane."""
    if trace is None:
        return line(("STRACE  ", "title"), ("off", "dim")), line()
    if trace.ended is None:
        left = max(trace.started + trace.seconds - now, 0.0)
        note = line((f"{left:.0f} s left  ", "warn"), ("S", "key"), (" stops", "dim"))
        return line(("STRACE  ", "title"), ("● running", "warn")), note
    return line(("STRACE  ", "title"), ("done", "good")), line(plural(len(trace.lines), "line"))


def trace_lines(trace: Trace | None, rank: Rank | None, situation: Situation) -> list[Line]:
    """The trace, or what `s` would do."""
    if trace is None:
        return _offer(rank, situation)
    lines = [line(text) for text in trace.lines]
    if trace.ended is None:
        if not lines:
            lines.append(line(("No system call has completed yet.", "dim")))
        return lines
    return [*lines, line((trace.ended, "bold"))]


def _offer(rank: Rank | None, situation: Situation) -> list[Line]:
    if rank is None:
        return []
    reason = can_strace(situation)
    command = strace_command(rank.process.pid)
    if reason is not None:
        return [line((f"not possible: {reason}", "dim"))]
    return [
        line(("s", "key"), f" traces this rank for {TRACE_SECONDS:.0f} s: ", (command, "code")),
        line((f"{COST} It asks first.", "dim")),
    ]
