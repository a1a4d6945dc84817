"""Who is slow, not stuck; what is not known of who is only busy; and how long that is observed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.model.activity_window import ActivityWindow, Lately
from hangtop_core.session.observing import decided
from hangtop_core.state.stack_table import StackTable
from support import situations
from support.build import NOW, World, judged
from support.situations import FUTEX, RUN, c10d, frame, user
from support.verdicts import causes

CHANGES = {"same_functions_since": NOW - 2.0}


@pytest.mark.parametrize(
    ("signs", "known"),
    [({}, False), ({"printed_at": NOW - 9}, True), ({"io_moved_at": NOW - 90}, False)],
)
def test_who_is_only_busy_is_not_said_to_get_on_and_is_observed_on(
    signs: dict[str, Any], known: bool
) -> None:
    world = World()
    world.waiters(3, moved_at=NOW - 20.0)
    world.add(user("evaluate", 40), RUN, sample=CHANGES, **signs)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", ["straggler"])
    assert ("and gets on" in found.verdicts[0].summary) == known
    assert decided(found, 5.0) == known


def lately(share: float, left: int) -> dict[str, Any]:
    return {"cpu_share": share, "lately": Lately(share, left, 15.0)}


@pytest.mark.parametrize(
    ("slow", "others", "left", "told"),
    [
        (0.9, 0.02, 4, True),
        (0.3, 0.03, 4, True),
        # Nobody was seen to pass a step; or all have about as much to do.
        (0.9, 0.02, 1, False),
        (0.9, 0.3, 4, False),
        (0.9, 0.8, 4, False),
    ],
)
def test_one_rank_that_all_others_wait_for_at_each_step_is_a_straggler(
    slow: float, others: float, left: int, told: bool
) -> None:
    world = World()
    for _ in range(2):
        moved = {"moved_at": NOW - 2.0, "left_at": NOW - 2.0}
        world.add(c10d("all_reduce"), FUTEX, **moved, **lately(others, left))
    # It is met in the line that the others wait in.
    world.add(c10d("all_reduce"), RUN, sample=CHANGES, **lately(slow, 9))
    found = judged(world)
    assert found.state == ("slow" if told else "progressing")
    assert causes(found) == (["straggler"] if told else [])
    if told:
        assert [one.rank for one in found.verdicts[0].culprits] == [2]
        assert decided(found, 5.0)


SAVES = (frame("_save", "torch/serialization.py", 994), *user("put", 73, "torch.save(value, f)"))


@pytest.mark.parametrize(
    ("saves", "running", "main", "cause", "said"),
    [
        (
            "main",
            True,
            0.9,
            "checkpoint-slow",
            "pid 4020) writes a checkpoint at train.py:73 (put)",
        ),
        (
            "thread",
            True,
            0.1,
            "checkpoint-slow",
            "pid 4020) writes a checkpoint in its thread 'writer' at train.py:73 (put)",
        ),
        # Its main thread works more than that; or that thread only waits for its disk.
        ("thread", True, 0.8, "straggler", "pid 4020) holds up the others"),
        ("thread", False, 0.1, "straggler", "pid 4020) holds up the others"),
    ],
)
def test_who_holds_up_the_others_while_it_saves_writes_a_checkpoint(
    saves: str, running: bool, main: float, cause: str, said: str
) -> None:
    world = World()
    for _ in range(2):
        moved = {"moved_at": NOW - 2.0, "left_at": NOW - 2.0}
        world.add(c10d("all_reduce"), FUTEX, **moved, **lately(0.02, 4))
    facts = RUN if running else ("D", "folio_wait_bit", "write", 7, None)
    world.add(
        SAVES if saves == "main" else c10d("all_reduce"),
        RUN,
        process={"threads": (situations.thread(4101, facts),)},
        sample={**CHANGES, "others": [("writer", 4101, SAVES, False)] if saves != "main" else []},
        main_cpu_share=main,
        **lately(0.9, 9),
    )
    found = judged(world)
    state = "slow" if cause == "straggler" else "progressing"
    assert (found.state, causes(found)) == (state, [cause])
    summary = found.verdicts[0].summary
    assert said in summary
    assert "holds up the others, step by step: it has used 90% of a core" in summary


def test_a_looker_tells_of_several_steps() -> None:
    looker = ActivityWindow()
    for second in range(30):
        looker.see(float(second), second * 0.5)
        if second < 10:
            assert looker.recent is None
        if second % 3 == 0:
            looker.leaves()
    told = looker.recent
    assert told is not None
    assert told.share == 0.5
    assert 12 <= told.span_s <= 24
    assert told.left == pytest.approx(told.span_s / 3, abs=1)


@pytest.mark.parametrize(
    ("since", "share", "told"), [(20.0, 0.4, True), (4.0, 0.4, False), (20.0, 0.01, False)]
)
def test_all_wait_for_children_that_work(since: float, share: float, told: bool) -> None:
    world = World()
    for _ in range(2):
        still = {"same_functions_since": NOW - since}
        rank = world.add(user("prepare", 40), situations.WAITPID, sample=still, moved_at=NOW - 1)
        pid = rank.process.pid + 500
        child = world.process(pid, RUN, role="subprocess", rank_pid=rank.process.pid)
        rank = world.give_children(rank, [(child, None)], moved_at=NOW - 0.1)
        world.ranks[-1] = replace(rank, child_cpu_share={pid: share})
    found = judged(world)
    assert found.state == "progressing"
    assert causes(found) == (["long-phase"] if told else [])


@pytest.mark.parametrize(("loop", "called"), [("while rest:", True), ("for x in y:", False)])
def test_calls_from_a_while_are_known_with_their_caller(loop: str, called: bool) -> None:
    table = StackTable()
    caller = replace(frame("cut", "pack.py", 20), within=((19, loop),))
    table.add("caller", (caller, frame("main", "pack.py", 9)))
    table.add("inside", (frame("find", "pack.py", 3), caller, frame("main", "pack.py", 9)))
    own, _ = table.homes("caller")
    assert (table.homes("inside")[1] == own) == called


@pytest.mark.parametrize(("workers", "cause"), [(2, "long-phase"), (1, "straggler")])
def test_ranks_at_work_are_not_slow_because_another_waits_for_a_key_in_the_store(
    workers: int, cause: str
) -> None:
    world = World()
    wait = user("next", 37, "self.store.wait([f'published/{number}'], timeout)")
    world.add(wait, FUTEX, moved_at=NOW - 20.0)
    for _ in range(workers):
        world.add(user("train", 40), RUN, sample=CHANGES, io_moved_at=NOW - 9)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", [cause])
    assert ("slow" in found.verdicts[0].summary) == (cause == "straggler")
