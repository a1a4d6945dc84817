"""Ranks that wait for one another in a circle of groups, and who of them left a call out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.flight import Job, Run, Step, blamed, judge

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict


def test_groups_in_another_order_are_a_circle() -> None:
    groups = {"1": ("ep", (0, 1, 2, 3)), "2": ("dp", (0, 1, 2, 3))}
    job = Job(4, groups).call("all_reduce", [0, 1], "1", done=False)
    job.call("all_reduce", [2, 3], "2", done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("group-order-inversion", [0, 1, 2, 3])
    assert "ranks 0-1 wait in all_reduce #1 on ep (1) for ranks 2-3" in one.summary


def test_only_those_in_the_circle_are_to_blame() -> None:
    groups = {"1": ("world", (0, 1, 2, 3)), "2": ("pair", (0, 1))}
    job = Job(4, groups).call("all_reduce", [0, 2, 3], "1", done=False)
    job.call("all_reduce", [1], "2", done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("group-order-inversion", [0, 1])
    assert one.victims == (2, 3)
    assert (
        "ranks 0-1 wait for one another in a circle: rank 0 waits in all_reduce #1" in one.summary
    )


def test_groups_in_another_order_all_enqueued() -> None:
    """NCCL enqueues both without waiting: everybody has joined everything."""
    groups = {"1": ("ep", (0, 1)), "2": ("dp", (0, 1))}
    job = Job(2, groups)
    for rank, order in ((0, "12"), (1, "21")):
        for group in order:
            job.call("all_reduce", [rank], group, done=False)
    (one,) = judge(job.dumps())
    assert one.cause == "group-order-inversion"


def test_a_rank_that_went_on_in_another_group_is_blamed_for_what_it_left_out() -> None:
    groups = {"1": ("ep", (0, 1, 2)), "2": ("dp", (0, 1, 2))}
    program = [Step("all_reduce", "1", line=5), Step("all_gather", "2", line=6)] * 4
    programs = {rank: list(program) for rank in range(3)}
    del programs[1][4]
    (one,) = judge(Run(Job(3, groups), programs).go().dumps())
    assert (one.cause, blamed(one)) == ("missing-collective", [1])


@pytest.mark.parametrize("with_frames", [True, False])
def test_who_left_one_of_two_alike_calls_out_is_told_by_earlier_rounds(with_frames: bool) -> None:
    """Tensor parallel groups reduce forward and backward, and rank 3 froze what is below."""
    groups = {"1": ("tp", (0, 1)), "2": ("tp", (2, 3)), "3": ("dp", (0, 2)), "4": ("dp", (1, 3))}

    def step(tensor: str, data: str) -> list[Step]:
        forth, back = Step("all_reduce", tensor, line=5), Step("all_reduce", tensor, line=9)
        return [forth, back, Step("all_reduce", data, line=12), Step("all_reduce", line=15)]

    programs = {rank: step("12"[rank // 2], "34"[rank % 2]) * 4 for rank in range(4)}
    del programs[3][13]
    job = Run(Job(4, groups, with_frames=with_frames), programs).go()
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("missing-collective", [3])
    assert "rank 3 went on without all_reduce #8 on tp (2)" in one.summary


def test_one_of_several_alike_calls_that_comes_later_is_put_off_and_not_left_out() -> None:
    """Experts dispatch and combine by the same call, and two ranks reduce before they dispatch."""
    groups = {"1": ("ep", (0, 1)), "2": ("ep", (2, 3)), "3": ("dp", (0, 2)), "4": ("dp", (1, 3))}

    def step(rank: int) -> list[Step]:
        sends = Step("all_to_all", "12"[rank // 2])
        return [sends, Step("all_reduce", "34"[rank % 2]), sends]

    programs = {rank: step(rank) * 4 for rank in range(4)}
    for rank in (1, 2):
        sends, reduces, _ = step(rank)
        programs[rank][9:] = [reduces, sends, sends]
    job = Run(Job(4, groups, with_frames=False), programs).go()
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("group-order-inversion", [0, 1, 2, 3])


@pytest.mark.parametrize("with_frames", [True, False])
def test_a_rank_that_comes_another_way_takes_another_order(with_frames: bool) -> None:
    """In a branch of its own it is first in the second group: no step was left out."""
    groups = {"1": ("ep", (0, 1, 2)), "2": ("dp", (0, 1, 2))}
    job = Job(3, groups, with_frames=with_frames)
    for _ in range(3):
        job.call("all_reduce", group="1", line=5).call("all_gather", group="2", line=6)
    job.call("all_reduce", [0, 1], "1", line=5, done=False)
    job.call("all_gather", [2], "2", line=9, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("group-order-inversion", [2])
    # Without call sites, it may have left it out as well.
    assert ("or went on without all_reduce #4 on ep (1)" in one.summary) is not with_frames


def left_out(program: str, rank: int, call: int) -> Verdict:
    """The verdict where a rank leaves one of its calls out: `g2` is an all_gather on group 2."""
    groups = {"1": ("ep", (0, 1, 2)), "2": ("dp", (1, 2, 3, 4))}
    members = {"0": range(5), "1": range(3), "2": range(1, 5)}
    ops = {"r": "all_reduce", "g": "all_gather"}
    steps = [Step(ops[one[0]], one[1], ((8,),), 10) for one in program.split()]
    own = {r: [step for step in steps if r in members[step.group]] for r in range(5)}
    del own[rank][call]
    return judge(Run(Job(5, groups), own).go().dumps())[0]


def test_who_is_only_held_up_by_a_circle_has_not_caused_it() -> None:
    """Ranks 3 and 4 are in an all_gather that comes later, and nobody in the circle needs them."""
    first = left_out("r0 r0 g0 r0 g2 r0 r0 r0 r1 g2 g0", rank=0, call=7)
    assert 0 in blamed(first)
    assert first.cause == "group-order-inversion"


def test_a_round_of_alike_calls_is_not_compared_with_a_part_of_itself() -> None:
    """Rank 2 made three all_gathers in a row, as it should; that is no earlier round of two."""
    first = left_out("g2 r1 g2 g2 g2 r1", rank=1, call=2)
    assert 1 in blamed(first)
    assert first.cause == "group-order-inversion"


def test_one_earlier_round_is_no_habit() -> None:
    """Rank 1 leaves its third broadcast on ep out; rank 2 is as it should be, once otherwise."""
    groups = {"1": ("ep", (0, 1, 2)), "2": ("dp", (1, 2, 3, 4))}
    called = ("0", "0", "0", "1", "2", "0", "1", "0", "1", "2")
    program = [Step("all_gather" if one == "0" else "broadcast", one) for one in called]
    members = {"0": range(5), "1": (0, 1, 2), "2": (1, 2, 3, 4)}
    programs = {rank: [s for s in program if rank in members[s.group]] for rank in range(5)}
    del programs[1][8]
    (one,) = judge(Run(Job(5, groups), programs).go().dumps())
    assert (one.cause, blamed(one)) == ("group-order-inversion", [1, 2])
    assert "Perhaps rank 2 went on without broadcast #2 on dp (2)" in one.summary


def test_a_rank_in_another_order_differs_more_than_one_whose_rounds_are_irregular() -> None:
    """Ranks 0 and 3 take their two groups in the other order; every fifth step logs, too.

    So ranks 1 and 2 seem to have left out what comes between one log and the next.
    """
    halves = {0: "1", 2: "1", 1: "2", 3: "2"}
    pairs = {0: "3", 1: "3", 2: "4", 3: "4"}
    groups = {"1": ("", (0, 2)), "2": ("", (1, 3)), "3": ("", (0, 1)), "4": ("", (2, 3))}
    programs: dict[int, list[Step]] = {}
    for rank in range(4):
        own = programs[rank] = []
        for step in range(9):
            own.append(Step("all_reduce", "0"))
            order = [Step("all_reduce", one[rank], line=7) for one in (halves, pairs)]
            own += reversed(order) if step == 8 and rank in (0, 3) else order
            own += [Step("all_reduce", "0")] if step % 5 == 0 else []
            own += [Step("broadcast", "0")] * 2 if step == 0 else []  # buckets are built again
    (one,) = judge(Run(Job(4, {"0": ("", range(4)), **groups}), programs).go().dumps())
    assert (one.cause, blamed(one)) == ("group-order-inversion", [0, 1, 2, 3])
    assert "Perhaps ranks 0,3 went on without" in one.summary
