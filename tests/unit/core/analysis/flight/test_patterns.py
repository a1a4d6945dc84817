"""One minimal case for each pattern that flight recorders show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.flight.unlike import same_bytes
from hangtop_core.model.recorder.trace import Call
from support.flight import Job, blamed, judge

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict

TP = {"1": ("tp", (0, 1)), "2": ("tp", (2, 3)), "3": ("dp", (0, 2)), "4": ("dp", (1, 3))}


def test_a_rank_that_did_not_issue_what_others_wait_for_is_blamed() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 3], done=False, line=12)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one), one.victims) == ("missing-collective", [2], (0, 1, 3))
    assert "rank 2 did not issue all_reduce #2 on default_pg" in one.summary
    assert any("train.py:12" in fact.text for fact in one.evidence)


def test_the_first_file_is_not_the_reference() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [1, 2, 3], done=False)
    (one,) = judge(job.dumps())
    assert blamed(one) == [0]


def test_victims_of_victims_are_not_blamed() -> None:
    """Rank 3 stops; its tensor group waits for it, and the data groups wait for that group."""
    job = Job(4, TP).call("all_reduce", [2], group="2", done=False)
    job.call("all_reduce", [0], group="3", done=False).call("all_reduce", [1], "4", done=False)
    (one,) = judge(job.dumps())
    assert (blamed(one), one.victims) == ([3], (0, 1, 2))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"op": "broadcast"}, "mismatched-collective"),
        ({"sizes": [[16]]}, "mismatched-size"),
        ({"dtype": "Half"}, "mismatched-dtype"),
    ],
)
def test_the_minority_is_blamed_for_a_mismatch(change: dict[str, object], cause: str) -> None:
    job = Job(4).call("all_reduce")
    job.call("all_reduce", [0, 2, 3], done=False)
    job.call(**{"op": "all_reduce", "ranks": [1], "done": False, **change})  # type: ignore[arg-type]
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == (cause, [1])
    assert set(one.victims) == {0, 2, 3}


def mixed(rounds: int = 1, numbers: int = 2, op: str = "all_reduce") -> Job:
    """Rank 2 reduces as many bytes as others, of half as long numbers; then they come apart."""
    job = Job(3, backend="gloo")
    for _ in range(3):
        job.call("all_reduce", sizes=[[4096]]).call("all_reduce", sizes=[[4096]]).call("barrier")
    for _ in range(rounds):
        for _ in range(numbers):
            job.call(op, [0, 1], sizes=[[4096]])
            job.call(op, [2], sizes=[[8192]], dtype="BFloat16")
    return job


def hung(job: Job) -> Verdict:
    job.call("all_reduce", [0, 1], sizes=[[4096]], done=False).call("barrier", [2], done=False)
    (one,) = judge(job.dumps())
    return one


def test_the_first_fault_is_another_type_that_went_through() -> None:
    one = hung(mixed())
    assert (one.cause, blamed(one), one.victims) == ("mismatched-dtype", [2], (0, 1))
    assert one.confidence == 0.9
    assert one.summary.startswith(
        "rank 2 issued all_reduce #10 on default_pg with another data type than most, and it went "
        "on (as many bytes, and types are not compared): ranks 0-1 issued all_reduce [[4096]] "
        "Float at user/train.py:10 (step); rank 2 issued all_reduce [[8192]] BFloat16 at"
    )
    assert "since #12 they wait in calls that do not belong together: ranks 0-1" in one.summary


@pytest.mark.parametrize(
    "inputs", ["[[1e999]]", "[[Infinity]]", '[["a", 9]]', "[[8], [8]]", "[" * 5000, "8", ""]
)
def test_bytes_of_inputs_that_are_no_sizes_are_not_known(inputs: str) -> None:
    made = Call("nccl:all_reduce", inputs, "[[8]]", "['Float']")
    assert not same_bytes(made, made)


def test_another_type_in_the_very_first_operation() -> None:
    job = Job(3, backend="gloo").call("all_reduce", [0, 2], sizes=[[]], dtype="Long")
    job.call("all_reduce", [1], sizes=[[]], dtype="Double")
    job.call("all_reduce", [0, 2], sizes=[[3, 24]], done=False).call("barrier", [1], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("mismatched-dtype", [1])


def test_another_type_after_which_ranks_agreed_is_less_sure() -> None:
    one = hung(mixed().call("all_gather"))
    assert (one.cause, blamed(one), one.confidence) == ("mismatched-dtype", [2], 0.6)


def test_other_types_that_ranks_have_lived_with_are_not_the_fault() -> None:
    job = mixed().call("all_gather")
    job.call("all_reduce", [0, 1]).call("all_reduce", [2], dtype="Int").call("all_gather")
    assert hung(job).cause == "mismatched-collective"


@pytest.mark.parametrize("op", ["all_to_all", "scatter", "gather", "allreduce_coalesced"])
def test_calls_that_may_differ_by_rank_are_no_fault(op: str) -> None:
    assert hung(mixed(op=op)).cause != "mismatched-dtype"


def test_a_rank_that_came_apart_without_another_type_is_not_of_it() -> None:
    job = mixed().call("all_reduce", [0, 2], done=False).call("barrier", [1], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("mismatched-collective", [1])


def test_a_step_left_out_is_not_another_type() -> None:
    job = Job(3)
    for _ in range(3):
        job.call("all_reduce", sizes=[[1]]).call("all_reduce", sizes=[[1]], dtype="Int")
    job.call("all_reduce", [0, 1], sizes=[[1]])
    job.call("all_reduce", [0, 1], sizes=[[1]], dtype="Int", done=False)
    job.call("all_reduce", [2], sizes=[[1]], dtype="Int").call("barrier", [2], done=False)
    (one,) = judge(job.dumps())
    assert one.cause != "mismatched-dtype"


def test_another_line_is_another_call() -> None:
    job = mixed(0)
    job.call("all_reduce", [0, 1]).call("all_reduce", [2], dtype="Int", line=44)
    assert hung(job).cause == "mismatched-collective"


def test_all_to_all_may_differ_in_sizes() -> None:
    job = Job(2).call("all_to_all", [0], done=False, sizes=[[3]])
    job.call("all_to_all", [1], done=False, sizes=[[5]])
    assert judge(job.dumps())[0].cause == "all-joined-transport"


def test_two_halves_give_no_sure_majority() -> None:
    job = Job(2).call("all_reduce", [0], done=False).call("broadcast", [1], done=False)
    (one,) = judge(job.dumps())
    assert one.cause == "mismatched-collective"
    assert one.confidence < 0.5


def test_three_equal_parts_are_no_halves() -> None:
    job = Job(3).call("all_reduce", [0], done=False).call("broadcast", [1], done=False)
    (one,) = judge(job.call("barrier", [2], done=False).dumps())
    assert one.summary.startswith("ranks 1-2 are in another call than rank 0 as #1")


def test_all_joined_rules_out_the_code() -> None:
    job = Job(4).call("all_reduce").call("all_gather", done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one), one.victims) == ("all-joined-transport", [], (0, 1, 2, 3))
    assert "Ruled out: a rank that stays away" in one.summary


def test_what_is_over_on_some_blames_the_others() -> None:
    job = Job(4).call("all_reduce", [0, 1, 3]).call("all_reduce", [2], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("all-joined-transport", [2])


@pytest.mark.parametrize("over", [[2], []])
@pytest.mark.parametrize(
    ("op", "unsaid"),
    [("broadcast", "its root"), ("gather", "its root"), ("all_to_all", "how they split it")],
)
def test_what_recorders_do_not_hold_is_not_ruled_out(op: str, unsaid: str, over: list[int]) -> None:
    job = Job(3).call("all_reduce").call(op, over)
    job.call(op, [rank for rank in range(3) if rank not in over], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("all-joined-transport", [])
    assert unsaid in one.summary
    assert one.confidence < 0.6


def test_both_receive_first() -> None:
    job = Job(2).call("recv", [0], peer=1, done=False).call("recv", [1], peer=0, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("p2p-deadlock", [0, 1])


def test_the_head_of_a_chain_is_blamed() -> None:
    job = Job(4).call("recv", [3], peer=2, done=False).call("recv", [2], peer=1, done=False)
    job.call("recv", [1], peer=0, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one), one.victims) == ("p2p-chain", [0], (1, 2, 3))


def test_sends_and_recvs_are_matched_by_group_rank() -> None:
    groups = {"1": ("pp", (1, 3))}
    job = Job(4, groups).call("send", [1], "1", done=False, peer=3)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("p2p-chain", [3])


def test_matched_sends_that_differ_in_size() -> None:
    job = Job(2).call("send", [0], peer=1, done=False, sizes=[[4]])
    job.call("recv", [1], peer=0, done=False, sizes=[[8]])
    (one,) = judge(job.dumps())
    assert one.cause == "mismatched-size"


def test_a_send_behind_a_collective_with_the_same_number() -> None:
    job = Job(2).call("all_reduce", group="0").call("send", [0], peer=1, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("p2p-chain", [1])


def test_a_rank_without_a_dump_is_suspected_with_less_confidence() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=False)
    (one,) = judge(job.dumps([0, 1, 3]))
    assert (one.cause, blamed(one), one.confidence) == ("missing-collective", [2], 0.6)
    assert "left no dump" in one.summary


def test_ranks_whose_dumps_were_not_collected_are_not_blamed() -> None:
    job = Job(8).call("all_reduce").call("all_reduce", done=False)
    assert judge(job.dumps([0, 1, 2, 3])) == []


def test_a_rank_with_a_dump_that_stays_away_is_blamed_before_one_without() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1], done=False)
    first, *_ = judge(job.dumps([0, 1, 3]))
    assert blamed(first) == [3]


def test_nothing_in_flight_gives_no_verdict() -> None:
    assert judge(Job(3).call("all_reduce").call("barrier").dumps()) == []


def test_of_a_deep_queue_the_oldest_operation_is_the_hang() -> None:
    job = Job(4).call("all_reduce", [0, 1, 2], done=False, line=7)
    for _ in range(300):
        job.call("all_gather", [0, 1, 2], done=False, line=8)
    (one,) = judge(job.dumps())
    assert blamed(one) == [3]
    assert "all_reduce #1" in one.summary
    assert any("oldest of 301 operations" in fact.text for fact in one.evidence)


def test_one_rank_alone_in_a_collective() -> None:
    job = Job(8).call("all_reduce").call("all_gather", [0], done=False, line=90)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("rank-conditional-collective", [0])
    assert one.confidence <= 0.6


def test_a_skipped_step_is_found_where_it_happened() -> None:
    """Calls alternate; rank 1 leaves one out, and is noticed two numbers later."""
    job = Job(3)
    for line in (10, 11, 10, 11):
        job.call("all_reduce", line=line)
    for line in (10, 11, 10):
        job.call("all_reduce", [0, 2], line=line)
    for line in (11, 10, 11):
        job.call("all_reduce", [1], line=line)
    job.call("all_reduce", [0, 2], line=11, done=False)
    job.call("barrier", [1], line=50, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("missing-collective", [1])
    assert "rank 1 skipped all_reduce #5 at user/train.py:10 (step)" in one.summary
    assert "noticed as #8" in one.summary
    assert "once more" not in one.summary


def test_a_skipped_step_among_alike_ones_is_given_as_a_range() -> None:
    job = Job(3, with_frames=False)
    job.call("broadcast")
    for _ in range(4):
        job.call("all_reduce")
    job.call("all_reduce", [0, 2], done=False).call("barrier", [1], done=False)
    (one,) = judge(job.dumps())
    assert blamed(one) == [1]
    assert one.cause in ("missing-collective", "mismatched-collective")


def test_a_call_too_many() -> None:
    job = Job(4)
    for _ in range(2):
        job.call("all_reduce", line=10).call("all_gather", line=11)
    job.call("broadcast", [3], line=99, done=False)
    job.call("all_reduce", [3], line=10, done=False)
    job.call("all_reduce", [0, 1, 2], line=10, done=False)
    job.call("all_gather", [0, 1, 2], line=11, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("rank-conditional-collective", [3])


def test_a_call_that_all_make_now_and_then_is_no_call_too_many() -> None:
    """One number differs, and nothing follows it: a rank may have left out one before, too."""
    job = Job(3, with_frames=False)
    for _ in range(2):
        job.call("all_reduce").call("all_reduce").call("all_gather")
    job.call("all_reduce").call("all_reduce", [0, 2], done=False)
    job.call("all_gather", [1], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("mismatched-collective", [1])
    assert not any("one number" in fact.text for fact in one.evidence)


def test_one_operation_is_no_sequence() -> None:
    job = Job(3)
    for _ in range(3):
        job.call("all_reduce").call("all_gather")
    job.call("all_reduce", [0, 2], done=False).call("all_gather", [1], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("missing-collective", [1])
    (differs,) = (fact.text for fact in one.evidence if "first number" in fact.text)
    assert "one number early" not in differs
    assert differs.endswith("; on the others the one here comes next after that")
    # It has issued the same before, and nothing after it tells which of both was too many.
    assert "rank 1 skipped all_reduce #7" in one.summary
    assert "(or issued all_gather once more before it)" in one.summary


def test_numbers_that_recorders_have_lost_tell_of_no_habit() -> None:
    """What came after a like call is lost, or came last of all."""
    job = Job(3, with_frames=False)
    for op in ("all_gather", "all_reduce", "broadcast", "barrier"):
        job.call(op)
    job.call("all_reduce", [0, 2], done=False).call("broadcast", [1], done=False)
    dumps = job.dumps()
    (one,) = judge(dumps)
    assert (one.cause, blamed(one)) == ("missing-collective", [1])
    for dump in dumps.values():
        dump["entries"] = [one for one in dump["entries"] if one["collective_seq_id"] != 3]
    (one,) = judge(dumps)
    assert (one.cause, blamed(one)) == ("mismatched-collective", [1])


def test_of_what_followed_a_like_call_the_latest_counts() -> None:
    job = Job(3, with_frames=False)
    for op in ("all_reduce", "broadcast", "all_gather", "reduce", "barrier", "gather"):
        job.call(op)
    job.call("all_reduce").call("scatter")
    job.call("all_reduce", [0, 2], done=False).call("scatter", [1], done=False)
    dumps = job.dumps()
    for dump in dumps.values():
        for entry in dump["entries"]:
            entry["collective_seq_id"] += 27  # a set of ten has 32 before 31
    (one,) = judge(dumps)
    assert (one.cause, blamed(one)) == ("missing-collective", [1])


def test_wrapped_rings_are_aligned_by_number_and_not_by_record() -> None:
    job = Job(3, {"1": ("tp", (0, 1))})
    for _ in range(50):
        job.call("all_gather", group="1").call("all_reduce")
    job.call("all_reduce", [0, 2], done=False)
    dumps = {rank: job.dump(rank, last=3 + rank) for rank in range(3)}
    (one,) = judge(dumps)
    assert (one.cause, blamed(one)) == ("missing-collective", [1])


def test_counters_tell_how_far_a_rank_came_that_has_no_entries() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 2], done=False)
    dumps = {rank: job.dump(rank, only_active=True) for rank in range(4)}
    assert dumps[3]["entries"] == []
    (one,) = judge(dumps)
    assert blamed(one) == [3]
    assert any("from its counters" in fact.text for fact in one.evidence)


def test_gloo_entries_that_are_retired_are_over() -> None:
    job = Job(4, backend="gloo").call("all_reduce").call("all_reduce", [0, 1, 3], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("missing-collective", [2])


def test_a_coalesced_block_is_over_when_its_last_entry_is() -> None:
    job = (
        Job(2)
        .call("send", [0], peer=1, state="scheduled")
        .call("recv", [1], peer=0, state="scheduled")
    )
    for rank in (0, 1):
        job.entries[rank][-1]["retired"] = False
        block = dict(job.entries[rank][-1], profiling_name="nccl:coalesced", record_id=1)
        job.entries[rank].append(dict(block, state="completed", retired=True))
    assert judge(job.dumps()) == []


def test_a_block_of_sends_waits_for_each_of_its_parts() -> None:
    """Rank 1 receives from 0 and sends to 2 at once, and 2 does not come."""
    job = Job(3).call("send", [0], peer=1, done=False)
    job.call("recv", [1], peer=0, done=False).call("send", [1], peer=2, done=False)
    job.entries[1][1]["p2p_seq_id"] = 1
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one), one.victims) == ("p2p-chain", [2], (0, 1))


def test_both_ends_posted() -> None:
    job = Job(2).call("send", [0], peer=1, done=False).call("recv", [1], peer=0, done=False)
    (one,) = judge(job.dumps())
    assert one.cause == "all-joined-transport"
    assert "send rank 0 -> rank 1 on default_pg: both have posted their end" in one.summary


@pytest.mark.parametrize(("sends", "recvs"), [(1, 2), (2, 1), (3, 2)])
def test_the_oldest_of_a_pair_has_both_ends_although_one_has_more(sends: int, recvs: int) -> None:
    job = Job(2)
    for _ in range(sends):
        job.call("send", [0], peer=1, done=False)
    for _ in range(recvs):
        job.call("recv", [1], peer=0, done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("all-joined-transport", [])
    assert "send rank 0 -> rank 1 on default_pg: both have posted their end" in one.summary


def test_one_name_for_several_groups() -> None:
    """Subgroups of other ranks may bear the same name: members tell them apart."""
    job = Job(4, {"7": ("tp", (0, 1))})
    job.call("all_reduce", [0], "7", done=False)
    dumps = job.dumps()
    for rank in (2, 3):
        dumps[rank]["pg_config"]["7"] = {"name": "7", "desc": "tp", "ranks": "[2, 3]"}
    (one,) = judge(dumps)
    assert (blamed(one), one.victims) == ([1], (0,))


def test_the_network_and_a_rank_at_once() -> None:
    """Two hangs that have nothing to do with one another are two verdicts, the surer one first."""
    job = Job(4, {"1": ("a", (0, 1)), "2": ("b", (2, 3))})
    job.call("all_reduce", [0], "1", done=False).call("all_reduce", group="2", done=False)
    first, second = judge(job.dumps())
    assert (first.cause, blamed(first)) == ("missing-collective", [1])
    assert second.cause == "all-joined-transport"
    assert second.confidence < 0.5


def test_whoever_put_a_call_off_is_not_said_to_have_left_it_out() -> None:
    """Rank 1 is first in the second group this time: it may come to the first one later."""
    groups = {"1": ("tp", (0, 1)), "2": ("dp", (0, 1))}
    job = Job(2, groups, with_frames=False)
    for _ in range(3):
        job.call("all_reduce", group="1").call("all_gather", group="2").call("all_reduce")
    job.call("all_reduce", [0], "1", done=False).call("all_gather", [1], "2", done=False)
    (one,) = judge(job.dumps())
    assert one.cause == "group-order-inversion"


def test_a_group_of_unknown_members_has_never_been_joined_by_all() -> None:
    """Its first call: others may be members, and the one who is in it lacks elsewhere."""
    job = Job(3, {"1": ("", (0, 1, 2))}, backend="gloo")
    for _ in range(3):
        job.call("all_gather").call("all_reduce")
    job.call("all_gather", [0], "1", done=False).call("all_gather", [1, 2], done=False)
    (one,) = judge(job.dumps())
    assert (one.cause, blamed(one)) == ("rank-conditional-collective", [0])
    assert one.summary.startswith(
        "rank 0 did not issue all_gather #7 on default_pg that ranks 1-2 wait for, and waits in "
        "all_gather #1 on group 1, whose members are not recorded"
    )


def test_who_waits_in_groups_of_unknown_members_says_nothing_of_others() -> None:
    groups = {"1": ("", (0, 1)), "2": ("", (2, 3))}
    job = Job(4, groups, backend="gloo")
    job.call("all_reduce").call("all_reduce", [0], "1", done=False)
    job.call("all_reduce", [2], "2", done=False).call("all_gather", [1, 3], done=False)
    assert "all-joined-transport" not in {one.cause for one in judge(job.dumps())}


def test_members_of_a_group_are_known_by_what_they_are_through_with() -> None:
    groups = {"1": ("", (0, 1)), "2": ("", (2, 3))}
    job = Job(4, groups, backend="gloo")
    for done in (True, False):
        job.call("all_reduce", [0, 1], "1", done=done).call("all_reduce", [2, 3], "2", done=done)
    assert {one.cause for one in judge(job.dumps())} == {"all-joined-transport"}
