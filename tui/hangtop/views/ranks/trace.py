"""The strace pane: command and cost, countdown, system calls, and where the trace is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.keys.possible import can_strace
from hangtop.source.state import TRACE_SECONDS, Trace
from hangtop.terminal.spans import Line, line
from hangtop_core.text.clean import plural
from hangtop_core.tools.strace import explained, shown, thread_title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop.source.situation import Situation
    from hangtop.source.state import TraceForm
    from hangtop_core.model.snapshot import Rank
    from hangtop_core.tools.strace import Filter, Row

COST = "It slows the rank down: every system call stops for an instant at its start and end."
_FORMS = {
    "all": "all calls",
    "network": "network",
    "file": "files",
    "waits": "waits",
    "lines": "lines",
}


def strace_command(pid: int) -> str:
    """Return the command to run on the node, as it is shown before it runs."""
    return f"strace -f -p {pid} -tt -T -yy -s 64"


def trace_title(trace: Trace | None, now: float, form: TraceForm) -> tuple[Line, Line]:
    """Return title and note of the pane."""
    if trace is None:
        return line(("STRACE  ", "title"), ("off", "dim")), line()
    shown = line((f"{_FORMS[form]}  ", "label"), ("f", "key"), (" other", "dim"))
    if trace.ended is None:
        left = max(trace.started + trace.seconds - now, 0.0)
        note = line((f"{left:.0f} s left  ", "warn"), ("S", "key"), (" stops  ", "dim"), shown)
        return line(("STRACE  ", "title"), ("● running", "warn")), note
    count = (plural(len(trace.lines), "line") + "  ", "label")
    return line(("STRACE  ", "title"), ("done", "good")), line(count, shown)


def trace_lines(
    trace: Trace | None,
    rank: Rank | None,
    situation: Situation,
    form: TraceForm,
    names: Mapping[str, str],
) -> list[Line]:
    """Return the trace, or what `s` would do; ``names`` maps sockets to their other ends."""
    if trace is None:
        return _offer(rank, situation)
    none = [line(("No system call has completed yet.", "dim"))] if not trace.lines else []
    end = [line((trace.ended, "bold"))] if trace.ended is not None else none
    if form == "lines":
        return [*trace.drawn(names), *end]
    threads = (
        {thread.tid: thread.name for thread in rank.process.threads} if rank is not None else {}
    )
    return [*end, *_table(trace, form, names, threads)]


def _table(
    trace: Trace, form: Filter, names: Mapping[str, str], threads: Mapping[int, str]
) -> list[Line]:
    """Return calls by thread, with count, total time and target; then threads that only wait."""
    lines: list[Line] = []
    thread = None
    rows, waiting = shown(trace.calls, form)
    for row in rows:
        if row.tid != thread:
            thread = row.tid
            lines.append(line((thread_title(thread, trace.pid, threads), "title")))
        lines.append(_row(row, names))
    lines += [line((group.text(names), "dim")) for group in waiting]
    if not rows and not waiting and trace.lines:
        lines.append(line(("No such call; ", "dim"), ("f", "key"), (" shows others.", "dim")))
    return lines


def _row(row: Row, names: Mapping[str, str]) -> Line:
    times = "in it now" if row.inside else f"{row.count}x {row.seconds:.3f} s"
    return line(
        (f"{times:>16}  ", "warn" if row.inside else ""),
        (row.call, "code"),
        (f" {row.error}" if row.error else "", "warn"),
        (f"  {explained(row.on, names)}" if row.on else "", "link"),
    )


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
