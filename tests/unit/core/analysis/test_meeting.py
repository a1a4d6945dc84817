"""Ranks that meet, or pass something on: whom they wait for when that is not in a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.jobs.joining import world_size
from support import situations
from support.build import World, judged
from support.situations import FUTEX, POLL, RECV, SLEEP, c10d, frame, user
from support.verdicts import causes, first

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis

NEW_GROUP: situations.Stack = (
    frame("_new_group_with_tag", "torch/distributed/distributed_c10d.py", 5200),
    frame("new_group", "torch/distributed/distributed_c10d.py", 5100),
    *user("make_groups", 12),
)
STORE = user("collect", 53, "dist.distributed_c10d._get_default_store().wait(['a'])")


@pytest.mark.parametrize(("stack", "facts"), [(STORE, POLL), (user("rest", 30), SLEEP)])
def test_a_rank_elsewhere_while_all_others_make_a_group(
    stack: situations.Stack, facts: situations.Facts
) -> None:
    world = World()
    world.waiters(3, NEW_GROUP, POLL)
    world.add(stack, facts)
    assert first(judged(world)) == ("subset-new-group", [3])


def test_most_pass_something_on_and_the_head_of_the_chain_is_elsewhere() -> None:
    world = World()
    world.add(STORE, POLL)
    world.waiters(3, RECV)
    assert first(judged(world)) == ("p2p-chain", [0])
    assert "ranks 1-3 wait in recv" in judged(world).verdicts[0].summary


def test_sends_and_receives_that_do_not_meet() -> None:
    world = World()
    world.add(c10d("send", 2700, 29), FUTEX)
    world.add(c10d("recv", 2799, 37), FUTEX)
    world.add(c10d("recv", 2799, 21), FUTEX)
    assert first(judged(world)) == ("p2p-deadlock", [0, 1, 2])
    assert judged(world).verdicts[0].confidence == 0.65


def crossed(sources: tuple[str, str]) -> World:
    """Two ranks of four in sends from different lines, the others in one collective."""
    world = World()
    world.waiters(1)
    for line, source in zip((50, 58), sources, strict=True):
        world.add((c10d("send", 2753, line)[0], user("step", line, source)[0]), FUTEX)
    world.waiters(1)
    return world


def test_sends_that_cross_while_all_others_reduce() -> None:
    world = crossed(("dist.send(x, dst=following, tag=tag)", "dist.send(g, dst=previous)"))
    assert first(judged(world)) == ("p2p-deadlock", [1, 2])
    verdict = judged(world).verdicts[0]
    assert "nobody is in a recv" in verdict.summary
    assert "ranks 0,3 wait in all_reduce" in verdict.summary
    assert len(judged(world).verdicts) == 1


def test_sends_to_a_rank_that_is_elsewhere_are_not_crossed() -> None:
    world = crossed(("send(x, dst=0)", "send(y, dst=0)"))
    assert causes(judged(world))[0] == "mismatched-collective"


def test_a_rank_that_receives_while_most_reduce_is_in_another_operation() -> None:
    world = World()
    world.waiters(3)
    world.add(RECV, FUTEX)
    assert first(judged(world)) == ("mismatched-collective", [3])


@pytest.mark.parametrize(
    ("state", "frozen", "cause"),
    [("T", False, "store-dead"), ("S", True, "store-dead"), ("S", False, "unknown")],
)
def test_the_store_stands_still_with_its_launcher(state: str, frozen: bool, cause: str) -> None:
    world = World()
    world.waiters(3, NEW_GROUP, POLL)
    torchrun = world.process(900, SLEEP, role="launcher", launcher="torchrun", node="n1")
    torchrun = replace(torchrun, state=state, frozen=frozen, frozen_by="/sys/fs/cgroup/job")
    found = judged(world, launchers=(torchrun,))
    assert first(found) == (cause, [])
    if cause == "store-dead":
        steps = ("kill -CONT 900",)
        if frozen:  # a signal would not let it run
            folder = "/sys/fs/cgroup/job"
            steps = (f"cat {folder}/cgroup.procs", f"echo 0 > {folder}/cgroup.freeze")
        assert found.verdicts[0].next_steps == steps


def test_a_launcher_that_has_no_store_stands_still() -> None:
    world = World()
    world.waiters(3, NEW_GROUP, POLL)
    srun = replace(world.process(900, SLEEP, role="launcher", launcher="srun"), state="T")
    assert first(judged(world, launchers=(srun,))) == ("unknown", [])


def test_a_launcher_that_stands_still_is_not_why_ranks_wait_in_a_collective() -> None:
    world = World()
    world.waiters(3, c10d("all_reduce"))
    torchrun = replace(world.process(900, SLEEP, role="launcher"), state="T")
    assert first(judged(world, launchers=(torchrun,))) == ("unknown", [])


def test_a_function_called_as_the_interpreter_ends_is_shutting_down() -> None:
    world = World()
    world.waiters(2)
    # Nothing of the program is below a handler of atexit.
    world.add((*situations.QUEUE[:1], frame("flush", "train.py", 70)), FUTEX)
    assert first(judged(world)) == ("teardown", [2])


SLEEPS_IN_INIT: situations.Stack = (
    frame("_new_process_group_helper", "torch/distributed/distributed_c10d.py", 2169),
    frame("init_process_group", "torch/distributed/distributed_c10d.py", 1899),
    *user("join", 45),
)


def meet(*folders: str, facts: situations.Facts = SLEEP, words: tuple[str, ...] = ()) -> Diagnosis:
    world = World()
    for index, folder in enumerate(folders):
        line = ("python", "train.py", *words[index : index + 1])
        process = {"cwd": folder, "cmdline": line}
        world.add(SLEEPS_IN_INIT, facts, process=process)
    return judged(world)


def test_ranks_that_meet_over_a_file_in_different_folders() -> None:
    verdict = meet("/run/work-1", "/run/work-1", "/run/work-2").verdicts[0]
    assert (verdict.cause, [c.rank for c in verdict.culprits]) == ("launch-misconfigured", [2])
    assert "/run/work-2 (rank 2)" in verdict.summary
    assert "nothing differs" not in verdict.summary
    assert verdict.confidence == 0.6


def test_ranks_that_were_told_other_files() -> None:
    words = ("--init=file:///a/r", "--init=file:///b/r", "--init=file:///b/r")
    verdict = meet("/run", "/run", "/run", words=words).verdicts[0]
    assert (verdict.cause, [c.rank for c in verdict.culprits]) == ("launch-misconfigured", [0])
    assert "file:///a/r" in verdict.summary
    assert verdict.confidence == 0.9


@pytest.mark.parametrize(
    ("folders", "facts", "left"),
    [
        (("/run", "/run", "/run"), SLEEP, "the file that they seem to meet over (FileStore)"),
        # over TCP the folder does not matter
        (("/run/1", "/run/2", "/run/3"), POLL, "init_method, store"),
    ],
)
def test_ranks_that_meet_and_what_is_left(
    folders: tuple[str, ...], facts: situations.Facts, left: str
) -> None:
    verdict = meet(*folders, facts=facts).verdicts[0]
    assert verdict.cause == "unknown"
    assert left in verdict.summary


@pytest.mark.parametrize("size", [3, None])
def test_that_none_stays_away_is_said_only_of_a_world_whose_size_is_known(size: int | None) -> None:
    world = World()
    for _ in range(3):
        world.add(SLEEPS_IN_INIT, SLEEP)
    verdict = judged(world, world_size=size).verdicts[0]
    assert verdict.cause == "unknown"
    assert ("a rank that stays away" in verdict.summary) == (size is not None)
    assert ("a rank beyond these 3" in verdict.summary) == (size is None)


def test_a_world_size_that_ranks_were_told_by_a_call_counts_like_the_variable() -> None:
    world = World()
    for _ in range(3):
        world.add(SLEEPS_IN_INIT, SLEEP, process={"env": {}, "told_size": 4})
    verdict = judged(world, world_size=4).verdicts[0]
    assert (verdict.cause, [c.rank for c in verdict.culprits]) == ("rank-never-joined", [3])
    assert "world_size of init_process_group is 4 and 3 ranks are there" in verdict.summary
    process = world.ranks[0].process
    assert world_size(process) == 4
    assert world_size(replace(process, env={"WORLD_SIZE": "3"})) == 3


def test_a_folder_for_each_rank_blames_nobody() -> None:
    verdict = meet("/run/0", "/run/1", "/run/2").verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("launch-misconfigured", ())


def test_a_rank_that_waits_for_a_key_while_others_reduce_stays_away() -> None:
    world = World()
    world.add(STORE, POLL)
    world.waiters(2)
    (verdict,) = judged(world).verdicts
    assert (verdict.cause, [c.rank for c in verdict.culprits]) == ("missing-collective", [0])
    assert "waits for a key in the store at train.py:53 (collect)" in verdict.summary
    assert "nobody else waits for keys" in verdict.summary


@pytest.mark.parametrize("keys", [1, 2])
def test_half_of_the_ranks_or_more_that_wait_for_keys_are_told_as_before(keys: int) -> None:
    world = World()
    for _ in range(keys):
        world.add(STORE, POLL)
    world.waiters(1)
    assert judged(world).verdicts[0].cause == "mismatched-collective"


def test_a_wait_for_a_key_after_an_error_says_so() -> None:
    world = World()
    above = replace(
        frame("fit", "train.py", 70), beside=((66, "self.step(batch)"), (68, "except ValueError:"))
    )
    world.add((*STORE[:1], above, *STORE[1:]), POLL)
    world.waiters(2)
    told = judged(world).verdicts[0].summary
    assert "rank 0 came there in `except ValueError:` (train.py:68)" in told
