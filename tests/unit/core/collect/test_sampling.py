"""Whose stacks, descriptors and recorders are asked for in a round, and how often."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.collect import sample_rate, sampling
from hangtop_core.collect.answers import KEPT_S, outlasts
from hangtop_core.model.meters import Meters
from hangtop_core.model.node.hardware import Gpu
from hangtop_core.model.snapshot import (
    DescriptorTable,
    Failure,
    Frame,
    Process,
    Recorder,
    StackSample,
    Thread,
    ThreadStack,
)
from hangtop_core.model.updates import Options
from hangtop_core.state.job_table import outlier_ranks
from hangtop_core.state.stack_table import StackTable
from hangtop_core.state.tracked import Tracked
from support import build
from support.record import load

NOW = 1.7e9
EVERY = 5.0


def tracked(pid: int = 100, ran: float = 60.0, **fields: Any) -> Tracked:
    """A rank whose main thread ran ``ran`` seconds before `NOW`."""
    whole: dict[str, Any] = {
        "pid": pid,
        "ppid": 1,
        "start": 1,
        "started_at": 0.0,
        "role": "rank",
        "label": "rank 0",
        "state": "S",
        "rank": 0,
        "meters": Meters(main_last_ran_s=ran),
        "threads": (Thread(pid, "python", "S", "futex", "futex"),),
        **fields,
    }
    return Tracked("n1", Process(**whole), NOW)


def with_sample(known: Tracked, age: float, stack: str = "k") -> Tracked:
    threads = (ThreadStack(known.process.pid, "MainThread", False, False, stack),)
    known.take_sample(StackSample(NOW - age, 0.02, "nonblocking", threads), table())
    return known


def table() -> StackTable:
    stacks = StackTable()
    for key in ("k", "other", "third"):
        stacks.add(key, (Frame(key, f"/{key}.py", f"{key}.py", 1),))
    return stacks


def plan(*processes: Tracked, odd: frozenset[int] = frozenset(), **rate: float) -> sampling.Plan:
    return sampling.plan(processes, NOW, sample_rate.Rate(EVERY, **rate), odd)


def test_everything_is_sampled_once() -> None:
    worker = tracked(101, role="dataloader-worker")
    python = tracked(102, role="subprocess", comm="python3")
    shell = tracked(103, role="subprocess", comm="sh", cmdline=("sh",))
    zombie = tracked(104, state="Z")
    left = tracked(105)
    left.leave(NOW, 0)
    assert plan(tracked(), worker, python, shell, zombie, left).sample == [100, 101, 102]


def test_ranks_come_first_and_rounds_are_bounded() -> None:
    workers = [tracked(200 + i, role="dataloader-worker") for i in range(20)]
    ranks = [tracked(100 + i) for i in range(8)]
    sample = plan(*workers, *ranks).sample
    assert sample[:8] == [known.process.pid for known in ranks]
    assert len(sample) == sampling.MAX_SAMPLES


def test_a_rank_that_did_not_run_is_renewed_not_sampled() -> None:
    known = with_sample(tracked(), age=EVERY)
    assert plan(known).renew == [100]
    assert plan(known).sample == []
    assert plan(with_sample(tracked(), age=EVERY - 1)).renew == []


def test_a_sample_is_not_renewed_beyond_what_was_read_of_the_process() -> None:
    known = with_sample(tracked(), age=EVERY)

    def plan_read(age: float) -> tuple[list[int], list[int]]:
        found = sampling.plan([known], NOW, sample_rate.Rate(EVERY), frozenset(), NOW - age)
        return found.renew, found.sample

    assert plan_read(EVERY - 1) == ([100], [])
    assert plan_read(EVERY + 1) == ([], []), "it may have run since: the next reading tells"
    assert plan_read(3 * EVERY) == ([], [100]), "no reading comes"
    rate = sample_rate.Rate(EVERY, silent=2 * EVERY)
    found = sampling.plan([known], NOW, rate, frozenset(), NOW - 3 * EVERY)
    assert (found.renew, found.sample) == ([], []), "its node has said that it rests"


def test_a_launcher_that_polls_in_one_place_is_sampled_ever_more_seldom() -> None:
    def due(age: float, since: float, **fields: Any) -> bool:
        known = with_sample(tracked(role="launcher", **fields), since)
        return bool(plan(with_sample(known, age)).sample)

    assert due(31.0, 60.0, ran=1.0)
    assert not due(29.0, 60.0, ran=1.0)
    assert not due(20.0, 60.0, ran=10.0), "its meters are held back: it does not rest"
    assert not due(100.0, 600.0, ran=1.0)
    assert due(160.0, 600.0, ran=1.0)
    assert due(301.0, 6000.0, ran=1.0)


def test_who_waits_for_hangs_only_looks_at_long_rests() -> None:
    rate = sample_rate.Rate(20.0, rest=15.0)
    for ran, sampled in ((10.0, []), (16.0, [100])):
        known = with_sample(tracked(ran=ran), age=17)
        assert sampling.plan([known], NOW, rate, frozenset()).sample == sampled


def test_ranks_that_move_take_turns_where_that_must_cost_little() -> None:
    rate = sample_rate.Rate(20.0, rest=15.0, apart=10.0)
    ranks = [with_sample(tracked(pid, ran=0.1), age=100 - pid) for pid in (10, 20, 30)]
    assert sampling.plan(ranks, NOW, rate, frozenset()).sample == [10], "whose last one is oldest"
    with_sample(ranks[0], age=1)
    assert sampling.plan(ranks, NOW, rate, frozenset()).sample == []
    assert sampling.plan(ranks, NOW + 9.0, rate, frozenset()).sample == [20]
    rests = with_sample(tracked(40, ran=16.0), age=17)
    assert sampling.plan([*ranks, rests], NOW, rate, frozenset()).sample == [40], "at once"


def test_who_looks_at_a_screen_sees_the_first_half_minute_of_all_ranks() -> None:
    rate = sample_rate.Rate(5.0, 1.0, apart=8.0)
    ranks = [with_sample(tracked(pid, ran=0.1), age=6) for pid in (10, 20)]
    assert sampling.plan(ranks, NOW, rate, frozenset()).sample == [10, 20]
    for one in ranks:
        with_sample(one, age=0)
    later = NOW + sample_rate.EARLY
    for one in ranks:
        one.moved_at = later
    assert sampling.plan(ranks, later, rate, frozenset()).sample == [10]


def test_gpus_stand_still_once_none_has_worked_for_a_while() -> None:
    def still(*worked: float | None) -> bool:
        gpus = [Gpu(index, worked_at=at) for index, at in enumerate(worked)]
        return sample_rate.gpus_are_idle(gpus, NOW, 15.0)

    assert still(NOW - 16.0, NOW - 20.0, None)
    assert not still(NOW - 16.0, NOW - 1.0)
    assert not still(None), "nobody has used it yet"
    assert not still()


def test_what_a_rank_did_since_its_table_was_read_does_not_count_as_rest() -> None:
    rate = sample_rate.Rate(20.0, rest=15.0, apart=10.0)
    ranks = [with_sample(tracked(pid, ran=16.0), age=30) for pid in (10, 20)]
    assert sampling.plan(ranks, NOW, rate, frozenset()).sample == [10, 20]
    assert len(sampling.plan(ranks, NOW, rate, frozenset(), read_at=NOW - 15.0).sample) == 1


def test_a_rank_that_came_to_rest_is_sampled_soon() -> None:
    assert plan(with_sample(tracked(ran=2.5), age=3)).sample == [100]
    assert plan(with_sample(tracked(ran=0.1), age=3)).sample == [], "still moving: in its turn"


def test_what_wakes_up_in_the_same_place_now_and_then_is_not_sampled_every_time() -> None:
    worker = tracked(ran=2.5, role="dataloader-worker")
    for age in (20, 10, 4):
        with_sample(worker, age)
    assert plan(worker).sample == []
    worker.moved_at = NOW - 8
    with_sample(worker, age=9)
    assert plan(worker).sample == [100], "but when it stays at rest"


def test_a_rank_that_moves_on_and_on_is_sampled_ever_less() -> None:
    known = tracked(ran=0.1)
    for _ in range(sampling.STEADY_MOVES):
        with_sample(known, age=EVERY)
    assert plan(known).sample == [100]
    for _ in range(6):
        with_sample(known, age=EVERY)
    assert plan(known).sample == []
    with_sample(known, age=6 * EVERY)
    assert plan(known).sample == [100]


def test_now_and_then_even_a_resting_process_is_really_sampled() -> None:
    known = with_sample(tracked(ran=100), age=sample_rate.REAL_AGAIN + 1)
    known.renew(NOW - EVERY)
    assert plan(known).sample == [100]


def test_failures_are_tried_again_with_growing_waits() -> None:
    known = tracked()
    failure = Failure("timeout", "hangs")
    due = []
    for _ in range(4):
        known.take_sample(StackSample(NOW - 12, 1, "nonblocking", failure=failure), table())
        due.append(bool(plan(known).sample))
    assert due == [True, False, False, False]


@pytest.mark.parametrize("samples", [1, 10, 100_000])
def test_a_process_that_moves_or_fails_for_days_is_sampled_at_the_slowest_rate(
    samples: int,
) -> None:
    moving, failing = with_sample(tracked(ran=0.0), age=3600.0), tracked(101)
    moving.moving_samples = failing.attempts = samples
    failing.full_sample_at = NOW - 3600.0
    assert plan(moving, failing).sample == [101, 100]


def test_descriptors_are_read_of_odd_ranks_and_of_those_that_wait_on_a_file() -> None:
    plain = with_sample(tracked(100), 1)
    odd = with_sample(tracked(101), 1)
    reading = tracked(102, threads=(Thread(102, "python", "S", "pipe_read", "read", 9),))
    disk = tracked(103, threads=(Thread(103, "python", "D", "nfs_wait"),))
    lock = tracked(104, threads=(Thread(104, "python", "S", "locks_lock_inode_wait"),))
    moving = tracked(105, ran=0.1)
    asked = plan(plain, odd, reading, disk, lock, moving, odd=frozenset({101, 105}))
    assert asked.descriptors == [101, 102, 103, 104]
    sleeps = Thread(106, "python", "S", "hrtimer_nanosleep", "clock_nanosleep")
    host = tracked(106, threads=(sleeps, Thread(107, "pt_tcpstore_uv", "S")))
    assert plan(plain, host, tracked(108, threads=(sleeps,))).descriptors == [106]


def test_descriptors_are_read_of_children_that_wait_on_a_file() -> None:
    def child(pid: int, role: str, *thread: Any) -> Tracked:
        return tracked(pid, role=role, comm="cat", threads=(Thread(pid, "t", *thread),))

    reading = ("S", "pipe_read", "read", 3)
    asked = plan(
        child(100, "dataloader-worker", *reading),
        child(101, "subprocess", *reading),
        child(102, "resource-tracker", *reading),
        child(103, "dataloader-worker", "S", "futex", "futex"),
    )
    assert asked.descriptors == [100, 101]


def test_connections_are_read_of_a_program_that_polls_while_its_rank_rests() -> None:
    polls = (Thread(101, "curl", "S", "poll_schedule_timeout", "poll"),)
    curl = tracked(101, 1.0, role="subprocess", comm="curl", cmdline=("curl",), threads=polls,
                   rank_pid=100)  # fmt: skip
    assert plan(tracked(ran=60.0), curl).descriptors == [101]
    assert plan(tracked(ran=0.0), curl).descriptors == []
    curl.descriptors = DescriptorTable(NOW - 10)
    assert plan(tracked(ran=60.0), curl).descriptors == []


def test_connections_are_read_of_servers_that_poll_however_often_they_wake_up() -> None:
    polls = (Thread(101, "python", "S", "do_select", "select"),)
    program = tracked(101, 0.1, threads=polls, rank=None, rank_source="--pid", rank_pid=101)
    child = tracked(102, 0.1, role="subprocess", comm="python", rank_pid=101, rank=None,
                    threads=(Thread(102, "python", "S", "do_select", "select"),))  # fmt: skip
    engine = tracked(103, 0.1, role="launcher", launcher="multiprocessing", rank=None,
                     threads=(Thread(103, "python", "S", "do_poll", "poll"),))  # fmt: skip
    rank = tracked(104, 0.1, threads=(Thread(104, "python", "S", "do_poll", "poll"),))
    assert plan(program, child, engine, rank).descriptors == [101, 102, 103]
    program.descriptors = DescriptorTable(NOW - 10)
    assert plan(program).descriptors == []
    sleeps = Thread(105, "python", "S", "futex_do_wait", "futex")
    by_thread = (sleeps, Thread(106, "python", "S", "do_epoll_wait", "epoll_wait", 6))
    other = tracked(105, 0.1, threads=by_thread, rank=None, rank_source="--pid", rank_pid=105)
    assert plan(other).descriptors == [105]
    assert plan(tracked(105, 0.1, threads=by_thread)).descriptors == []


def test_a_child_is_a_python_whatever_it_calls_itself() -> None:
    def child(**fields: str) -> Tracked:
        words = {"comm": "worker", "cmdline": ("web: worker",), "exe": None, **fields}
        return tracked(101, role="subprocess", rank_pid=100, **words)

    assert plan(tracked(), child()).sample == [100]
    assert plan(tracked(), child(exe="/usr/bin/python3.11")).sample == [100, 101]
    assert plan(tracked(exe="/opt/app"), child(exe="/opt/app")).sample == [100, 101]
    assert plan(tracked(exe="/opt/app"), child(exe="/usr/bin/tar")).sample == [100]


def test_descriptors_are_not_read_again_and_again() -> None:
    known = tracked()
    known.descriptors = DescriptorTable(NOW - 10)
    assert plan(known, odd=frozenset({100})).descriptors == []
    known.descriptors = DescriptorTable(NOW - 61)
    assert plan(known, odd=frozenset({100})).descriptors == [100]
    # it takes a look at all processes of the node: the longer a rank rests, the more seldom
    rests = tracked(ran=3600.0)
    rests.descriptors = DescriptorTable(NOW - 290)
    assert plan(rests, odd=frozenset({100})).descriptors == []
    rests.descriptors = DescriptorTable(NOW - 301)
    assert plan(rests, odd=frozenset({100})).descriptors == [100]


def test_of_an_odd_rank_that_moves_descriptors_are_read_as_seldom_as_a_budget_asks_for() -> None:
    known = with_sample(with_sample(tracked(ran=0.1), 400), 1)
    known.descriptors = DescriptorTable(NOW - 40)
    known.moved_at = NOW - 0.1
    assert plan(known, odd=frozenset({100})).descriptors == [100]
    assert plan(known, odd=frozenset({100}), tables=250.0).descriptors == []
    known.descriptors = DescriptorTable(NOW - 251)
    assert plan(known, odd=frozenset({100}), tables=250.0).descriptors == [100]
    # it has come to rest: that is what matters
    rests = with_sample(tracked(ran=20.0), 1)
    rests.descriptors = DescriptorTable(NOW - 40)
    assert plan(rests, odd=frozenset({100}), tables=250.0).descriptors == [100]


def test_the_recorder_is_asked_where_it_can_be_and_when_something_moved() -> None:
    main = Thread(100, "python", "S")
    server = Thread(101, sampling.WORKER_SERVER, "S")
    bare = tracked(threads=(main,))
    bare.moved_at = NOW - 0.1
    assert plan(bare).recorder == []
    bare.moved_at = NOW - 10
    assert plan(bare).recorder == [100]
    known = tracked(threads=(main, server))
    assert plan(known).recorder == [100]
    known.recorder = Recorder(NOW - 10)
    assert plan(known).recorder == []
    known.moved_at = NOW - 5
    assert plan(known).recorder == [100]
    known.moved_at = NOW - 0.1
    assert plan(known).recorder == []


def test_what_a_rank_was_made_to_say_is_not_wiped_out_by_a_request_without_force() -> None:
    said = build.recorder(["all_reduce"], 0)
    said = replace(said, at=NOW)
    forced = replace(said, source="inject", triggered=True)
    nothing = Recorder(NOW + 2, failure=Failure("missing", "no way to it"))
    assert outlasts(forced, nothing)
    assert not outlasts(said, nothing)
    assert not outlasts(forced, replace(said, at=NOW + 2))
    assert not outlasts(forced, replace(nothing, at=NOW + KEPT_S))
    assert not outlasts(None, nothing)


def test_a_rank_that_rests_without_a_recorder_is_looked_at_again() -> None:
    known = tracked(threads=(Thread(100, "python", "S"),))
    known.moved_at = NOW - 100
    known.recorder = Recorder(NOW - 50, failure=Failure("missing", "no way to it"))
    assert plan(known).recorder == [100]
    known.recorder_asked = NOW - 20
    assert plan(known).recorder == []
    known.recorder_asked = NOW - 40
    assert plan(known).recorder == [100]
    many = sample_rate.Rate(EVERY, again=8 * sample_rate.REAL_AGAIN)
    assert sampling.plan([known], NOW, many, frozenset()).recorder == [], "one of a thousand nodes"


def test_odd_are_the_few() -> None:
    ranks = [with_sample(tracked(100 + i), 1, "other" if i == 2 else "k") for i in range(8)]
    assert outlier_ranks(ranks, table()) == {"n1": frozenset({102})}
    assert outlier_ranks(ranks[:2], table()) == {}
    for known in ranks[4:]:
        with_sample(known, 1, "third")
    assert outlier_ranks(ranks, table()) == {"n1": frozenset({102})}


def test_an_odd_process_that_goes_round_in_the_same_functions_has_its_files_read() -> None:
    known = with_sample(with_sample(tracked(ran=0.1), age=4.5), age=1.0)
    assert plan(known).descriptors == []
    assert plan(known, odd=frozenset({100})).descriptors == [100]
    known = with_sample(with_sample(tracked(ran=0.1), age=4.5, stack="other"), age=1.0)
    assert plan(known, odd=frozenset({100})).descriptors == [], "its functions have changed"


def test_a_rank_of_which_only_time_is_told_is_the_same_object() -> None:
    known = tracked(ran=20)
    before = known.rank()
    later = replace(known.process.meters, main_last_ran_s=25.0)
    assert not known.apply({"meters": later}, NOW + 5, NOW + 4)
    assert known.rank() is before


def test_the_first_half_minute_is_sampled_more_often() -> None:
    often, seldom = sample_rate.Rate(5.0, 1.0), sample_rate.Rate(0.5, 1.0)
    young = with_sample(tracked(ran=0.1), age=1.5)
    assert sampling.plan([young], NOW, often, frozenset()).sample == [100]
    assert sampling.plan([young], NOW, sample_rate.Rate(5.0), frozenset()).sample == []
    assert seldom.of(young, NOW)[0] == 0.5, "never less often than asked for"
    old = with_sample(with_sample(tracked(ran=0.1), age=40.0), age=1.5)
    assert sampling.plan([old], NOW, often, frozenset()).sample == []


def test_a_process_that_moves_gets_eleven_samples_in_its_first_half_minute() -> None:
    def count(rate: sample_rate.Rate, seconds: int = 30) -> int:
        known, taken = tracked(ran=0.0), 0
        for tick in range(2 * seconds):
            now = NOW + tick / 2
            known.moved_at = now
            if sampling.plan([known], now, rate, frozenset()).sample:
                with_sample(known, age=-tick / 2)
                taken += 1
        return taken

    assert (count(sample_rate.Rate(5.0)), count(sample_rate.Rate(5.0, 1.0))) == (
        6,
        sample_rate.EARLY_MOVES,
    )
    assert (count(sample_rate.Rate(5.0), 60), count(sample_rate.Rate(5.0, 1.0), 60)) == (8, 17)


def test_on_a_slow_node_ranks_are_looked_at_more_often_while_a_job_stalls_unexplained() -> None:
    options, slow = Options(sample_early=1.0), sample_rate.MAX_COST_S

    def apart(*, stalls: bool) -> float:
        return sample_rate.rate(options, 1, slow, 0.0, stalls=stalls).apart

    assert apart(stalls=False) > 60.0
    assert apart(stalls=True) < 10.0
    hung = load("skip").diagnoses
    (told,) = hung.values()
    for stalled, verdicts, expected in [
        (None, (), False),
        (1.0, (), False),
        (20.0, (), True),
        (20.0, told.verdicts, False),
        (4000.0, (), False),
    ]:
        one = replace(told, stalled_for_s=stalled, verdicts=verdicts)
        assert sample_rate.stalls([told, one]) == expected


@pytest.mark.parametrize(
    ("role", "call", "asked"),
    [
        ("dataloader-worker", "clock_nanosleep", True),
        ("dataloader-worker", "futex", False),
        ("rank", "clock_nanosleep", False),
    ],
)
def test_a_worker_that_sleeps_in_the_same_functions_has_its_files_and_locks_read(
    role: str, call: str, *, asked: bool
) -> None:
    facts = (Thread(100, "python", "S", "hrtimer_nanosleep", call),)
    known = with_sample(with_sample(tracked(ran=0.1, role=role, threads=facts), age=4.5), age=1.0)
    assert (plan(known).descriptors == [100]) is asked
    known = with_sample(tracked(ran=0.1, role=role, threads=facts), age=1.0)
    assert plan(known).descriptors == [], "it is not known to stay there"
