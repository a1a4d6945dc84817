"""Waits that are as long as those before: slow jobs, and hangs of jobs that were slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.steptimes import step_times
from hangtop_core.model.recurring import Wait
from hangtop_core.report.diagnosis import headline
from hangtop_core.session.observing import decided
from support.build import NOW, World, judged
from support.situations import FUTEX, LOADER, RUN, SLEEP, c10d, frame, user
from support.verdicts import causes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.diagnosis import Diagnosis
    from support.situations import Facts

LOOP = replace(frame("__getitem__", "data.py", 15), within=((14, "while left:"),))
FETCHES = (
    LOOP,
    frame("fetch", "torch/utils/data/_utils/fetch.py", 54),
    frame("_worker_loop", "torch/utils/data/_utils/worker.py", 349),
)
POLL = ("S", "do_poll", "poll", 7, None)
AGES = {"same_since": NOW - 400.0, "same_functions_since": NOW - 400.0}


def waits(*lasted: float, until: float, for_ranks: bool = True) -> tuple[Wait, ...]:
    """Waits one right after the other, the last of which ended so many seconds ago."""
    found, end = [], NOW - until
    for seconds in reversed(lasted):
        found.append(Wait(end - seconds, end, for_ranks))
        end -= seconds
    return tuple(reversed(found))


def lockstep(now: float, *lasted: float) -> Diagnosis:
    """A rank that sleeps in each step, for which others wait now, and have waited before."""
    world = World()
    moved = {"moved_at": NOW - now, "left_at": NOW - now}
    world.waiters(3, waits=waits(*lasted, until=now), **moved)
    own = waits(*lasted, until=now, for_ranks=False)
    world.add(user("load_batch", 55), SLEEP, waits=own, **moved)
    return judged(world)


@pytest.mark.parametrize("now", [0.2, 3.0, 5.5, 11.9])
def test_steps_that_one_rank_makes_long_are_slow_at_any_moment(now: float) -> None:
    found = lockstep(now, 6.0, 6.2, 6.0)
    assert (found.state, causes(found)) == ("slow", ["straggler"])
    assert headline(found) == "SLOW"
    assert [one.rank for one in found.verdicts[0].culprits] == [3]
    assert "its last 3 steps took 6.1 s each, those of ranks 0-2 less than 0.1 s" in (
        found.verdicts[0].summary
    )
    assert found.stalled_for_s is None


@pytest.mark.parametrize(
    ("now", "before", "state"),
    [
        # Longer than ever, but not for the hang time; and for that.
        (14.0, (6.0, 6.0), "unknown"),
        (31.0, (6.0, 6.0), "hung"),
        # Its steps take longer than the hang time: twice as long as they did is a hang.
        (45.0, (40.0, 40.0), "slow"),
        (79.0, (40.0, 40.0), "slow"),
        (81.0, (40.0, 40.0), "hung"),
        # A single wait, as for the first data, is hardly a rhythm.
        (45.0, (40.0,), "progressing"),
        (51.0, (40.0,), "hung"),
        (31.0, (20.0,), "hung"),
        # No patience is without an end.
        (301.0, (200.0, 200.0), "hung"),
    ],
)
def test_a_wait_longer_than_those_before_is_a_hang_after_the_hang_time(
    now: float, before: tuple[float, ...], state: str
) -> None:
    assert lockstep(now, *before).state == state


def test_waits_of_a_phase_that_is_over_say_nothing() -> None:
    world = World()
    moved = {"moved_at": NOW - 31.0, "left_at": NOW - 31.0}
    world.waiters(3, waits=waits(40.0, 40.0, until=400.0), **moved)
    world.add(user("load_batch", 55), SLEEP, **moved)
    assert judged(world).state == "hung"


@pytest.mark.parametrize(
    ("parts", "slow"),
    [
        ([5.0, 5.0, 0.0], (2,)),
        ([5.0, 5.0, 0.0, 0.0], (2, 3)),
        # Three times as slow; half of all are; nobody is; who takes half of the time is neither.
        ([4.0, 4.0, 4.0, 0.0], (3,)),
        ([5.0, 0.0], (1,)),
        ([0.0, 0.0, 5.0], None),
        ([5.0, 5.0, 5.0], None),
        ([5.0, 5.0, 2.0], None),
    ],
)
def test_who_is_waited_for_in_most_of_each_step_is_slow(
    parts: list[float], slow: tuple[int, ...] | None
) -> None:
    world = World()
    for part in parts:
        own = [Wait(NOW - 6 * n - part, NOW - 6 * n, True) for n in (3, 2, 1) if part]
        world.add(c10d("all_reduce"), FUTEX, waits=tuple(own))
    found = step_times(world.ranks, NOW)
    assert (found.slow if found is not None else None) == slow
    assert step_times(world.ranks, NOW + 20.0) is None, "that was before"


def evaluation(
    facts: Facts = RUN, *, gil: bool = False, given: Sequence[float] = (), fed: Sequence[float] = ()
) -> World:
    """A rank that waits for its one worker, whose functions never change; others in a barrier.

    ``given`` and ``fed`` are the seconds ago at which the rank and its worker have read something.
    """
    world = World()
    world.waiters(1, c10d("barrier"))
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0, left_at=NOW - 2.0, sample=AGES)
    child, _ = world.worker(rank, FETCHES, facts)
    sample = world.sample(FETCHES, pid=child.pid, active=facts is RUN, gil=gil, **AGES)
    rank = world.give_children(rank, [(child, sample)])
    told = {
        "given": tuple(NOW - ago for ago in given),
        "child_given": {child.pid: tuple(NOW - ago for ago in fed)} if fed else {},
        "child_cpu_share": {child.pid: 0.9 if facts is RUN else 0.0},
    }
    world.ranks[world.ranks.index(rank)] = replace(rank, **told)
    return world


@pytest.mark.parametrize(
    "signs",
    [
        {"given": (15, 9, 3)},
        {"fed": (15, 9, 3)},
        {"given": (25,)},
        # A batch takes 40 s; and the worker, which reads a slow file, sleeps in between.
        {"given": (120, 80, 40), "gil": True},
        {"fed": (12, 8, 4), "facts": SLEEP},
    ],
)
def test_a_worker_that_is_fed_or_read_is_progress(signs: dict[str, Any]) -> None:
    found = judged(evaluation(**signs))
    assert found.state == "progressing"
    assert causes(found) in (["data-starved"], [])
    # Of what was given a moment ago nobody has to see more.
    assert decided(found, 5.0) == (signs.get("fed", [9])[-1] < 5.0)


@pytest.mark.parametrize(
    ("signs", "state", "cause"),
    [
        # In C without the GIL nothing shows until it returns: as of a rank that does the same.
        ({"given": (60,)}, "unknown", "data-starved"),
        ({"given": (301,)}, "hung", "dataloader-worker-stuck"),
        # A loop of Python, which has read nothing for longer than ever.
        ({"given": (60,), "gil": True}, "hung", "dataloader-worker-stuck"),
        ({"given": (111, 90, 70, 50), "gil": True}, "hung", "dataloader-worker-stuck"),
        ({"given": (60,), "facts": SLEEP}, "hung", "dataloader-worker-stuck"),
    ],
)
def test_a_worker_that_is_neither_fed_nor_read_is_stuck_sooner_or_later(
    signs: dict[str, Any], state: str, cause: str
) -> None:
    found = judged(evaluation(**signs))
    assert found.state == state
    assert (found.verdicts[0].cause, found.verdicts[0].culprits[0].rank) == (cause, 1)


def test_a_worker_that_goes_through_many_things_is_only_slow() -> None:
    world = evaluation(given=(60,), gil=True)
    counts = replace(LOOP, within=((14, "for number in range(10**12):"),))
    world.stacks = {
        key: (counts, *stack[1:]) if stack[0] == LOOP else stack
        for key, stack in world.stacks.items()
    }
    assert judged(world).state == "hung"
    assert causes(judged(world))[0] == "data-starved"
