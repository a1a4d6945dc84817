"""What is known of one process: when it moved, worked and printed, and what its stacks were."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_core.model.snapshot import StackSample, ThreadStack
from hangtop_core.state.stack_table import StackTable
from support.pieces import EPOCH, child, meters, process
from support.situations import frame
from support.stored import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_movement_before_we_came_is_known_from_the_scheduler(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    assert bench.ranks()[0].moved_at == EPOCH - 20
    bench.fold(5, {"pid": 100, "meters": meters(main_last_ran_s=0.5)})
    assert bench.ranks()[0].moved_at == EPOCH + 4.5


@pytest.mark.parametrize(("ran_ns", "worked"), [(1_900_000, None), (2_100_000, EPOCH + 5)])
def test_time_on_a_cpu_is_work_and_a_wake_up_is_not(
    bench: Bench, ran_ns: int, worked: float | None
) -> None:
    bench.fold(0, process(100, 0, meters=meters(main_cpu_ns=1_000)))
    bench.fold(5, {"pid": 100, "meters": meters(main_cpu_ns=1_000 + ran_ns)})
    assert bench.ranks()[0].worked_at == worked


@pytest.mark.parametrize(
    ("ran_ns", "switches", "computes"),
    # Generates with sleeps of 30 ms, or 10 ms on a fast processor; looks for a file as often, or
    # every ms; asks a service.
    [
        (80_000_000, 155, True),
        (130_000_000, 485, True),
        (10_000_000, 160, False),
        (120_000_000, 4000, False),
        (20_000_000, 49, False),
    ],
)
def test_who_computes_between_sleeps_takes_more_than_who_looks_for_something(
    bench: Bench, ran_ns: int, switches: int, computes: bool
) -> None:
    bench.fold(0, process(100, 0, meters=meters(main_cpu_ns=1_000, main_switches=1)))
    ran = meters(main_cpu_ns=1_000 + ran_ns, main_switches=1 + switches)
    bench.fold(5, {"pid": 100, "meters": ran})
    assert bench.ranks()[0].computed_at == (EPOCH + 5 if computes else None)


def test_what_a_rank_prints_is_no_io_and_only_its_main_thread_gets_on(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    spinner = {"write_bytes": 100_000, "printed_bytes": 100_000}
    bench.fold(5, {"pid": 100, "meters": meters(**spinner)})
    assert (bench.ranks()[0].io_moved_at, bench.ranks()[0].printed_at) == (None, None)
    bench.fold(9, {"pid": 100, "meters": meters(**spinner, main_printed_bytes=30)})
    assert bench.ranks()[0].printed_at == EPOCH + 9


def test_being_woken_by_our_own_tool_is_no_movement(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    known = bench.store.live("n1", 100)
    assert known is not None
    known.disturb(EPOCH + 3)
    bench.fold(5, {"pid": 100, "meters": meters(main_last_ran_s=1.5)})
    known.let_go(EPOCH + 6)
    bench.fold(9, {"pid": 100, "meters": meters(main_last_ran_s=2.9)})
    assert bench.ranks()[0].moved_at == EPOCH - 20
    bench.fold(20, {"pid": 100, "meters": meters(main_last_ran_s=1.0)})
    assert bench.ranks()[0].moved_at == EPOCH + 19, "what runs later runs by itself"


@pytest.mark.parametrize(
    ("moved", "left"),
    [
        ({"main_cpu_ns": 10**9 + 80_000, "main_switches": 55}, EPOCH - 20),
        ({"main_cpu_ns": 10**9 + 80_000, "write_bytes": 64}, EPOCH + 4),
        ({"main_cpu_ns": 10**9 + 80_000, "read_bytes": 1}, EPOCH + 4),
        ({"main_cpu_ns": 10**9 + 80_000, "main_waits": 2}, EPOCH + 4),
        ({"main_cpu_ns": 10**9 + 80_000, "main_waits": None}, EPOCH + 4),
        ({"main_cpu_ns": 10**9 + 600_000}, EPOCH + 4),
        ({"main_cpu_ns": None}, EPOCH + 4),
    ],
)
def test_a_thread_that_was_held_and_sent_back_has_not_left_its_wait(
    bench: Bench, moved: dict[str, Any], left: float
) -> None:
    bench.fold(0, process(100, 0), child(200, 100))
    seen = meters(main_last_ran_s=1.0, **moved)
    bench.fold(5, {"pid": 100, "meters": seen}, {"pid": 200, "meters": seen})
    (rank,) = bench.ranks()
    assert rank.moved_at == EPOCH + 4, "it ran, and may have another stack"
    assert rank.left_at == left
    assert rank.child_left_at == {200: left}


def test_when_bytes_of_a_child_last_moved(bench: Bench) -> None:
    bench.fold(0, process(100, 0), child(200, 100))
    bench.fold(5, {"pid": 200, "meters": meters(main_last_ran_s=1.0)})
    assert bench.ranks()[0].child_io_moved_at == {}
    bench.fold(9, {"pid": 200, "meters": meters(main_last_ran_s=1.0, read_bytes=1 << 24)})
    assert bench.ranks()[0].child_io_moved_at == {200: EPOCH + 9}
    assert bench.ranks()[0].child_much_at == {200: EPOCH + 9}


def test_without_the_scheduler_counters_tell_movement(bench: Bench) -> None:
    bench.fold(0, process(100, 0, meters=meters(main_last_ran_s=None)))
    assert bench.ranks()[0].moved_at is None
    bench.fold(3, {"pid": 100, "meters": meters(main_last_ran_s=None, main_switches=51)})
    assert bench.ranks()[0].moved_at == EPOCH + 3


def test_writing_its_core_gets_nobody_on(bench: Bench) -> None:
    """To a fast disk that is all CPU time of its main thread."""
    busy = [
        meters(main_last_ran_s=None, main_switches=50 + n, main_cpu_ns=n << 32) for n in range(3)
    ]
    bench.fold(0, process(100, 0, meters=busy[0], dumping_core=True))
    bench.fold(3, {"pid": 100, "meters": busy[1]})
    assert bench.ranks()[0].moved_at is None
    bench.fold(6, {"pid": 100, "meters": busy[2], "dumping_core": False})
    assert bench.ranks()[0].moved_at == EPOCH + 6


@pytest.mark.parametrize(("count", "moved"), [(400, None), (600, EPOCH + 10)])
def test_io_counts_from_a_noise_floor_a_second(
    bench: Bench, count: int, moved: float | None
) -> None:
    bench.fold(0, process(100, 0))
    for at in range(1, 10):
        bench.fold(at)
    bench.fold(10, {"pid": 100, "meters": meters(read_bytes=count)})
    assert bench.ranks()[0].io_moved_at == moved


def test_shares_of_a_core(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    assert bench.ranks()[0].cpu_share is None
    for at in range(1, 4):
        busy = meters(cpu_s=1.0 + 2 * at, main_cpu_ns=10**9 * (1 + at))
        bench.fold(at, {"pid": 100, "meters": busy})
    assert bench.ranks()[0].cpu_share == pytest.approx(2.0)
    assert bench.ranks()[0].main_cpu_share == pytest.approx(1.0)
    for at in range(4, 12):
        bench.fold(at)
    assert bench.ranks()[0].cpu_share == 0.0
    for at in range(12, 60):
        bench.fold(at)
    bench.fold(60, {"pid": 100, "meters": meters(cpu_s=8.0, main_cpu_ns=4 * 10**9)})
    assert (bench.ranks()[0].cpu_share or 0) > 0.1, "a long rest does not dilute what is new"


def test_a_moment_on_a_cpu_after_a_rest_is_a_moment_of_the_whole_window(bench: Bench) -> None:
    """A deadlocked rank whose helper ran for 60 ms was told to get on: at work by 6 % of 1 s."""
    bench.fold(0, process(100, 0))
    for at in range(1, 30):
        bench.fold(at)
    for at in range(30, 33):
        bench.fold(at, {"pid": 100, "meters": meters(cpu_s=1.06)})
        assert bench.ranks()[0].cpu_share == pytest.approx(0.06 / (5 + at - 30), abs=0.001)
    for at in range(33, 45):
        bench.fold(at, {"pid": 100, "meters": meters(cpu_s=1.06 + 0.06 * (at - 32))})
    assert bench.ranks()[0].cpu_share == pytest.approx(0.06), "who goes on with it is at work"


def test_samples_of_one_stack_count_up(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    counts = []
    for at, line in ((1, 5), (2, 5), (3, 6), (4, 6)):
        bench.sample(100, at, ("read", 1), ("main", line))
        sample = _sample(bench)
        counts.append((sample.count, sample.same_since, sample.same_functions_since))
    first = EPOCH + 1
    assert counts == [
        (1, first, first),
        (2, first, first),
        (1, EPOCH + 3, first),
        (2, EPOCH + 3, first),
    ]


def test_the_first_sample_is_remembered(bench: Bench) -> None:
    bench.fold(0, process(100, 0), child(200, 100))
    failure = {"kind": "timeout", "text": "hangs"}
    bench.sample(100, 1, stacks={}, threads=[], failure=failure)
    assert _sample(bench).first_at is None
    for at, line in ((2, 5), (3, 6), (4, 7)):
        bench.sample(100, at, ("main", line))
        assert _sample(bench).first_at == EPOCH + 2


def _sample(bench: Bench) -> StackSample:
    sample = bench.ranks()[0].sample
    assert sample is not None
    return sample


def test_movement_samples_and_descriptors_of_children_are_kept(bench: Bench) -> None:
    bench.fold(0, process(100, 0), child(200, 100))
    bench.sample(200, 1, ("worker", 1))
    raw = {"pid": 200, "start": 2000, "at": EPOCH + 2, "descriptors": []}
    bench.answers.descriptors("n1", messages.decode(raw, messages.DescriptorPiece))
    rank = bench.ranks()[0]
    assert rank.child_moved_at == {200: EPOCH - 20}
    assert rank.child_samples[200].threads
    assert rank.child_descriptors[200].at == EPOCH + 2
    bench.fold(3, {"pid": 200, "meters": meters(main_last_ran_s=0.0)})
    assert bench.ranks()[0].child_moved_at == {200: EPOCH + 3}


def test_native_frames_do_not_make_it_another_stack(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    bench.sample(100, 1, ("wait", 1), ("main", 5))
    rows = [["poll", "libc.so", "libc.so", 0, True, None]]
    rows += [
        [n, f"/src/{n}.py", f"{n}.py", line, False, None] for n, line in (("wait", 1), ("main", 5))
    ]
    thread = {"tid": 100, "stack": "native"}
    bench.sample(100, 2, stacks={"native": rows}, threads=[thread], mode="native")
    sample = _sample(bench)
    assert (sample.count, sample.mode) == (2, "native")
    # They stay as long as the main thread does: nobody would pause it again for them.
    bench.sample(100, 3, ("wait", 1), ("main", 5))
    sample = _sample(bench)
    assert (sample.count, sample.mode, sample.threads[0].stack) == (3, "native", "native")
    bench.fold(4, {"pid": 100, "meters": meters(main_last_ran_s=0.0)})
    bench.sample(100, 5, ("wait", 1), ("main", 5))
    assert _sample(bench).mode == "nonblocking"


def test_a_failure_does_not_hide_what_is_still_true(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1, meters=meters(main_last_ran_s=0.0)))
    failure = {"kind": "timeout", "text": "py-spy hangs"}
    for pid in (100, 101):
        bench.sample(pid, 1, ("f", 1))
    bench.fold(2, {"pid": 101, "meters": meters(main_last_ran_s=0.0)})
    for pid in (100, 101):
        bench.sample(pid, 3, stacks={}, threads=[], failure=failure)
    still, moved = bench.ranks()
    assert still.sample is not None
    assert moved.sample is not None
    assert still.sample.threads
    assert (still.sample.count, still.sample.at) == (2, EPOCH + 3)
    assert moved.sample.failure is not None
    bench.sample(100, 4, stacks={}, threads=[], failure={"kind": "gone", "text": "gone"})
    assert bench.ranks()[0].sample == still.sample


def test_a_sample_of_an_earlier_process_is_dropped(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    bench.sample(100, 1, ("f", 1), start=7)
    assert bench.ranks()[0].sample is None


def test_a_stack_that_was_never_sent_is_bad(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    with pytest.raises(BadPieceError, match="never sent"):
        bench.sample(100, 1, ("f", 1), stacks={})


def test_of_meters_only_those_that_changed_are_sent(bench: Bench) -> None:
    bench.fold(0, process(100, 0, meters=meters(cpu_s=3.0, read_bytes=70, rss=5)))
    bench.fold(1, {"pid": 100, "meters": {"cpu_s": 4.0, "main_last_ran_s": None}})
    found = bench.ranks()[0].process.meters
    assert (found.cpu_s, found.read_bytes, found.rss) == (4.0, 70, 5)
    assert found.main_last_ran_s is None
    bench.fold(2, {"pid": 100, "meters": {"cpu_s": "much", "rss": 6}})
    assert bench.ranks()[0].process.meters == found
    assert bench.wrong


def test_when_threads_got_on_in_a_connection_is_told_of_a_rank_and_its_children(
    bench: Bench,
) -> None:
    first = process(100, 0, flows=[[105, 40000]])
    bench.fold(0, first, child(200, 100))
    assert bench.ranks()[0].flowed_at == {105: EPOCH}
    bench.fold(3, {"pid": 200, "flows": [[200, 30000]]})
    bench.fold(6, {"pid": 100, "flows": [[105, 40000], [106, 50000]]})
    assert bench.ranks()[0].flowed_at == {105: EPOCH, 106: EPOCH + 6, 200: EPOCH + 3}
    assert not bench.wrong


def test_of_many_threads_that_got_on_those_are_remembered_that_are_told_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hangtop_core.state.tracked.MAX_FLOWS", 2)
    bench.fold(0, process(100, 0, flows=[[105, 40000], [106, 40000]]))
    bench.fold(3, {"pid": 100, "flows": [[106, 40000], [107, 40000]]})
    assert bench.ranks()[0].flowed_at == {106: EPOCH, 107: EPOCH + 3}


CALLED, CALLING = (1, 2, 3, 5, 6, 7, 8), (4,)
"""When a thread is met in what its `while` calls, and when in the `while` itself."""


@pytest.mark.parametrize(
    ("calls", "stays", "passing"),
    [
        (CALLING, True, CALLING),
        ((2, 4, 6), False, ()),
        # Nearly always in what it calls: there it stays, and in passing it is in its own.
        (CALLED, True, CALLING),
        ((1, 2, 4, 5, 7, 8), False, ()),
    ],
)
def test_who_calls_something_in_passing_stays_in_its_functions(
    bench: Bench, calls: tuple[int, ...], stays: bool, passing: tuple[int, ...]
) -> None:
    bench.fold(0, process(100, 0))
    known = bench.store.live("n1", 100)
    assert known is not None
    table = StackTable()
    caller = replace(frame("cut", "pack.py", 20), within=((19, "while rest:"),))
    table.add("cut", (caller, frame("main", "pack.py", 9)))
    table.add("find", (frame("find", "pack.py", 3), caller, frame("main", "pack.py", 9)))
    passed = []
    for at in range(1, 9):
        thread = ThreadStack(100, "MainThread", False, False, "find" if at in calls else "cut")
        known.take_sample(StackSample(EPOCH + at, 0.0, "nonblocking", (thread,)), table)
        passed += [at] if known.sample is not None and known.sample.in_passing else []
    assert known.sample is not None
    assert not stays or passed == list(passing)
    since = known.sample.same_functions_since
    assert (since == EPOCH + 1) is stays


def test_what_a_thread_did_that_only_serves_is_forgotten_once_another_runs_the_program(
    bench: Bench,
) -> None:
    bench.fold(0, process(100, 0, meters=meters(main_cpu_ns=1_000, main_last_ran_s=0.1)))
    bench.fold(2, {"pid": 100, "meters": meters(main_cpu_ns=9_000_000, main_last_ran_s=0.1)})
    assert bench.ranks()[0].worked_at == EPOCH + 2
    led = meters(main_cpu_ns=4_000_000_000, main_last_ran_s=20.0)
    bench.fold(4, {"pid": 100, "program_tid": 105, "meters": led})
    (rank,) = bench.ranks()
    assert (rank.moved_at, rank.worked_at) == (EPOCH - 16, None)
    still = meters(main_cpu_ns=4_000_000_000, main_last_ran_s=22.0)
    bench.fold(6, {"pid": 100, "meters": still})
    assert bench.ranks()[0].moved_at == EPOCH - 16
