"""Two stacks side by side, aligned from their outermost frames, with differences marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import EMPTY, Line, fit, line
from hangtop.views.common import (
    STATE_ROLES,
    idle_seconds,
    last_ran,
    last_seen_text,
    main_frames,
    main_thread,
    unheard,
)
from hangtop.views.ranks.stacks import frame_line
from hangtop_core.model.frames import is_library, place, plain_name
from hangtop_core.stacks.merging import classes
from hangtop_core.stacks.tree import steps_of
from hangtop_core.text.clean import plural
from hangtop_core.text.rank_sets import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot

Step = tuple["Frame", int]
SIGNS = {"same": "   ", "other": " | ", "left": " < ", "right": " > "}
"""Signs as in `diff -y`: equal, different, only left, only right."""
NAME_CELLS = 18
WIDE = 50
"""Width of one side in cells from which file names are shown with their folders."""


def difference(
    snapshot: Snapshot,
    job: Job,
    rank: Rank,
    marked: Sequence[Rank],
    *,
    cut: bool,
    width: int,
    now: float,
) -> tuple[str, list[Line]]:
    """Return what is compared, and the lines: `width` cells with the sign between the halves.

    Compares two marked ranks; else the marked one and `rank`; else `rank` and the majority, or the
    smallest class when `rank` is in the majority.
    """
    left, right, what = _pair(snapshot, job, rank, marked)
    if right is None:
        return what, [line((f"There is nothing to compare {left.name} with: {what}.", "warn"))]
    half = (width - 3) // 2
    quiet = unheard(snapshot.nodes, now)
    heads = [_head(side, quiet, now) for side in (left, right)]
    lines = [_both(a, b, "same", half) for a, b in zip(*heads, strict=True)]
    lines.append(EMPTY)
    left_steps, right_steps = (_steps(snapshot, side, cut) for side in (left, right))
    if not left_steps or not right_steps:
        none = ", ".join(r.name for r, s in ((left, left_steps), (right, right_steps)) if not s)
        return what, [*lines, line((f"no stack of {none}", "warn"))]
    return what, [*lines, *_stacks(left_steps, right_steps, half)]


def _pair(
    snapshot: Snapshot, job: Job, rank: Rank, marked: Sequence[Rank]
) -> tuple[Rank, Rank | None, str]:
    if len(marked) == 2:
        return marked[0], marked[1], "the two marked ranks"
    if len(marked) == 1 and marked[0] is not rank:
        return rank, marked[0], "this rank and the marked one"
    groups = classes(snapshot, job.ranks)
    if not groups:
        return rank, None, "no rank has a stack yet"
    mine = main_thread(rank.sample)
    largest = max(groups, key=lambda group: len(group.ranks))
    name = "the majority"
    if mine is not None and mine.stack == largest.stack:
        if len(groups) == 1:
            return rank, None, "all ranks that gave a stack are on the same one"
        largest, name = groups[0], "the smallest class"
    majority_rank = next(
        candidate for candidate in job.ranks if _stands_on(candidate, largest.stack)
    )
    count = plural(len(largest.ranks), "rank")
    return rank, majority_rank, f"this rank and {name}: {count}, {fold(largest.ranks)}"


def _stands_on(rank: Rank, stack: str) -> bool:
    thread = main_thread(rank.sample)
    return thread is not None and thread.stack == stack


def _head(rank: Rank, quiet: dict[str, tuple[str, float]], now: float) -> list[Line]:
    old = quiet.get(rank.node)
    silence = line(("  " + last_seen_text(*old) if old else "", "bad"))
    idle = idle_seconds(rank, now - old[1] if old else now)
    state = line((rank.state, STATE_ROLES[rank.state]))
    if idle is not None:
        state = line(state, ("  last ran ", "label"), last_ran(idle, then=bool(old)))
    return [line((rank.name, "title"), f"  {rank.node}", silence), state]


def _steps(snapshot: Snapshot, rank: Rank, cut: bool) -> list[Step]:
    return list(steps_of(main_frames(snapshot, rank.sample), libraries=not cut))


def _stacks(left_steps: Sequence[Step], right_steps: Sequence[Step], half: int) -> list[Line]:
    """Return the lines, innermost frames first, as in every pane; both end in the outermost."""
    common = 0
    for a, b in zip(left_steps, right_steps, strict=False):
        if _site(a) != _site(b):
            break
        common += 1
    lines = []
    for depth in reversed(range(max(len(left_steps), len(right_steps)))):
        left = left_steps[depth] if depth < len(left_steps) else None
        right = right_steps[depth] if depth < len(right_steps) else None
        difference = "other" if left and right else "left" if left else "right"
        sign = "same" if depth < common else difference
        lines.append(_both(_frame(left, half), _frame(right, half), sign, half))
        if depth == common and common:
            verb = "is" if common == 1 else "are"
            shared = f"─ the {plural(common, 'frame')} below {verb} the same "
            lines.append(line((shared + "─" * (2 * half + 3 - len(shared)), "dim")))
    return lines


def _site(step: Step) -> tuple[str, str, int]:
    return step[0].name, step[0].file, step[0].line


def _frame(step: Step | None, half: int) -> Line:
    """Return a frame as the stack panes show it; on narrow screens without folders."""
    if step is None:
        return EMPTY
    frame, hidden = step
    if half >= WIDE:
        return frame_line(frame, hidden, NAME_CELLS)
    short = place(frame).rpartition("/")[2] if frame.file else ""
    role = "dim" if is_library(frame) else "bold"
    return line((plain_name(frame.name), role), "  ", (short, "dim" if role == "dim" else ""))


def _both(left: Line, right: Line, sign: str, half: int) -> Line:
    mark = line((SIGNS[sign], "" if sign == "same" else "culprit"))
    return (*fit(left, half), *mark, *fit(right, half))
