"""Merging and diagnosing many ranks against a merge that compares whole frame lists.

Prints ratios within one run:

    PYTHONPATH=core:tests:benchmarks python benchmarks/merge.py [RANKS ...]
"""

from __future__ import annotations

import sys
from functools import partial

import figures
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.snapshot import Frame, Job, Rank, Snapshot
from hangtop_core.stacks.merging import flatten, merge
from measures import best
from support.build import World
from support.situations import FUTEX, SLEEP, c10d, user


def snapshot(ranks: int, distinct: int = 20) -> Snapshot:
    """A hung job with one rank in user code."""
    world = World()
    for number in range(ranks):
        if number == ranks // 2:
            world.add(user("cool_down", 41), SLEEP)
        else:
            world.add(c10d("all_reduce", at=56 + number % (distinct - 1)), FUTEX)
    return world.snapshot()


def naive(taken: Snapshot) -> list[tuple[tuple[Frame, ...], list[Rank]]]:
    """Group ranks by comparing every stack with every group's, frame by frame."""
    groups: list[tuple[tuple[Frame, ...], list[Rank]]] = []
    for rank in taken.jobs[0].ranks:
        assert rank.sample is not None
        # A copy: dumps of separate processes share no frame objects.
        frames = tuple(
            Frame(f.name, f.file, f.short, f.line)
            for f in taken.stacks[rank.sample.threads[0].stack]
        )
        for known, members in groups:
            if all(a == b for a, b in zip(known, frames, strict=False)) and len(known) == len(
                frames
            ):
                members.append(rank)
                break
        else:
            groups.append((frames, [rank]))
    return groups


def draw(taken: Snapshot, job: Job) -> None:
    """What a screen does: merge, and lay out the rows."""
    flatten(merge(taken, job))


def main() -> None:
    """Print one line per number of ranks."""
    sizes = [int(text) for text in sys.argv[1:]] or [128, 1024, 8192]
    print(figures.HEAD)
    for ranks in sizes:
        taken = snapshot(ranks)
        job = taken.jobs[0]
        slow = best(partial(naive, taken), 3)
        quick = best(partial(draw, taken, job))
        judged = best(partial(diagnose, taken, job))
        figures.row(
            f"merge of {ranks:,} stacks, and verdict: CPU",
            "300 ms at 8,192",
            f"{quick:.1f} + {judged:.1f} ms, {(quick + judged) * 1000 / ranks:.0f} us a rank",
            f"merge of whole frame lists {slow:.1f} ms, {slow / quick:.1f}x",
        )
    figures.load()


if __name__ == "__main__":
    main()
