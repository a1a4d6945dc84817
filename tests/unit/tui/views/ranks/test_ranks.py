"""The rows of the table of ranks: kept where nothing differs, and the same as if made anew."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop.terminal.spans import plain
from hangtop.views.ranks import ranks
from hangtop.views.ranks.ranks import RANK_COLUMNS, RankRow, RankRows
from support.large import EPOCH, Large, operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from hangtop_core.model.snapshot import Job, Rank, Snapshot

CELLS = RANK_COLUMNS


def texts(rows: Sequence[RankRow]) -> list[tuple[str, ...]]:
    return [(row.key, *(plain(column.cell(row)) for column in CELLS)) for row in rows]


def with_ranks(snapshot: Snapshot, ranks: Sequence[Rank]) -> tuple[Snapshot, Job]:
    job = replace(snapshot.jobs[0], ranks=tuple(ranks))
    return replace(snapshot, jobs=(job,)), job


def test_rows_that_are_kept_are_those_that_would_be_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever happens from one picture to the next, and where one is left half done."""
    monkeypatch.setattr(ranks, "PART", 2)
    chance = Random(7)
    large = Large(4, hang_at=-1.0)
    large.hear(0.0)
    large.sample(0.5)
    snapshot, job, diagnosis = large.picture(1.0)
    stacks, sampled = sorted(snapshot.stacks), job.ranks[0].sample
    assert sampled is not None
    kept, some, nodes = RankRows(), list(job.ranks), list(snapshot.nodes)
    for step in range(60):
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(some))
            one = some[place]
            sample = one.sample or sampled
            threads = (replace(sample.threads[0], stack=chance.choice(stacks)),)
            some[place] = chance.choice(
                (
                    replace(one, cpu_share=chance.random()),
                    replace(one, sample=replace(sample, threads=threads)),
                    replace(one, state=chance.choice(("stopped", "sleeping", "exited"))),
                    replace(one, process=replace(one.process, denied="not yours")),
                    replace(one, sample=None),
                    replace(one, process=replace(one.process, start=step)),
                    one,
                )
            )
        if step % 5 == 4:
            place = chance.randrange(len(nodes))
            state = chance.choice(("lost", "ready"))
            nodes[place] = replace(nodes[place], state=state, last_seen=EPOCH)
        if step % 20 == 19:
            some.pop(chance.randrange(len(some)))
        shown, changed = with_ranks(replace(snapshot, nodes=tuple(nodes)), some)
        blames = diagnosis if step % 7 else None
        now = EPOCH + 10.0 + step
        if step % 3 == 2:
            begun = kept.steps(shown, changed, blames, now)
            for _ in range(chance.randrange(4)):
                next(begun, None)
            continue
        found = kept.take(shown, changed, blames, now)
        anew = RankRows().take(shown, changed, blames, now)
        assert texts(found) == texts(anew)
        assert [row.order for row in found] == sorted(row.order for row in anew)
        assert [row.level for row in found] == [kept.judged(row.rank)[2] for row in found]


def test_a_picture_costs_what_is_new_in_it() -> None:
    """By counting: rows that are made, sorts, and lines of Python that run."""
    (few, _), (many, anew) = renewed(8), renewed(64)
    # To look whether a rank is another one takes a line; so does its node being silent.
    assert many < few + 3 * 8 * 56
    assert many < anew / 8


def renewed(nodes: int) -> tuple[int, int]:
    """Lines that run for a picture in which four ranks are others: with rows kept, and without."""
    large = Large(nodes, hang_at=-1.0)
    large.hear(0.0)
    large.sample(0.5)
    snapshot, job, diagnosis = large.picture(1.0)
    rows = RankRows()
    rows.take(snapshot, job, diagnosis, EPOCH)
    assert (rows.made, rows.sorted) == (8 * nodes, 1)
    rows.take(snapshot, job, diagnosis, EPOCH + 1)
    assert (rows.made, rows.sorted) == (8 * nodes, 1), "nothing is new"
    some = list(job.ranks)
    for place in range(0, 40, 10):
        some[place] = replace(some[place], cpu_share=0.5)
    shown, changed = with_ranks(snapshot, some)
    looked = [row.looks for row in rows.rows]
    anew = operations(lambda: RankRows().take(shown, changed, diagnosis, EPOCH))
    new = operations(lambda: rows.take(shown, changed, diagnosis, EPOCH + 2))
    assert (rows.made, rows.sorted) == (8 * nodes + 4, 1), "nobody has moved"
    assert sum(row.looks is not old for row, old in zip(rows.rows, looked, strict=True)) == 4
    return new, anew
