"""What the recorders of running ranks add where all ranks wait for one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.recorder.columns import trace_of
from hangtop_core.model.snapshot import Recorder
from hangtop_probe.recorder.columns import reduce
from support.build import HUNG_SINCE, NOW, World
from support.flight import Job
from support.situations import BACKWARD, FUTEX, Stack, c10d, frame, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

NEW_GROUP = (
    frame("_store_based_barrier", "torch/distributed/distributed_c10d.py", 1080),
    frame("new_group", "torch/distributed/distributed_c10d.py", 5860),
    *user("setup", 12),
)


def waiting(job: Job, stacks: dict[int, Stack] | None = None, **said: float | str) -> World:
    """Ranks that all wait, with the recorders of a job that was written down."""
    world = World()
    for rank, dump in job.dumps().items():
        stack = (stacks or {}).get(rank, c10d("all_reduce"))
        recorder = Recorder(**{"at": NOW, "source": "server", **said})  # type: ignore[arg-type]
        trace = trace_of(reduce(dump), rank, "test")
        recorder = Recorder(recorder.at, recorder.source, trace=trace)
        world.add(stack, FUTEX, recorder=recorder)
    return world


def judge(world: World) -> list[Verdict]:
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.jobs[0])
    assert found.state == "hung"
    return list(found.verdicts)


def test_all_have_joined_and_the_code_is_ruled_out() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    [one] = judge(waiting(job))
    assert (one.cause, one.culprits, one.victims) == ("all-joined-transport", (), (0, 1, 2, 3))
    assert "Ruled out" in one.summary
    assert any(fact.source == "flight" for fact in one.evidence)
    steps = " ".join(one.next_steps)
    assert "ss -tnpi | grep -A1 pid=4000," in steps  # what it says with -i is on a line of its own
    assert "(dmesg -T || journalctl -k --since -1h) | grep -i" in steps
    assert "nvidia-smi" not in steps  # there is no GPU
    assert "nettest" not in steps  # nor another node


def test_connections_of_a_rank_in_a_network_of_its_own_are_looked_at_there() -> None:
    world = waiting(Job(4).call("all_reduce").call("all_reduce", done=False))
    away = [replace(r, process=replace(r.process, net_ns=4026532288)) for r in world.ranks]
    world.ranks = away
    [one] = judge(world)
    assert "nsenter -t 4000 -n ss -tnpi | grep -A1 pid=4000," in " ".join(one.next_steps)


def test_it_is_over_on_some() -> None:
    job = Job(4).call("all_reduce", [0, 1, 3]).call("all_reduce", [2], done=False)
    job.call("all_reduce", [0, 1, 3], done=False)
    found = judge(waiting(job))
    assert found[0].cause == "all-joined-transport"
    assert [one.rank for one in found[0].culprits] == [2]
    assert found[0].culprits[0].node == "n1"


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"op": "all_gather"}, "mismatched-collective"),
        ({"op": "all_reduce", "sizes": [[64]]}, "mismatched-size"),
    ],
)
def test_what_differed_and_is_over_is_told_wherever_ranks_are_now(
    other: dict[str, object], cause: str
) -> None:
    """Rank 2 is at another line than the others, as where what it has issued hangs it behind."""
    job = Job(4, with_frames=False).call("all_reduce").call("all_reduce", [0, 1, 3])
    job.call(ranks=[2], **other).call("all_reduce").call("all_reduce", [0, 1, 3])  # type: ignore[arg-type]
    job.call("all_reduce", [2], done=False).call("all_reduce", [0, 1, 3], done=False)
    [one] = judge(waiting(job, {2: c10d("all_reduce", at=77)}))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (cause, [2])
    assert one.summary.startswith("rank 2 issued ")
    assert " as #2 on default_pg, where ranks 0-1,3 issued all_reduce [[8]] Float" in one.summary
    assert "over on ranks 0-1,3, and not on rank 2" in one.summary
    assert one.victims == (0, 1, 3)


def test_without_the_recorder_of_one_rank_nothing_is_ruled_out() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    world = waiting(job)
    world.waiters(1)
    assert [one.cause for one in judge(world)] == ["unknown"]


def test_a_circle_of_groups_is_seen_where_stacks_are_alike() -> None:
    groups = {"1": ("a", (0, 1)), "2": ("b", (0, 1))}
    job = Job(2, groups)
    for rank, group in ((0, "1"), (1, "2")):
        job.call("all_reduce", [rank], group=group, done=False)
    [one] = judge(waiting(job))
    assert one.cause == "group-order-inversion"
    assert [culprit.rank for culprit in one.culprits] == [0, 1]


LOOP = (50, "for step in range(steps):")
ORDER = (54, "if self.first:")
EXPERTS, SHARDS = c10d("all_reduce", at=55), c10d("all_reduce", at=57)
BARRIER = c10d("barrier", at=57)


def inside(stack: Stack, *within: tuple[int, str]) -> Stack:
    """The stack, with the blocks that its innermost own frame is in."""
    return tuple(replace(one, within=within) if one.name == "train_step" else one for one in stack)


def crossed(ranks: int, odd: int, backend: str = "gloo") -> Job:
    """Two groups of all ranks, used in one order, until a rank is first in the second."""
    everyone = tuple(range(ranks))
    job = Job(ranks, {"1": ("ep", everyone), "2": ("dp", everyone)}, backend, with_frames=False)
    for _ in range(3):
        job.call("all_reduce", group="1").call("all_gather", group="2")
    job.call("all_reduce", [rank for rank in everyone if rank != odd], "1", done=False)
    return job.call("all_gather", [odd], "2", done=False)


@pytest.mark.parametrize(
    ("mine", "theirs", "cause"),
    [
        # one line for both: a loop over the groups
        (inside(EXPERTS, LOOP), inside(EXPERTS, LOOP), "group-order-inversion"),
        # two branches
        (
            inside(SHARDS, LOOP, ORDER),
            inside(EXPERTS, LOOP, (54, "else: if self.first:")),
            "group-order-inversion",
        ),
        # past the condition under which the others are
        (inside(SHARDS, LOOP), inside(EXPERTS, LOOP, ORDER), "missing-collective"),
        # nothing but the flow of the program leads from one to the other
        (inside(SHARDS, LOOP), inside(EXPERTS, LOOP), "missing-collective"),
        # the program's file was not read
        (SHARDS, EXPERTS, "group-order-inversion"),
    ],
)
def test_stacks_tell_a_step_left_out_from_groups_in_another_order(
    mine: Stack, theirs: Stack, cause: str
) -> None:
    [one] = judge(waiting(crossed(3, 2), {0: theirs, 1: theirs, 2: mine}))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (cause, [2])


def left_out(rounds: int) -> Job:
    """Of three alike calls in each round, and two after them, rank 2 leaves out one."""
    job = Job(3, {"1": ("ep", (0, 1, 2)), "2": ("dp", (0, 1, 2))}, "gloo", with_frames=False)
    job.call("barrier", group="1").call("barrier", group="2")
    for _ in range(rounds):
        for op, group in (("all_to_all", "1"),) * 3 + (("all_reduce", "2"),) * 2:
            job.call(op, group=group)
    job.call("all_to_all", group="1").call("all_to_all", group="1")
    job.call("all_to_all", [0, 1], "1", done=False)
    return job.call("all_reduce", [2], "2", done=False)


GUARD = (53, "past: if not len(x): return x")


@pytest.mark.parametrize(
    ("rounds", "mine", "theirs", "cause", "told"),
    [
        (3, inside(SHARDS, LOOP), inside(EXPERTS, LOOP, GUARD), "missing-collective", "going by"),
        (3, inside(SHARDS, LOOP, ORDER), inside(EXPERTS, LOOP), "group-order-inversion", "another"),
        (3, inside(EXPERTS, LOOP), inside(EXPERTS, LOOP), "group-order-inversion", "or went on w"),
        (3, SHARDS, EXPERTS, "group-order-inversion", "or went on without all_to_all #13 on ep"),
        # in the first round
        (0, inside(SHARDS, LOOP), inside(EXPERTS, LOOP), "missing-collective", "is further on th"),
        (0, inside(SHARDS, LOOP, ORDER), inside(EXPERTS, LOOP), "group-order-inversion", "another"),
        (0, inside(EXPERTS, LOOP), inside(SHARDS, LOOP), "group-order-inversion", "another order"),
        # where the others may have turned back in the round before
        (
            0,
            inside(SHARDS, LOOP, (56, "past: if skips: continue")),
            inside(EXPERTS, LOOP),
            "group-order-inversion",
            "took another order than most",
        ),
    ],
)
def test_who_leaves_out_one_of_several_alike_calls(
    rounds: int, mine: Stack, theirs: Stack, cause: str, told: str
) -> None:
    [one] = judge(waiting(left_out(rounds), {0: theirs, 1: theirs, 2: mine}))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (cause, [2])
    assert told in one.summary
    turned = "Ranks 0-1 are past `if not len(x): return x` (train.py:53), where rank 2 most likely"
    guarded = any(frame.within and GUARD in frame.within for frame in theirs)
    assert (turned in one.summary) is guarded


TURNED = (56, "past: if not finite(loss): continue")


@pytest.mark.parametrize(
    ("mine", "theirs", "cause"),
    [
        (inside(EXPERTS, LOOP), inside(SHARDS, LOOP, TURNED), "missing-collective"),
        # under what the others have come by, too
        (inside(EXPERTS, LOOP, (54, "if warm:")), inside(SHARDS, LOOP), "missing-collective"),
        # and not
        (
            inside(EXPERTS, LOOP, (54, "if rank == 2:")),
            inside(SHARDS, LOOP),
            "group-order-inversion",
        ),
        (
            inside(EXPERTS, LOOP, (54, "if swap:")),
            inside(SHARDS, LOOP, (54, "else: if swap:")),
            "group-order-inversion",
        ),
    ],
)
def test_who_is_in_the_next_round_has_left_out_a_call_of_this_one(
    mine: Stack, theirs: Stack, cause: str
) -> None:
    job = Job(3, {"1": ("ep", (0, 1, 2)), "2": ("dp", (0, 1, 2))}, "gloo", with_frames=False)
    for _ in range(3):
        job.call("all_gather", group="1").call("all_gather", group="1")
        job.call("all_reduce", group="2")
    job.call("all_gather", group="1").call("all_gather", group="1")
    job.call("all_reduce", [0, 1], "2", done=False).call("all_gather", [2], "1", done=False)
    [one] = judge(waiting(job, {0: theirs, 1: theirs, 2: mine}))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (cause, [2])
    turned = "are past `if not finite(loss): continue` (train.py:56), where rank 2 most likely turn"
    assert (turned in one.summary) is (TURNED in (theirs[2].within or ()))


MAIN = (54, "if self.rank == 2:")
GATHER = inside(c10d("all_gather", at=55), LOOP, MAIN)


def apart(op: str, group: str = "0") -> Job:
    """Rank 2 issues an all_gather where the others issue something else."""
    job = Job(3, {"1": ("dp", (0, 1, 2))}, "gloo", with_frames=False)
    for _ in range(3):
        job.call("all_reduce", group=group).call(op)
    job.call("all_reduce", [0, 1], group, done=False)
    return job.call("all_gather", [2], done=False)


@pytest.mark.parametrize(
    ("job", "what"),
    [
        # another call as that number, which might be the next one of the others or none of theirs
        (apart("all_gather"), "all_gather #7 on group default_pg"),
        (apart("barrier"), "all_gather #7 on group default_pg"),
        # a circle of two groups
        (apart("barrier", "1"), "all_gather #4 on group default_pg"),
    ],
)
def test_a_condition_on_the_rank_comes_before_what_recorders_show(job: Job, what: str) -> None:
    others = inside(c10d("all_reduce", at=57), LOOP)
    found = judge(waiting(job, {0: others, 1: others, 2: GATHER}))
    assert found[0].cause == "rank-conditional-collective"
    assert [one.rank for one in found[0].culprits] == [2]
    assert f" alone waits in {what} at " in found[0].summary
    assert any(fact.source == "flight" for fact in found[0].evidence)
    assert all(one.confidence <= 0.75 for one in found[1:])


@pytest.mark.parametrize("job", [apart("all_gather", "1"), crossed(3, 2)])
def test_what_all_call_in_turn_is_in_another_order_under_a_condition(job: Job) -> None:
    others = inside(c10d("all_reduce", at=57), LOOP)
    first = judge(waiting(job, {0: others, 1: others, 2: GATHER}))[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("group-order-inversion", [2])
    assert "is in another branch than the others, under `if self.rank == 2:`" in first.summary


def test_a_condition_on_the_rank_says_nothing_where_another_rank_differs() -> None:
    job = Job(4, with_frames=False, backend="gloo").call("all_reduce")
    job.call("all_reduce", [0, 1, 2], done=False).call("barrier", [3], done=False)
    alike, odd = inside(c10d("all_reduce", at=57), LOOP), inside(c10d("barrier", at=60), LOOP)
    under = inside(c10d("all_reduce", at=55), LOOP, MAIN)
    found = judge(waiting(job, {0: alike, 1: alike, 2: under, 3: odd}))
    assert found[0].cause == "mismatched-collective"
    assert [[one.rank for one in verdict.culprits] for verdict in found] == [[3]]


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_ranks_the_one_under_a_condition_is_blamed(odd: int) -> None:
    job = Job(2, with_frames=False, backend="gloo").call("all_reduce")
    job.call("all_reduce", [1 - odd], done=False).call("all_gather", [odd], done=False)
    other = inside(c10d("all_reduce", at=57), LOOP)
    found = judge(waiting(job, {odd: GATHER, 1 - odd: other}))
    assert found[0].cause == "rank-conditional-collective"
    assert [one.rank for one in found[0].culprits] == [odd]
    assert all(one.confidence < 0.5 for one in found[1:])


def test_who_has_left_the_loop_over_data_comes_before_what_recorders_show() -> None:
    job = Job(3, with_frames=False, backend="gloo").call("all_reduce").call("all_reduce")
    job.call("all_reduce", [0, 1], done=False).call("barrier", [2], done=False)
    data = (50, "for x, y in loader:")
    train, after = inside(BACKWARD, data), inside(c10d("barrier", at=80))
    found = judge(waiting(job, {0: train, 1: train, 2: after}))
    assert (found[0].cause, found[0].confidence) == ("uneven-inputs", 0.95)
    assert "waits in barrier #3 on group default_pg at train.py:80" in found[0].summary
    assert any(fact.source == "flight" for fact in found[0].evidence)
    assert (found[1].cause, found[1].confidence) == ("mismatched-collective", 0.75)


def test_of_two_ranks_the_one_in_a_branch_of_its_own_is_blamed() -> None:
    stacks = {0: inside(EXPERTS, LOOP), 1: inside(SHARDS, LOOP, ORDER)}
    [one] = judge(waiting(crossed(2, 1), stacks))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (
        "group-order-inversion",
        [1],
    )
    assert "under `if self.first:` (line 54)" in one.summary
    [one] = judge(waiting(crossed(2, 1)))
    assert [culprit.rank for culprit in one.culprits] == [0, 1]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        # in the branch of those who did as always
        (inside(SHARDS, LOOP, (54, "else: if self.first:")), inside(EXPERTS, LOOP, ORDER)),
        # further up: it is the other one that went past
        (inside(EXPERTS, LOOP), inside(SHARDS, LOOP)),
    ],
)
def test_of_two_ranks_none_is_blamed_where_the_program_speaks_against_it(
    mine: Stack, theirs: Stack
) -> None:
    [one] = judge(waiting(crossed(2, 1), {0: theirs, 1: mine}))
    assert one.cause == "group-order-inversion"
    assert [culprit.rank for culprit in one.culprits] == [0, 1]


def test_who_has_left_the_loop_in_which_others_wait_went_on_without_them() -> None:
    # GIVEN pairs of ranks in the loop, and two that are through: one of them is still waited for
    groups = {"1": ("ep", (2, 3)), "2": ("dp", (0, 2))}
    job = Job(4, groups, "gloo", with_frames=False)
    job.call("all_to_all", group="1").call("all_reduce", group="2")
    job.call("all_to_all", [2], "1", done=False).call("all_reduce", [0], "2", done=False)
    job.call("barrier", [1, 3], done=False)
    within = inside(c10d("all_to_all", at=55), LOOP), inside(EXPERTS, LOOP), inside(BARRIER)
    stacks = {0: within[1], 1: within[2], 2: within[0], 3: within[2]}
    first, *_ = judge(waiting(job, stacks))
    assert (first.cause, [one.rank for one in first.culprits]) == ("missing-collective", [3])
    assert "through with the loop at train.py:50" in first.summary


def test_all_circles_that_recorders_show_are_told() -> None:
    # GIVEN pairs of ranks of which both receive first
    job = Job(4)
    for rank in range(4):
        job.call("recv", [rank], peer=rank ^ 1, done=False)
    (one,) = judge(waiting(job, dict.fromkeys(range(4), c10d("recv"))))
    assert (one.cause, [c.rank for c in one.culprits]) == ("p2p-deadlock", [0, 1, 2, 3])
    assert "anks 0-1 wait for one another in a circle" in one.summary
    assert "anks 2-3 wait for one another in a circle" in one.summary


def test_a_circle_is_proof_without_the_recorders_of_the_others() -> None:
    world = waiting(crossed(3, 2))
    world.waiters(1)
    found = judge(world)
    assert (found[0].cause, [one.rank for one in found[0].culprits]) == (
        "group-order-inversion",
        [2],
    )


def test_a_recorder_that_is_off_says_nothing_of_its_rank() -> None:
    # GIVEN a rank whose recorder holds no entry, at another line than all others
    job = Job(3, {"1": ("ep", (0, 1, 2))}, "gloo")
    job.call("all_reduce", [0, 1], "1").call("all_reduce", [0, 1], "1", done=False)
    found = judge(waiting(job, {2: BARRIER}))
    # THEN it is not told that it has nothing in flight
    assert found[0].cause == "mismatched-collective"


@pytest.mark.parametrize(
    ("field", "cause"),
    [({"sizes": [[4]]}, "mismatched-size"), ({"dtype": "Half"}, "mismatched-dtype")],
)
def test_equal_calls_with_other_tensors(field: dict[str, object], cause: str) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 3], done=False)
    job.call("all_reduce", [2], done=False, **field)  # type: ignore[arg-type]
    [one] = judge(waiting(job))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (cause, [2])


def test_other_sizes_at_another_line_are_another_call() -> None:
    # GIVEN a rank that left out some steps, so that its metrics meet the gradients of the others
    job = Job(4, backend="gloo", with_frames=False)
    job.call("all_reduce").call("all_reduce", [0, 1, 3], done=False)
    job.call("all_reduce", [2], done=False, sizes=[[4]])
    [one] = judge(waiting(job, {2: c10d("all_reduce", at=57)}))
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == ("mismatched-collective", [2])
    assert one.confidence == 0.95


def test_a_file_from_before_the_hang_is_no_evidence() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    [one] = judge(waiting(job, source="file", at=HUNG_SINCE - 60))
    assert one.cause == "unknown"
    [one] = judge(waiting(job, source="file", at=HUNG_SINCE + 60))
    assert one.cause == "all-joined-transport"


def test_a_group_that_only_some_ranks_make() -> None:
    world = World()
    world.waiters(2, NEW_GROUP)
    world.waiters(6)
    [one] = judge(world)
    assert (one.cause, [culprit.rank for culprit in one.culprits]) == (
        "subset-new-group",
        [2, 3, 4, 5, 6, 7],
    )
    assert "called by 2 of 8 ranks (ranks 0-1)" in one.summary
    assert "setup" in one.next_steps[0]


@pytest.mark.parametrize(("odd", "confidence"), [(1, 0.8), (3, 0.45)])
def test_groups_that_are_made_in_another_order(odd: int, confidence: float) -> None:
    # GIVEN one helper that makes groups, called from two lines
    helper = (*NEW_GROUP[:2], frame("make", "train.py", 8))
    world = World()
    world.waiters(3, (*helper, *user("setup", 12)))
    world.waiters(odd, (*helper, *user("setup", 13)))
    [one] = judge(world)
    assert one.cause == "subset-new-group"
    assert [culprit.rank for culprit in one.culprits] == list(range(3, 3 + odd))
    assert one.confidence == confidence


def test_a_rank_in_a_library_of_its_own_waits_if_its_recorder_says_so() -> None:
    """It sleeps in C code on a line that does not tell, and another thread of it waits, too."""
    telemetry = (frame("Condition.wait", "py:threading.py", 327), frame("send", "stats.py", 9))
    for pending in (True, False):
        job = Job(3, backend="gloo").call("all_reduce")
        job.call("all_gather", [0, 1], done=False).call("all_gather", [2], done=not pending)
        world = waiting(job)
        world.ranks.pop()
        recorder = Recorder(NOW, "server", trace=trace_of(reduce(job.dump(2)), 2, "test"))
        others = [("telemetry", 4021, telemetry, False)]
        stack = user("exchange", 9, "engine.sync(gradients)")
        world.add(stack, FUTEX, recorder=recorder, sample={"others": others})
        assert (judge(world)[0].cause == "lock-wait") is not pending


def test_who_waits_in_a_send_that_recorders_do_not_show_is_not_blamed_for_what_it_lacks() -> None:
    # GIVEN rank 0 waits for rank 1, which waits for rank 2, and that for rank 3, which is elsewhere
    job = Job(4, {"1": ("dp", (0, 1)), "2": ("dp", (2, 3))}).call("all_reduce")
    job.call("all_reduce", [0], "1", done=False).call("all_reduce", [3], "2", done=False)
    recv = c10d("recv", 2799, 60)
    passing = (*recv[:2], frame("recv_backward", "pipe.py", 30), *recv[2:])
    first = judge(waiting(job, {1: passing, 2: passing}))[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("p2p-chain", [3])


@pytest.mark.parametrize("frames", [True, False])
@pytest.mark.parametrize(("often", "size"), [(2, 5), (2, 9), (1, 5), (2, 7)])
def test_who_is_through_with_a_call_of_another_size_is_at_another_line_now(
    often: int, size: int, frames: bool
) -> None:
    job = Job(3, with_frames=frames, backend="gloo")
    for _ in range(3):
        for _ in range(often):
            job.call("all_reduce", sizes=[[7]], line=65).call("all_reduce", sizes=[[9]], line=65)
        job.call("all_reduce", sizes=[[3]], line=29)
    job.call("all_reduce", sizes=[[7]], line=65).call("all_reduce", sizes=[[9]], line=65)
    job.call("all_reduce", [0], sizes=[[size]], line=29, done=False)
    job.call("all_reduce", [1, 2], sizes=[[3]], line=29)
    job.call("all_reduce", [1, 2], sizes=[[7]], line=65, done=False)
    stacks = {0: c10d("all_reduce", at=29)} | {n: c10d("all_reduce", at=65) for n in (1, 2)}
    one = judge(waiting(job, stacks))[0]
    # without stacks of calls, what the others issued next, or one of every round, tells less
    told = frames or (often, size) in ((2, 5), (2, 9))
    assert (one.cause == "mismatched-size") == told
    assert [culprit.rank for culprit in one.culprits] == [0]


def test_another_type_before_says_more_than_where_ranks_are_now() -> None:
    job = Job(3, backend="gloo", with_frames=False).call("all_reduce").call("barrier")
    for _ in range(5):
        job.call("all_reduce", [0, 1], sizes=[[64]])
        job.call("all_reduce", [2], sizes=[[128]], dtype="Half")
    job.call("all_reduce", [0, 1], sizes=[[64]], done=False).call("barrier", [2], done=False)
    [one] = judge(waiting(job, {2: BARRIER}))
    assert (one.cause, one.confidence) == ("mismatched-dtype", 0.9)
    assert [culprit.rank for culprit in one.culprits] == [2]
    assert "rank 2 issued all_reduce #3 on default_pg with another data type" in one.summary
