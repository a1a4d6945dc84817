"""Where groups stand, what is known of their numbers and members, and when they time out."""

from __future__ import annotations

import msgspec
import pytest

from hangtop_core.analysis.flight.countdown import countdown
from hangtop_core.analysis.flight.groups import GroupLine, group_lines
from hangtop_core.analysis.flight.live import picture
from hangtop_core.analysis.flight.members import attendees
from hangtop_core.analysis.flight.picture import Picture, examine
from hangtop_core.analysis.flight.sequences import NumberLine, number_lines
from hangtop_core.analysis.verdict.engine import diagnose
from support.flight import START_NS, Job, stalled, traces
from support.record import load


def shown(job: Job, **options: object) -> tuple[Picture, dict[str, GroupLine]]:
    seen = examine(traces(job.dumps(**options)))  # type: ignore[arg-type]
    return seen, {one.uid: one for one in group_lines(seen.world, seen.waits)}


def numbers(seen: Picture, line: GroupLine) -> dict[str, NumberLine]:
    return {one.key: one for one in number_lines(seen.world, seen.waits, line.index)}


def test_the_group_where_it_begins_comes_first_and_the_others_name_it() -> None:
    seen, by_uid = shown(stalled())
    lines = group_lines(seen.world, seen.waits)
    assert [one.uid for one in lines] == ["1", "2", "3", "0"]
    assert [one.stage for one in lines] == ["missing", "missing", "recv waits", "unused"]
    assert [one.first for one in lines] == [True, False, False, False]
    assert [one.behind for one in lines] == [(), ("tp (1)",), ("tp (1)",), ()]
    tensor = by_uid["1"]
    assert tensor.operation is not None
    assert (tensor.newest, tensor.done, tensor.operation.missing) == (4, 3, (2,))


def test_counts_tell_how_far_all_are_even_where_a_ring_has_lost_entries() -> None:
    job = stalled()
    whole, lines = shown(job)
    found = numbers(whole, lines["1"])
    assert [(one.enqueued, one.done) for one in found.values()] == [(4, 4)] * 3 + [(3, 0)]
    assert (found["#4"].stage, found["#3"].stage) == ("missing", None)
    assert found["#4"].last_ns - found["#4"].first_ns == 3, "ranks 0 and 3, by their clocks"
    short = examine(traces({r: job.dump(r, last=1 if r == 3 else None) for r in job.entries}))
    (line,) = (one for one in group_lines(short.world, short.waits) if one.uid == "1")
    again = numbers(short, line)
    assert [(one.enqueued, one.done) for one in again.values()] == [(4, 4)] * 3 + [(3, 0)]


def test_sends_stand_below_the_numbers_with_their_two_ends() -> None:
    seen, lines = shown(stalled())
    (send,) = numbers(seen, lines["3"]).values()
    assert (send.key, send.seq, send.size, send.enqueued) == ("1>5", None, 2, 1)
    ends = attendees(seen.world, lines["3"].index, None, send.operation)
    assert [(one.rank, one.how) for one in ends] == [(1, "not"), (5, "joined")]


def test_a_send_that_both_ends_have_joined_waits_for_neither() -> None:
    job = Job(2).call("send", [0], peer=1, done=False)
    job.call("recv", [1], peer=0, done=False).call("recv", [1], peer=0, done=False)
    _, lines = shown(job)
    assert lines["0"].stage == "not through"


def test_every_member_is_told_by_how_far_it_came() -> None:
    job = Job(6)
    job.call("all_reduce").call("all_reduce", [0, 1, 2, 3, 4], done=False)
    job.entries[1][-1].update(state="completed", retired=True)
    job.entries[3][-1].update(profiling_name="nccl:broadcast")
    seen, lines = shown(job, ranks=[0, 1, 2, 3, 5])
    line = lines["0"]
    assert line.stage == "mismatch"
    number = numbers(seen, line)["#2"]
    told = attendees(seen.world, line.index, 2, number.operation)
    assert {one.rank: one.how for one in told} == {
        0: "joined", 1: "over", 2: "joined", 3: "differs", 4: "absent", 5: "not",
    }  # fmt: skip
    assert (number.enqueued, number.done, number.unknown) == (4, 1, 1)
    assert [(call.op, count) for call, count in number.others] == [("broadcast", 1)]


