"""What a job of three sizes costs the head, step by step, and how that grows with what differs.

    PYTHONPATH=core:tui:tests:benchmarks python benchmarks/growth.py [NODES ...]

What simulated nodes of 8 ranks say is folded into the store here, without pipes and threads, so
each step stands alone: the start, from the lines of all nodes to a first verdict; a second in
which all rows change, a tenth, none; a picture of that; its verdict; the rows of the overview; and
a picture for which processes are sorted into jobs anew. Milliseconds of processor, the shortest of
some runs; other programs do not count.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import figures
from hangtop.views.health import health_steps
from hangtop.views.overview import class_row_steps
from hangtop.views.ranks.ranks import RankRows
from hangtop_core.analysis.peers import sought
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.updates import Options
from hangtop_core.scheduling.interruptible import at_once
from measures import cost
from simulated.story import Story
from support.crowd import Crowd, first_words
from support.large import EPOCH, HANG_AFTER, Large

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.model.snapshot import Snapshot

SIZES = (16, 128, 1024)
ROUNDS = 3


def pass_second(
    large: Large, at: float, told: str, rows: RankRows, note: Callable[..., None]
) -> Snapshot:
    """One second of a job that trains."""
    said = large.say(at)
    note(f"a second, {told}: read", lambda: large.fold(said))
    note(f"a second, {told}: picture", lambda: large.store.publish(EPOCH + at))
    snapshot = large.store.publish(EPOCH + at)
    (job,) = snapshot.jobs
    note(f"a second, {told}: rows", lambda: rows.take(snapshot, job, None, EPOCH + at))
    return snapshot


def start(nodes: int, note: Callable[..., None]) -> None:
    """From the first connection to the first verdict."""
    words = first_words(Story(nodes=nodes, hang_at=-1.0))
    crowd = Crowd(nodes, at_once=64, options=Options())

    def read(part: int) -> None:
        for number, lines in enumerate(words):
            crowd.hear(crowd.engine.opened[number], lines[part])

    note("start: hellos", lambda: read(0))
    note("start: what nodes run", lambda: read(1))
    note("start: picture", lambda: crowd.collector.store.publish(EPOCH))
    snapshot = crowd.collector.store.publish(EPOCH)
    note("start: verdict", lambda: diagnose(snapshot, snapshot.jobs[0], HANG_AFTER))


def steps(nodes: int) -> dict[str, float]:
    """All steps of one size."""
    found: dict[str, list[float]] = {}

    def note(what: str, work: Callable[[], object]) -> None:
        found.setdefault(what, []).append(cost(work))

    for _ in range(ROUNDS):
        start(nodes, note)
    large = Large(nodes, hang_at=-1.0)
    large.hear(0.0)
    large.sample(0.5)
    snapshot, job, diagnosis = large.picture(1.0)
    rows, at = RankRows(), 1.0
    rows.take(snapshot, job, diagnosis, EPOCH + at)
    for share, told in ((1.0, "all rows change"), (0.1, "a tenth"), (0.0, "none")):
        large.change(churn=share)
        for _ in range(7):  # until what moved before has left the shares of a core
            at += 1.0
            large.hear(at)
        large.store.publish(EPOCH + at)
        for _ in range(ROUNDS):
            at += 1.0
            snapshot = pass_second(large, at, told, rows, note)
    (job,) = snapshot.jobs
    for _ in range(ROUNDS):
        note("verdict, training", lambda: diagnose(snapshot, job, HANG_AFTER))
    large.change(hang_at=at)
    for _ in range(8):
        at += 1.0
        large.hear(at)
    large.sample(at)
    at += HANG_AFTER + 5.0
    large.hear(at)
    snapshot, job, diagnosis = large.picture(at)
    assert diagnosis.verdicts
    for _ in range(ROUNDS):
        note("verdict, hung", lambda: diagnose(snapshot, job, HANG_AFTER))
        note("whose descriptors to read",
             lambda: (large.store.odd_ranks(), sought(snapshot)))  # fmt: skip
        note("overview, but its rows",
             lambda: (at_once(class_row_steps(snapshot, job, diagnosis, EPOCH + at)),
                      at_once(health_steps(snapshot, job, EPOCH + at))))  # fmt: skip
        large.store.change_node(large.story.name(0), {"addresses": (f"10.0.0.{at}",)})
        note("picture, jobs found anew", lambda: large.store.publish(EPOCH + at))
    return {what: min(some) for what, some in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("nodes", type=int, nargs="*", default=list(SIZES))
    sizes = parser.parse_args().nodes
    told = [steps(nodes) for nodes in sizes]
    print(f"| milliseconds of CPU | {' | '.join(f'{nodes * 8:,} ranks' for nodes in sizes)} |")
    print("|---|" + "---:|" * len(sizes))
    for what in told[0]:
        print(f"| {what} | {' | '.join(f'{one[what]:.2f}' for one in told)} |")
    figures.load()


if __name__ == "__main__":
    main()
