"""Pictures that are kept: bounded, and the coarser the farther back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.scheduling.interruptible import PART
from hangtop_core.state.history import LEAST, MOST, RANKS_KEPT, History
from support.record import load

if TYPE_CHECKING:
    from hangtop_core.model.updates import Update

replace = msgspec.structs.replace


def at(update: Update, second: int) -> Update:
    return replace(update, snapshot=replace(update.snapshot, at=float(second)))


def test_an_hour_is_kept_coarse_and_the_last_minutes_whole() -> None:
    history, update = History(), load("skip")
    for second in range(3600):
        history.add(at(update, second))
    assert len(history) <= MOST
    shown, seconds = at(update, 3600), []
    while (found := history.near(shown, -1)) is not None:
        shown = found
        seconds.append(shown.snapshot.at)
    assert seconds[:60] == [3599.0 - n for n in range(60)]
    assert seconds[-1] == 0.0
    gaps = [a - b for a, b in itertools.pairwise(seconds)]
    assert gaps[-1] > gaps[len(gaps) // 2]


def test_what_is_concluded_from_a_picture_later_takes_its_place() -> None:
    history, update = History(), load("skip")
    unjudged = replace(update, diagnoses={})
    for one in (at(update, 1), unjudged, update):
        history.add(one)
    assert history.pictures[1:] == (update,)
    assert history.near(update, -1) is history.pictures[0]


def test_of_a_large_job_few_are_kept() -> None:
    history, update = History(), load("skip")
    job = update.snapshot.jobs[0]
    still = replace(job, ranks=job.ranks * 2048)
    for second in range(12):
        moved = tuple(replace(rank, moved_at=float(second)) for rank in still.ranks)
        large = replace(job, ranks=moved)
        one = at(update, second)
        history.add(replace(one, snapshot=replace(one.snapshot, jobs=(large,))))
    assert LEAST // 2 < len(history) <= max(LEAST, RANKS_KEPT // 8192)
    turns = next(turn for turn in itertools.count(1) if not history.let_go())
    assert turns > 8192 // PART, "those that are not kept go in small parts"
    assert len(history) > 0
    assert not history.let_go()


def test_a_large_job_that_hangs_is_kept_for_long() -> None:
    history, update = History(), load("skip")
    job = update.snapshot.jobs[0]
    large = replace(job, ranks=job.ranks * 2048)
    for second in range(120):
        one = at(update, second)
        history.add(replace(one, snapshot=replace(one.snapshot, jobs=(large,))))
    assert 60 <= len(history) <= RANKS_KEPT // 8192 * 20


def test_steps_are_taken_from_what_is_shown() -> None:
    history, update = History(), load("skip")
    for second in (10, 20, 30):
        history.add(at(update, second))

    def near(second: int, step: int) -> float | None:
        found = history.near(at(update, second), step)
        return None if found is None else found.snapshot.at

    assert [near(20, -1), near(20, 1), near(10, -1), near(30, 1)] == [10.0, 30.0, None, None]
    assert [near(25, -1), near(25, 1)] == [20.0, 30.0], "one that is not kept any more"
