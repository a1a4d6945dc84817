"""Merged stacks as rows of a tree, and the two panes that compare a class with the majority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import EMPTY, Line, labelled, line
from hangtop.views.common import (
    ago,
    last_seen_text,
    main_thread,
    node_of,
    silence,
    span,
    unheard,
    waits_lines,
)
from hangtop_core.model.frames import is_library, place, plain_name
from hangtop_core.stacks.merging import Merged, NoStack, Row, flatten, steps_of
from hangtop_core.text.clean import plural, shorten
from hangtop_core.text.rank_sets import fold, rank_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of the tree: a frame, or ranks without a stack."""

    key: str
    count: int
    share: float
    age: float | None
    name: Line
    place: Line
    ranks: tuple[int, ...]
    """Ranks whose stack contains the frame, or that have no stack for this reason."""
    note: Line
    who: str = ""
    """The same ranks, folded; empty where they are those of the row above."""
    mark: Line = EMPTY
    row: Row | None = None
    fix: str | None = None
    frame: Frame | None = None
    is_open: bool = False
    """Whether the stack of a rank's heading is shown below it."""
    heading: str | None = None
    """The key of the rank's heading, for a frame below one."""


def tree_rows(
    merged: Merged, folded: frozenset[str], opened: frozenset[str], *, join: bool, now: float
) -> list[TreeRow]:
    """Return the visible rows of a merged tree; below them the ranks without a stack, and why."""
    rows = [_frame_row(row, now) for row in flatten(merged, folded, join=join, opened=opened)]
    return [*rows, *(_without(none) for none in merged.missing)]


def _without(none: NoStack) -> TreeRow:
    return TreeRow(
        key=f"none:{none.why}:{none.ranks[:1]}",
        count=len(none.ranks),
        share=0.0,
        age=None,
        name=line((f"no stack: {none.why}", "warn")),
        place=line((none.fix or "", "dim")),
        ranks=none.ranks,
        who=fold(none.ranks),
        note=line(("no stack is not a match", "dim")),
        fix=none.fix,
    )


def _frame_row(row: Row, now: float) -> TreeRow:
    frame = row.frame
    role = "dim" if is_library(frame) and frame.file else "bold" if row.fewest else ""
    sign = "▸ " if row.folded else ""
    where = place(frame) if frame.file else ""
    native = ("<C> ", "info") if frame.native else ("", "")
    return TreeRow(
        key=row.key,
        count=row.count,
        share=row.share,
        age=None if row.since is None else now - row.since,
        name=line((_rails(row), "dim"), sign, native, (plain_name(frame.name), role)),
        place=line((where, "dim" if role == "dim" else "")),
        ranks=row.members,
        who=row.ranks,
        mark=line(("◀ fewest" if row.fewest else "", "culprit")),
        note=line((_frames_left_out(row), "dim")),
        row=row,
        frame=frame,
    )


def _rails(row: Row) -> str:
    """Return the lines that connect a row with its parents."""
    if not row.more:
        return ""
    rails = "".join("│ " if more else "  " for more in row.more[:-1])
    if row.more[-1]:
        return rails + ("├ " if row.first else "│ ")
    return rails + ("└ " if row.first else "  ")


def _frames_left_out(row: Row) -> str:
    if row.hidden and row.joined:
        return f"⋯ {row.hidden} cut, {row.joined} joined"
    if row.hidden:
        return f"⋯ {plural(row.hidden, 'frame')} cut"
    return f"⋯ {plural(row.joined, 'frame')} joined" if row.joined else ""


OPEN_BELOW = 9
"""Jobs with fewer ranks start with the stack of every rank open."""


def rank_rows(
    snapshot: Snapshot,
    job: Job,
    folded: frozenset[str],
    opened: frozenset[str],
    *,
    cut: bool,
    now: float,
) -> list[TreeRow]:
    """Return a heading per rank, each followed by its frames from the outermost in."""
    rows: list[TreeRow] = []
    quiet = unheard(snapshot.nodes, now)
    for rank in job.members:
        key = f"rank:{rank.node}:{rank.process.pid}"
        is_open = key in opened or (len(job.ranks) < OPEN_BELOW and key not in folded)
        rows.append(_rank_heading(rank, key, is_open, quiet.get(rank.node), now))
        thread = main_thread(rank.sample)
        if not is_open or thread is None:
            continue
        steps = steps_of(snapshot.stacks.get(thread.stack, ()), libraries=not cut)
        for depth, (frame, hidden) in enumerate(steps):
            rows.append(_step_row(rank, key, depth, frame, hidden))
    return rows


