"""Texts that open over a page: help, command log, environment, everything about a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop.keys.actions import GROUPS, Action, keys_of, page_names
from hangtop.keys.possible import needs_live
from hangtop.terminal.spans import EMPTY, Line, labelled, line, plain
from hangtop.views.common import clock
from hangtop.views.ranks.files import FILE_COLUMNS, file_rows
from hangtop.views.ranks.rank import (
    CHILD_COLUMNS,
    THREAD_COLUMNS,
    child_rows,
    process_lines,
    stack_lines,
    thread_rows,
)
from hangtop.views.verdict.judged import state_line
from hangtop_core.report.flight import last_entries
from hangtop_core.text.clean import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hangtop.source.situation import Situation
    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Rank, Snapshot


PLAIN_MOVES = frozenset({"line_up", "line_down"})
"""Actions that help describes together with the arrow keys."""

NOT_READ = line(("  not read", "dim"))


def help_lines(now: Situation, actions: Sequence[Action]) -> list[Line]:
    """Return the keys of this screen, then all others, each with why it is not possible now.

    Keys for running jobs are only listed by name where no running job is observed.
    """
    never = [action for action in actions if not action.offered(now)]
    offered = [action for action in actions if action.offered(now)]
    screen = [a for a in offered if now.screen in a.screens and a.id not in PLAIN_MOVES]
    filters = (
        "words are joined by and; 3-7 is a rank set; "
        "field=value, field!=value, field~part, field>number; !text excludes."
    )
    return [
        line(("On this screen", "title")),
        *(_help_line(action, now) for action in screen),
        *_general_keys(now, offered),
        *_keys_elsewhere(now, offered),
        *_keys_of_running_jobs(now, never),
        EMPTY,
        line(("Filters: ", "title"), filters),
    ]


def _general_keys(now: Situation, actions: Sequence[Action]) -> Iterator[Line]:
    """Yield the keys of all screens, group by group."""
    for group in GROUPS:
        members = [a for a in actions if a.group == group and not a.screens]
        if members:
            yield from (EMPTY, line((group, "title")))
            yield from (_help_line(action, now) for action in members)


def _keys_elsewhere(now: Situation, actions: Sequence[Action]) -> Iterator[Line]:
    yield from (EMPTY, line(("On other screens", "title")))
    for action in actions:
        if action.screens and now.screen not in action.screens and action.id not in PLAIN_MOVES:
            yield _help_line(action, None)


def _keys_of_running_jobs(now: Situation, actions: Sequence[Action]) -> Iterator[Line]:
    """Yield the names of keys that no screen offers now, because no running job is observed."""
    if actions:
        yield EMPTY
        yield line(("Keys of running jobs", "title"), (f"  {needs_live(now) or ''}", "dim"))
        yield line(", ".join(f"{keys_of(action)} {action.label}" for action in actions))


def _help_line(action: Action, now: Situation | None) -> Line:
    reason = action.possible(now) if now is not None else None
    head = (f"  {keys_of(action):<18} ", "key" if reason is None else "off")
    if now is None:
        return line(head, action.help, (f"  ({page_names(action.screens)})", "dim"))
    asks = ("  asks first", "warn") if action.risk == "asks" else ("", "")
    if reason is not None:
        return line(head, (action.help, "off"), (f"  not now: {reason}", "warn"))
    return line(head, action.help, asks)


def command_lines(records: Iterable[CommandRecord], *, named: bool = True) -> list[Line]:
    """Return the commands that ran on nodes, newest first; with `named` each with its node."""
    lines = []
    for record in reversed(list(records)):
        pids = ",".join(str(pid) for pid in record.pids[:4]) + (
            ",…" if len(record.pids) > 4 else ""
        )
        took = "" if record.took_s is None else f" in {duration(record.took_s)}"
        good = record.outcome in ("ok", "done")
        lines.append(
            line(
                f"{clock(record.at)}  {record.node + '  ' if named else ''}",
                (record.what, "code"),
                (f"  pid {pids}" if pids else "", "label"),
                f"  {record.outcome}{took}" if not good else f"  done{took}",
                ("  by itself" if record.by_itself else "  you asked", "dim"),
                ("  pauses its target" if record.pauses else "", "warn"),
            )
        )
    return lines or [line(("Nothing was run beyond reading /proc.", "dim"))]


def environment_lines(rank: Rank) -> list[Line]:
    """Return the command line and the environment of a rank."""
    process = rank.process
    lines = [line(("Command line", "title"))]
    lines += [line(f"  {part}") for part in process.cmdline or (process.comm,)]
    lines += [EMPTY, labelled("cwd", process.cwd or "?"), labelled("exe", process.exe or "?")]
    limits = process.limits
    lines.append(labelled("limits", f"open files {limits.open_files or 'unlimited or unknown'}"))
    lines += [
        EMPTY,
        line(
            ("Environment", "title"),
            ("  allow-listed names only; secrets never leave the node", "dim"),
        ),
    ]
    for name, value in sorted(process.env.items()):
        lines.append(line("  ", (f"{name}=", "info"), value))
    if not process.env:
        lines.append(line((f"  {process.denied or 'none of the listed names is set'}", "dim")))
    return lines


def rank_text(
    snapshot: Snapshot, job: Job, diagnosis: Diagnosis | None, rank: Rank, now: float
) -> list[Line]:
    """Return everything known about a rank, to read, copy or send."""
    title = line(
        (rank.name, "title"),
        f" of {job.name or job.key} on {rank.node}, {clock(snapshot.at)}",
    )
    lines = [title, labelled("job", state_line(diagnosis, job)), EMPTY]
    lines += [line(("Process", "title")), *process_lines(snapshot, rank, now), EMPTY]
    lines += [line(("Stacks", "title"))]
    lines += stack_lines(snapshot, rank.sample, all_threads=True, cut=False)
    lines += [EMPTY, line(("Threads", "title"))]
    lines += [_row(THREAD_COLUMNS, item) for item in thread_rows(rank)]
    if rank.children:
        lines += [EMPTY, line(("Children", "title"))]
        lines += [_row(CHILD_COLUMNS, item) for item in child_rows(snapshot, rank)]
    lines += [EMPTY, line(("Open files", "title"))]
    lines += [_row(FILE_COLUMNS, item) for item in file_rows(rank, snapshot)] or [NOT_READ]
    recorder = rank.recorder
    if recorder is not None:
        lines += [EMPTY, line(("Flight recorder", "title"))]
        if recorder.failure is not None:
            lines.append(line(f"  {recorder.failure.text}"))
        if recorder.trace is not None:
            lines += [line(f"  {text}") for text in last_entries(recorder.trace, 20)]
    return [*lines, EMPTY, *environment_lines(rank)]


def _row(columns: Any, item: Any) -> Line:
    cells = (plain(column.cell(item)).strip() for column in columns)
    return line("  ", "  ".join(cell for cell in cells if cell))