def test_a_circle_is_named_as_one() -> None:
    job = Job(2, {"1": ("tp", [0, 1]), "2": ("dp", [0, 1])})
    job.call("all_reduce", [0], "1", done=False).call("all_reduce", [1], "2", done=False)
    _, lines = shown(job)
    assert lines["1"].first
    assert lines["2"].first
    assert lines["1"].behind == ("dp (2)", "")


@pytest.mark.parametrize(
    ("done", "stage"), [((), "not through"), ((0,), "partly over"), ((0, 1), "done")]
)
def test_what_all_have_joined(done: tuple[int, ...], stage: str) -> None:
    job = Job(2).call("all_reduce").call("all_reduce", done=False)
    for rank in done:
        job.entries[rank][-1].update(state="completed", retired=True)
    _, lines = shown(job)
    assert lines["0"].stage == stage


def test_ranks_without_a_recorder_are_no_data() -> None:
    _, lines = shown(Job(3).call("all_reduce", [0, 1], done=False), ranks=[0, 1])
    assert lines["0"].stage == "no data"


def test_the_first_operation_to_be_enqueued_times_out_first() -> None:
    seen, _ = shown(stalled())
    found = countdown(seen.waits)
    assert found is not None
    assert (found.rank, found.timeout_s, found.backend) == (0, 600.0, "nccl")
    assert found.operation.label == "tp (1)"
    # Twelve calls before it, a millisecond each; timeout_ms is 600,000.
    assert found.at == pytest.approx(START_NS / 1e9 + 0.012 + 600.0)
    calm, _ = shown(Job(2).call("all_reduce"))
    assert countdown(calm.waits) is None


def test_the_timeout_of_a_group_counts_for_what_waits_in_it() -> None:
    job = stalled()
    for entries in job.entries.values():
        for one in entries:
            one["timeout_ms"] = 90_000 if one["process_group"][0] == "1" else 600_000
    found = countdown(shown(job)[0].waits)
    assert found is not None
    assert (found.timeout_s, found.operation.label) == (90.0, "tp (1)")
    assert found.at == pytest.approx(START_NS / 1e9 + 0.012 + 90.0)


def test_where_members_are_not_recorded_others_may_belong_to_them() -> None:
    job = Job(3, {"1": ("", [1, 2])}, backend="gloo")
    job.call("all_reduce").call("all_reduce", [1], "1", done=False)
    seen, lines = shown(job)
    assert (lines["1"].stage, lines["1"].size, lines["1"].recorded) == ("no data", 1, False)
    told = attendees(seen.world, lines["1"].index, 1, lines["1"].operation)
    assert [(one.rank, one.how) for one in told] == [(1, "joined"), (0, "unsure"), (2, "unsure")]


def test_a_diagnosis_counts_down_while_the_job_stands_still() -> None:
    recorded = load("recorder")
    (job,) = recorded.snapshot.jobs
    found = diagnose(recorded.snapshot, job, 10.0)
    seen = picture(job.ranks)
    assert found.state == "hung"
    assert seen is not None
    first = min(
        e.created_ns for one in seen.waits.operations.values() for e in one.entries.values()
    )
    assert seen.world.traces[0].timeout_ms == 1_800_000, "gloo's default is half an hour"
    left = first / 1e9 + 1800.0 - recorded.snapshot.at
    assert found.watchdog_in_s == pytest.approx(left, abs=0.06)
    late = msgspec.structs.replace(recorded.snapshot, at=recorded.snapshot.at + 3600.0)
    assert diagnose(late, job, 10.0).watchdog_in_s == 0.0
    moving = load("progressing")
    assert diagnose(moving.snapshot, moving.snapshot.jobs[0]).watchdog_in_s is None
