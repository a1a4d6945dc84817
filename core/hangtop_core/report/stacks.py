"""Stacks as plain text: merged over ranks, or of each rank.

No colour codes: these are added where the text is shown. Everything that came from a node has been
through `hangtop_core.text.clean.clean`.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.layout import absent
from hangtop_core.model.frames import place
from hangtop_core.report.diagnosis import MIN_WIDTH, WIDTH, wrap
from hangtop_core.stacks.merging import Merged, Row, flatten
from hangtop_core.text import node_sets
from hangtop_core.text.clean import clean, duration, plural, shorten
from hangtop_core.text.rank_sets import fold, names, rank_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot, StackSample


def frame_text(frame: Frame) -> str:
    """Return `all_reduce (torch/distributed/distributed_c10d.py:2810)` as py-spy does."""
    name = clean(frame.name, 120)
    return f"{name} ({clean(place(frame), 160)})" if frame.file else name


def merged_text(
    merged: Merged,
    width: int = WIDTH,
    *,
    job: Job | None = None,
    whole: bool = False,
    ascii_only: bool = False,
) -> str:
    """Return the merged tree: count, share and age of every frame, ranks where they change.

    With ``job``, if it has several nodes, also the nodes of these ranks; if it is the ``whole``
    job, also its ranks that were not found.
    """
    width = max(width, MIN_WIDTH)
    nodes: dict[int, set[str]] = defaultdict(set)
    for rank in job.ranks if job is not None and len(job.nodes) > 1 else ():
        nodes[rank.rank].add(rank.node)
    sampled = sum(len(group.ranks) for group in merged.classes)
    lacking = _not_found(job) if job is not None and whole else ()
    total = merged.total + len(lacking) + (len(job.unnumbered) if job is not None else 0)
    head = f"{plural(sampled, 'rank')} of {total} gave a stack, "
    head += plural(len(merged.classes), "class", "classes")
    lines = [head]
    if merged.roots:
        lines += ["", f"{'RANKS':>6} {'%':>5} {'AGE':>6}  FRAME"]
        lines += [_row_line(row, merged.at, width, ascii_only, nodes) for row in flatten(merged)]
    for gap in merged.missing:
        fix = f" (fix: {gap.fix})" if gap.fix else ""
        on = shorten(node_sets.fold(gap.nodes), 60)
        text = f"no stack from {fold(gap.ranks)} ({on}): {gap.why}{fix}"
        lines += ["", *wrap(clean(text, 600), width)]
    if lacking and job is not None:
        lines += ["", f"no process was found of {names(lacking)}: WORLD_SIZE is {job.world_size}"]
    return "\n".join(lines) + "\n"


def _not_found(job: Job) -> tuple[int, ...]:
    """Return the ranks of the world that were not seen; empty if some have no known number."""
    return () if job.unnumbered else absent(job)


def _lead(row: Row, ascii_only: bool) -> str:
    """Return the guides left of a row."""
    bar, tee, end = ("| ", "|-", "`-") if ascii_only else ("│ ", "├ ", "└ ")
    if not row.more:
        return ""
    last = row.more[-1]
    own = (tee if last else end) if row.first else (bar if last else "  ")
    return "".join(bar if more else "  " for more in row.more[:-1]) + own


def _row_line(
    row: Row, at: float, width: int, ascii_only: bool, nodes: Mapping[int, Iterable[str]]
) -> str:
    age = duration(at - row.since) if row.since is not None and at >= row.since else "?"
    text = frame_text(row.frame)
    if row.hidden:
        text += f" {'...' if ascii_only else '…'} {plural(row.hidden, 'frame')}"
    line = f"{row.count:>6} {row.share:>5.0%} {age:>6}  {_lead(row, ascii_only)}{text}"
    if not row.ranks:
        return shorten(line, width)
    mark = ("  <fewest" if ascii_only else "  ◀ fewest") if row.fewest else ""
    ranks = f"  [{shorten(row.ranks, 40)}]"
    if nodes:
        on = node_sets.fold({name for rank in row.members for name in nodes.get(rank, ())})
        ranks += f" {shorten(on, 40)}"
    # The ranks are the point of a row: a long frame is shortened for them.
    room = max(width - len(ranks) - len(mark), MIN_WIDTH)
    return shorten(f"{shorten(line, room)}{ranks}{mark}", width)


def each_text(snapshot: Snapshot, job: Job, *, children: bool = False) -> str:
    """Return every rank's stacks one after the other, innermost frame first, as `py-spy dump` does.

    Each begins with `node:rank`, as logs of launchers often do.

    Args:
        snapshot: the snapshot with the stacks.
        job: the job with the ranks and controllers.
        children: also the sampled children of each rank.
    """
    blocks = []
    for rank in job.members:
        blocks.append(_rank_text(snapshot, rank))
        if children:
            for child in rank.children:
                sample = rank.child_samples.get(child.pid)
                at = f"{clean(rank.node)}:{rank_label(rank.rank)}"
                title = f"  {at}  {clean(child.label)}, process {child.pid}"
                if sample is not None:
                    body = "\n".join(sample_lines(snapshot, sample))
                    blocks.append(f"{title}\n{textwrap.indent(body, '  ')}")
    return "\n\n".join(blocks) + "\n" if blocks else ""


def controllers_text(snapshot: Snapshot, job: Job) -> str:
    """Return the stacks of the controllers of a job, one after the other."""
    blocks = [_rank_text(snapshot, controller) for controller in job.controllers]
    return "".join(f"\n{block}\n" for block in blocks)


def _rank_text(snapshot: Snapshot, rank: Rank) -> str:
    process = rank.process
    command = clean(" ".join(process.cmdline), 200)
    lines = [
        f"{clean(rank.node)}:{rank_label(rank.rank)}  process {process.pid}: {command}",
        f"State {rank.state}",
    ]
    if rank.sample is None:
        why = process.denied or ("the process is gone" if rank.state == "exited" else None)
        lines.append(f"No stack: {clean(why or 'not sampled yet')}")
    else:
        lines += sample_lines(snapshot, rank.sample)
    return "\n".join(lines)


def sample_lines(
    snapshot: Snapshot, sample: StackSample, *, with_locals: bool = True
) -> Iterator[str]:
    """Yield the threads of one sample, innermost frame first; with their variables if read."""
    if sample.failure is not None:
        fix = f" (fix: {clean(sample.failure.fix)})" if sample.failure.fix else ""
        yield f"No stack: {clean(sample.failure.text)}{fix}"
        return
    for thread in sample.threads:
        marks = ["active" if thread.active else "idle"] + ["gil"] * thread.gil
        name = clean(thread.name or "?", 80)
        yield f'Thread {thread.tid} ({"+".join(marks)}): "{name}"'
        for depth, frame in enumerate(snapshot.stacks.get(thread.stack, ())):
            yield f"    {frame_text(frame)}"
            for local in thread.locals[depth] if with_locals and depth < len(thread.locals) else ():
                yield f"        {clean(local.name, 80)}: {clean(local.value, 160)}"
