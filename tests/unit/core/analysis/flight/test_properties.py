"""What must hold for any program: leaving one call out blames the rank that did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from support.flight import Job, Run, Step, blamed, judge

if TYPE_CHECKING:
    import random

WORLD = 5
GROUPS = {"1": ("ep", (0, 1, 2)), "2": ("dp", (1, 2, 3, 4)), "3": ("tp", (0, 3, 4))}
OPS = ("all_reduce", "all_gather", "broadcast")

call = st.builds(
    Step,
    st.sampled_from(OPS),
    st.sampled_from(["0", *GROUPS]),
    st.sampled_from([((8,),), ((4, 2),)]),
    st.integers(10, 14),
)
programs = st.lists(call, min_size=1, max_size=12)


def split(program: list[Step]) -> dict[int, list[Step]]:
    """What each rank calls of a program that is written down for all."""
    members = {"0": tuple(range(WORLD)), **{uid: ranks for uid, (_, ranks) in GROUPS.items()}}
    return {rank: [s for s in program if rank in members[s.group]] for rank in range(WORLD)}


@given(programs, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_a_matched_program_ends_in_any_order(program: list[Step], rng: random.Random) -> None:
    order = rng.sample(range(WORLD), WORLD)
    job = Run(Job(WORLD, GROUPS), split(program)).go(order)
    assert judge(job.dumps()) == []


def one_left_out(data: st.DataObject, program: list[Step]) -> tuple[dict[int, list[Step]], int]:
    """What each rank calls, where one of them leaves out a call; and which rank that is."""
    own = split(program)
    rank = data.draw(st.sampled_from([r for r in own if own[r]]))
    del own[rank][data.draw(st.integers(0, len(own[rank]) - 1))]
    return own, rank


@given(st.data(), programs, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_leaving_one_call_out_blames_that_rank(
    data: st.DataObject, program: list[Step], rng: random.Random
) -> None:
    own, rank = one_left_out(data, program)
    order = rng.sample(range(WORLD), WORLD)
    dumps = Run(Job(WORLD, GROUPS), own).go(order).dumps()
    verdicts = judge(dumps)
    assert verdicts, dumps
    first = verdicts[0]
    assert rank in blamed(first), first
    # Where ranks wait for one another in a circle, each could have been the one that went ahead.
    assert blamed(first) == [rank] or first.cause == "group-order-inversion", first
    assert not set(first.victims) & set(blamed(first))


@given(st.data(), programs, st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_the_order_of_files_does_not_matter(
    data: st.DataObject, program: list[Step], rng: random.Random
) -> None:
    own, _ = one_left_out(data, program)
    dumps = Run(Job(WORLD, GROUPS), own).go().dumps()
    gone = data.draw(st.sampled_from([None, *range(WORLD)]))
    dumps.pop(gone, None)
    shuffled = dict(rng.sample(list(dumps.items()), len(dumps)))
    assert judge(shuffled) == judge(dumps)