def _rank_heading(
    rank: Rank, key: str, is_open: bool, old: tuple[str, float] | None, now: float
) -> TreeRow:
    sample = rank.sample
    since = sample.same_since if sample else None
    failure = sample.failure if sample else None
    absence = "  not sampled yet" if sample is None else ""
    if failure is not None:
        absence = f"  no stack: {failure.text}"
    return TreeRow(
        key=key,
        count=1,
        share=0.0,
        age=None if since is None else now - since,
        name=line(
            "▾ " if is_open else "▸ ",
            (rank.name, "bold"),
            f"  {rank.node}",
            (f"  {last_seen_text(*old)}" if old else "", "bad"),
            (absence, "warn"),
        ),
        place=EMPTY,
        ranks=(rank.rank,),
        who=rank_label(rank.rank),
        note=line(("sampled ", "label"), ago(sample.at, now)) if sample else EMPTY,
        fix=failure.fix if failure else None,
        is_open=is_open,
    )


def _step_row(rank: Rank, heading: str, depth: int, frame: Frame, hidden: int) -> TreeRow:
    role = "dim" if is_library(frame) else ""
    return TreeRow(
        key=f"{heading}:{depth}",
        count=0,
        share=0.0,
        age=None,
        name=line("    ", ("<C> ", "info") if frame.native else "", (plain_name(frame.name), role)),
        place=line((place(frame) if frame.file else "", role)),
        ranks=(rank.rank,),
        note=line((f"⋯ {plural(hidden, 'frame')} cut" if hidden else "", "dim")),
        frame=frame,
        heading=heading,
    )


def _age(row: TreeRow) -> str:
    return "" if row.age is None else span(row.age)


TREE_COLUMNS: tuple[Column[TreeRow], ...] = (
    Column("count", "RANKS", lambda row: line(str(row.count or "")), align="right", minimum=5),
    Column(
        "share",
        "%",
        lambda row: line(f"{row.share:.0%}" if row.row else ""),
        align="right",
        minimum=4,
        drop=5,
    ),
    Column("age", "SAME", lambda row: line(_age(row)), align="right", minimum=5, drop=3),
    Column("name", "FRAME", lambda row: row.name, minimum=20, maximum=64, flex=True),
    Column("place", "AT", lambda row: row.place, minimum=26, maximum=56, flex=True, keep_end=True),
    Column(
        "who",
        "WHO",
        lambda row: line(row.who),
        minimum=4,
        maximum=20,
        drop=2,
    ),
    Column("mark", "", lambda row: row.mark, maximum=8, optional=True),
    Column(
        "note",
        "",
        lambda row: row.note,
        minimum=15,
        maximum=36,
        flex=True,
        optional=True,
        drop=6,
    ),
)


def stacks_title(
    snapshot: Snapshot, job: Job, merged: Merged, now: float, *, cut: bool, threads: bool
) -> tuple[Line, Line, Line]:
    """Return title, note and hint of the tree pane."""
    sampled = merged.total - len({rank for none in merged.missing for rank in none.ranks})
    count = plural(len(merged.classes), "class", "classes")
    title = line(
        ("MERGED STACKS  ", "title"),
        "all threads" if threads else "main thread",
        f"  {sampled} of {plural(merged.total, 'rank')}, {count}",
    )
    newest = max((stack_class.sampled_at for stack_class in merged.classes), default=None)
    hint = line(("library frames ", "label"), "cut" if cut else "shown")
    note = line(("sampled ", "label"), ago(newest, now))
    quiet = unheard(snapshot.nodes, now)
    old = {rank.rank: quiet[rank.node][1] for rank in job.ranks if rank.node in quiet}
    if old:
        # Silent ranks first, since a narrow screen cuts the rest.
        silent = shorten(fold(old), 12)
        note = line((f"{silent} seen {span(max(old.values()))} ago  ", "bad"), note)
    return title, note, hint


NAME_CELLS = 22
"""Longest function name in cells; a longer one moves its file name to the right."""


def frame_lines(frames: Sequence[Frame], *, cut: bool) -> list[Line]:
    """Return a stack, innermost frame first, with the source line of the user's frames."""
    lines: list[Line] = []
    steps = list(reversed(list(steps_of(frames, libraries=not cut))))
    size = max((len(plain_name(frame.name)) for frame, _ in steps), default=0)
    for frame, hidden in steps:
        lines.append(frame_line(frame, hidden, min(size, NAME_CELLS)))
        if frame.source and not is_library(frame):
            lines.append(line("    ", (frame.source.strip(), "code")))
    return lines


def frame_line(frame: Frame, hidden: int, size: int) -> Line:
    """Return `all_reduce torch/distributed/distributed_c10d.py:2810`, the name in `size` cells."""
    library = is_library(frame)
    where = place(frame) if frame.file else ""
    if library and hidden:
        where = where.rpartition("/")[2]
    return line(
        ("<C> ", "info") if frame.native else ("", ""),
        (plain_name(frame.name), "dim" if library else "bold"),
        " " * max(size - len(plain_name(frame.name)), 0) + "  ",
        (where, "dim" if library else ""),
        (f"  ⋯ {hidden} cut" if hidden else "", "dim"),
    )


def class_lines(
    snapshot: Snapshot, rank: Rank | None, row: TreeRow | None, *, cut: bool, now: float
) -> tuple[Line, list[Line]]:
    """Return title and text of the pane about the ranks under the cursor, shown by one of them."""
    if row is None or rank is None:
        return line(("THIS CLASS", "title")), [line(("nothing chosen", "dim"))]
    title = line(("THIS CLASS  ", "title"), rank.name, f"  {rank.node}")
    if row.key.startswith("none:"):
        lines = [row.name]
        if row.fix:
            lines.append(labelled("fix", row.fix))
        return title, [*lines, *last_seen(snapshot, rank, now), *_kernel(rank)]
    sample = rank.sample
    lines = [*last_seen(snapshot, rank, now), *_kernel(rank)]
    if sample is not None:
        times = "" if sample.count < 2 else f", the same in {sample.count} samples"
        lines.append(labelled("sampled", f"{ago(sample.at, now)}{times}"))
        threads = [t.name or f"tid {t.tid}" for t in sample.threads[1:]]
        if threads:
            lines.append(
                labelled("threads", line(f"{len(threads)} more: ", (", ".join(threads), "dim")))
            )
    thread = main_thread(sample)
    frames = snapshot.stacks.get(thread.stack, ()) if thread else ()
    return title, [*lines, EMPTY, *frame_lines(frames, cut=cut)]


def last_seen(snapshot: Snapshot, rank: Rank, now: float) -> list[Line]:
    """Return that a rank's node does not respond, and how old all data about the rank is."""
    node = node_of(snapshot, rank.node)
    quiet = silence(node, now)
    if node is None or quiet is None:
        return []
    return [labelled("node", line((f"{node.name} {last_seen_text(node.state, quiet)}", "bad")))]


def _kernel(rank: Rank) -> list[Line]:
    """Return what the kernel says of the main thread; no attach is needed for it."""
    state = labelled("state", line(rank.state, ("  pid ", "label"), str(rank.process.pid)))
    return [state, *waits_lines(rank.process)]


def representative(job: Job, row: TreeRow | None, wanted: Iterable[int]) -> Rank | None:
    """Return the rank that represents a row: the first of `wanted` in it, else the lowest."""
    if row is None or not row.ranks:
        return None
    among = frozenset(row.ranks)
    number = next((candidate for candidate in wanted if candidate in among), min(among))
    return next((rank for rank in job.members if rank.rank == number), None)


def majority_lines(merged: Merged, *, cut: bool) -> tuple[Line, list[Line]]:
    """Return title and text of the pane about the largest class."""
    if not merged.classes:
        return line(("MAJORITY", "title")), [line(("no stacks yet", "dim"))]
    biggest = merged.classes[-1]
    title = line(("MAJORITY  ", "title"), plural(len(biggest.ranks), "rank"))
    return title, [
        labelled("ranks", fold(biggest.ranks)),
        EMPTY,
        *frame_lines(biggest.frames, cut=cut),
    ]
