from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core import nodeclock
from hangtop_core.answers import Answers
from hangtop_core.attach import messages
from hangtop_core.attach.messages import BadPieceError
from hangtop_core.jobtable import KEEP_GONE
from hangtop_core.store import Store
from support.pieces import EPOCH, child, launcher, meters, piece, process, stacks

if TYPE_CHECKING:
    from hangtop_core.model import Rank, Snapshot, StackSample


class Bench:
    """A store with one node, on the head's clock unless told otherwise."""

    def __init__(self, skew: float = 0.0) -> None:
        self.store = Store()
        self.wrong: list[str] = []
        self.store.add_node("n1", EPOCH)
        self.store.connected("n1", EPOCH + skew, False, EPOCH)

    def fold(self, at: float, *processes: dict[str, Any], **fields: Any) -> None:
        raw = piece(at, *processes, **fields)
        self.store.fold_watch("n1", messages.decode(raw, messages.WatchPiece), self.wrong.append)

    def sample(self, pid: int, at: float, *stack: tuple[str, int], **fields: Any) -> None:
        raw = stacks(pid, at, *stack, **fields)
        Answers(self.store).stacks("n1", messages.decode(raw, messages.StackPiece))

    def publish(self, at: float = 0.0) -> Snapshot:
        return self.store.publish(EPOCH + at)

    def ranks(self, at: float = 0.0) -> tuple[Rank, ...]:
        (job,) = self.publish(at).jobs
        return job.ranks


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_job_with_its_ranks_launcher_and_children(bench: Bench) -> None:
    bench.fold(0, launcher(99), *(process(100 + r, r) for r in (2, 0, 1)), child(200, 101))
    (job,) = bench.publish().jobs
    assert [r.rank for r in job.ranks] == [0, 1, 2]
    assert [p.pid for p in job.launchers] == [99]
    assert [c.pid for c in job.ranks[1].children] == [200]
    assert (job.world_size, job.name, job.nodes) == (4, "train.py", ("n1",))
    assert job.ranks[0].process.threads[0].wchan == "futex_do_wait"
    assert job.ranks[0].state == "sleeping"
    assert not bench.wrong


@pytest.mark.parametrize(("shell", "fix"), [(None, "sudo hangtop"), ("ssh n1", "hangtop --sudo")])
def test_root_on_another_node_is_reached_by_an_option(
    bench: Bench, shell: str | None, fix: str
) -> None:
    bench.store.change_node("n1", {"shell": shell})
    bench.fold(0, process(100, 0, denied=["it belongs to root", "sudo"]))
    (rank,) = bench.ranks()
    assert rank.process.denied == f"it belongs to root; {fix}"


def test_a_node_can_have_so_many_processes_and_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("store", "jobtable"):
        monkeypatch.setattr(f"hangtop_core.{module}.MAX_PROCESSES", 10)
    bench.fold(0, *(process(100 + number, number) for number in range(30)))
    bench.fold(1, *(process(200 + number, number) for number in range(5)))
    assert [r.rank for r in bench.ranks(1)] == list(range(10))
    assert bench.wrong == ["more than 10 processes: the others are left out"]
    for second in range(2, 12):
        # WHEN all are replaced every second, those that left are not all kept either
        gone = {str(pid): {} for pid in bench.store.nodes["n1"].live}
        bench.fold(second, *(process(1000 * second + n, n) for n in range(10)), gone=gone)
        bench.publish(second)
    assert len(bench.store.nodes["n1"].gone) <= 10 + 5 * 10


def test_what_did_not_change_is_the_same_object(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1))
    for at in range(1, 9):
        bench.fold(at)
    before = bench.publish(9)
    bench.fold(10, {"pid": 100, "meters": meters(main_last_ran_s=30.0)})
    assert bench.publish(10).jobs[0] is before.jobs[0], "only time has passed"
    bench.fold(11, {"pid": 100, "state": "T"})
    after = bench.publish(11)
    assert after.jobs[0].ranks[0].state == "stopped"
    assert after.jobs[0].ranks[1] is before.jobs[0].ranks[1]
    assert after.stacks is before.stacks
    assert before.jobs[0].ranks[0].state == "sleeping", "what was published never changes"


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
    # Generates with sleeps of 30 ms; looks for a file as often, or every ms; asks a service.
    [
        (80_000_000, 155, True),
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


def test_the_clock_of_a_node_is_brought_to_ours() -> None:
    bench = Bench(skew=3600)
    bench.fold(3600, process(100, 0, started_at=EPOCH + 3500))
    bench.sample(100, 3601, ("f", 1))
    (rank,) = bench.ranks()
    assert rank.process.started_at == EPOCH - 100
    assert rank.moved_at == EPOCH - 20
    assert rank.sample is not None
    assert rank.sample.at == EPOCH + 1
    assert bench.publish().nodes[0].clock_skew_s == 3600


@pytest.mark.parametrize("by", [3600, -3600])
def test_a_clock_that_is_set_meanwhile_is_followed(bench: Bench, by: float) -> None:
    bench.fold(0, process(100, 0, meters=meters(main_cpu_ns=0, main_last_ran_s=0.0)))
    for seconds in (1, 2, 3):
        clock = EPOCH + seconds + (by if seconds > 1 else 0)
        assert bench.store.follow_clock("n1", clock, EPOCH + seconds) is (seconds == 2)
        ran = meters(main_cpu_ns=seconds * 10**9, main_last_ran_s=0.0)
        bench.fold(clock - EPOCH, {"pid": 100, "meters": ran})
        assert bench.ranks()[0].moved_at == pytest.approx(EPOCH + seconds)
    (node,) = bench.publish().nodes
    assert (node.last_seen, node.clock_skew_s) == (EPOCH + 3, by)


@pytest.mark.parametrize("by", [30.0, -30.0, 3600.0])
@pytest.mark.parametrize("where", ["there", "here"])
def test_a_clock_that_is_set_a_little_is_followed_where_that_is_told(
    bench: Bench, by: float, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By so little that what comes might only be late: who was set has noticed."""
    bench.fold(0, process(100, 0, meters=meters(main_cpu_ns=0, main_last_ran_s=0.0)))
    moved, told = (0.0, by) if where == "there" else (by, 0.0)
    monkeypatch.setattr(nodeclock, "_offset", lambda: bench.store._clock._offset + moved)
    here = EPOCH + 1 + moved
    assert bench.store.follow_clock("n1", EPOCH + 1 + told, here, told)
    bench.fold(1 + told, {"pid": 100, "meters": meters(main_cpu_ns=10**9, main_last_ran_s=0.0)})
    assert bench.ranks(1 + moved)[0].moved_at == pytest.approx(here)
    assert bench.publish().nodes[0].clock_skew_s == told - moved


def test_what_is_only_late_is_no_clock_that_was_set(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    assert not bench.store.follow_clock("n1", EPOCH + 1, EPOCH + 50)
    bench.store.connected("n1", EPOCH, True, EPOCH)
    assert not bench.store.follow_clock("n1", EPOCH + 1, EPOCH + 500), "it has our clock"


def test_samples_of_one_stack_count_up(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    counts = []
    for at, line in ((1, 5), (2, 5), (3, 6), (4, 6)):
        bench.sample(100, at, ("read", 1), ("main", line))
        sample = bench.ranks()[0].sample
        assert sample is not None
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
    Answers(bench.store).descriptors("n1", messages.decode(raw, messages.DescriptorPiece))
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
    sample = bench.ranks()[0].sample
    assert sample is not None
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


def test_ranks_that_left_stay_while_others_are_there(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1))
    bench.fold(1, gone={"101": {"exit_code": -9}})
    for at in (2, 5000):
        for _ in range(5):
            ranks = bench.ranks(at)
        assert [r.state for r in ranks] == ["sleeping", "exited"]
        assert (ranks[1].process.exit_code, ranks[1].process.gone_at) == (-9, EPOCH + 1)


def test_orphans_keep_their_job(bench: Bench) -> None:
    bench.fold(0, *(process(100 + r, r, env={}, launcher_pid=50, ppid=50) for r in range(2)))
    key = bench.publish().jobs[0].key
    for pid in (100, 101):
        bench.fold(1, {"pid": pid, "ppid": 1, "launcher_pid": None, "launcher": None})
    assert [(job.key, len(job.ranks)) for job in bench.publish().jobs] == [(key, 2)]


def test_a_job_that_left_stays_ten_minutes(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    bench.fold(1, gone={"100": {}})
    for at, count in ((KEEP_GONE - 1, 1), (KEEP_GONE + 2, 0)):
        for _ in range(5):
            snapshot = bench.publish(at)
        assert len(bench.publish(at).jobs) == count, snapshot.jobs


def test_the_exit_status_of_a_zombie_is_remembered(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1))
    bench.fold(1, {"pid": 101, "state": "Z", "exit_code": 1})
    assert bench.ranks()[1].state == "zombie"
    bench.fold(2, gone={"101": {}})
    assert bench.ranks()[1].process.exit_code == 1


def test_a_pid_given_to_another_process_is_another_process(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1))
    bench.sample(100, 1, ("f", 1))
    bench.fold(2, process(100, 2, start=777))
    ranks = bench.ranks()
    assert [(r.rank, r.state) for r in ranks] == [(0, "exited"), (1, "sleeping"), (2, "sleeping")]
    assert ranks[2].sample is None


def test_after_a_reconnection_who_is_missing_has_left(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1))
    bench.sample(100, 1, ("f", 1))
    bench.store.connected("n1", None, True, EPOCH + 5)
    assert len(bench.ranks()) == 2, "what was known stays until the node says otherwise"
    bench.fold(6, process(100, 0))
    ranks = bench.ranks()
    assert [r.state for r in ranks] == ["sleeping", "exited"]
    assert ranks[0].sample is not None


def test_children_that_left_are_listed_within_bounds(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    for number in range(40):
        pid = 1000 + number
        bench.fold(1 + number, child(pid, 100))
        bench.fold(1.5 + number, gone={str(pid): {"exit_code": -9}})
    children = bench.ranks(60)[0].children
    assert len(children) == 16
    assert children[-1].pid == 1039
    assert children[-1].exit_code == -9


def test_a_bad_field_costs_only_itself(bench: Bench) -> None:
    bench.fold(
        0,
        process(100, 0, cwd=["no", "path"], threads=[[1, 2]]),
        {**process(101, 1), "ppid": "seven"},
        process(102, 2, meters={"cpu_s": "much"}),
        node={"load1": "high", "processes": 17, "name": "evil", "state": "denied"},
    )
    bench.fold(1, {"pid": 100, "state": "R", "threads": [[100, 99, 2, 3, 4, None, None]]})
    ranks = bench.ranks()
    assert [(r.rank, r.state) for r in ranks] == [(0, "running"), (2, "sleeping")]
    node = bench.publish().nodes[0]
    assert (node.name, node.processes, node.state) == ("n1", 17, "connecting")
    told = len(bench.wrong)
    assert told == 7, bench.wrong
    bench.fold(2, {"pid": 101, "state": "R"})
    assert len(bench.wrong) == told, "what is left out is complained about once"


def test_what_is_no_field_is_left_out(bench: Bench) -> None:
    """Also where a struct has something of that name."""
    bench.fold(0, {**process(100, 0), "__class__": 1}, node={"load1": 2.5, "__struct_fields__": []})
    assert [one.rank for one in bench.ranks()] == [0]
    assert bench.publish().nodes[0].load1 == 2.5
    assert not bench.wrong


def test_absurd_numbers_are_no_numbers(bench: Bench) -> None:
    absurd = "9" * 6000
    told = process(101, 1)
    told["env"] = {**told["env"], "LOCAL_RANK": absurd[:1000]}
    bench.fold(0, process(100, 0), told)
    raw = piece(1.0, gone={absurd: {}})
    raw["set"] = {absurd: {"state": "R"}, "100": {"state": "R"}}
    bench.store.fold_watch("n1", messages.decode(raw, messages.WatchPiece), bench.wrong.append)
    first, second = bench.ranks(1.0)
    assert first.state == "running"
    assert second.local_rank is None


@pytest.mark.parametrize("field", ["at", "pid", "mode", "threads"])
def test_text_that_is_no_unicode_is_a_piece_that_does_not_fit(field: str) -> None:
    raw = {**stacks(100, 1.0, ("f", 3)), field: {"\ud800": 1} if field == "mode" else "\ud800"}
    with pytest.raises(BadPieceError):
        messages.decode(raw, messages.StackPiece)


def test_a_field_that_is_no_unicode_leaves_the_rest(bench: Bench) -> None:
    bench.fold(0, process(100, 0), process(101, 1, tracer_pid="\ud800", state="\ud800"))
    assert [rank.state for rank in bench.ranks()] == ["sleeping", "unknown"]
    assert any("tracer_pid" in text for text in bench.wrong)


def test_what_time_and_a_launcher_that_polls_bring_is_no_news(bench: Bench) -> None:
    bench.fold(0, launcher(99), process(100, 0), process(101, 1))
    bench.sample(100, 0.0, ("wait", 3))
    assert bench.store.news
    for second in range(1, 8):  # until shares of a core are known
        bench.fold(second)
    bench.publish(7)
    assert not bench.store.news
    assert bench.store.rank_count == 2
    bench.fold(8, {"pid": 99, "meters": meters(cpu_s=9.0, main_cpu_ns=9_000_000_000)})
    Answers(bench.store).renew("n1", 100, EPOCH + 8)
    bench.store.change_node("n1", {"latency_s": 0.01})
    assert not bench.store.news
    (job,) = bench.publish(8).jobs
    assert job.ranks[0].sample is not None
    assert job.ranks[0].sample.count == 2, "a picture is made of it all the same"


def test_a_sample_that_says_what_the_last_one_did_is_no_news(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    bench.sample(100, 0.0, ("wait", 3))
    for second in range(1, 8):
        bench.fold(second)
    before = bench.store.nodes["n1"].told
    bench.publish(7)
    bench.sample(100, 8.0, ("wait", 3))
    assert not bench.store.news
    assert bench.store.nodes["n1"].told == before
    (rank,) = bench.ranks(8)
    assert rank.sample is not None
    assert (rank.sample.at, rank.sample.count) == (EPOCH + 8, 2)
    bench.sample(100, 9.0, ("wait", 4))
    assert bench.store.news, "another line"
    assert bench.store.nodes["n1"].told > before


def test_of_meters_only_those_that_changed_are_sent(bench: Bench) -> None:
    bench.fold(0, process(100, 0, meters=meters(cpu_s=3.0, read_bytes=70, rss=5)))
    bench.fold(1, {"pid": 100, "meters": {"cpu_s": 4.0, "main_last_ran_s": None}})
    found = bench.ranks()[0].process.meters
    assert (found.cpu_s, found.read_bytes, found.rss) == (4.0, 70, 5)
    assert found.main_last_ran_s is None
    bench.fold(2, {"pid": 100, "meters": {"cpu_s": "much", "rss": 6}})
    assert bench.ranks()[0].process.meters == found
    assert bench.wrong


@pytest.mark.parametrize("what", ["meters", "stack", "gone", "new", "node"])
def test_whatever_may_change_a_verdict_is_news(bench: Bench, what: str) -> None:
    bench.fold(0, launcher(99), process(100, 0))
    bench.publish(0)
    if what == "meters":
        moved = meters(cpu_s=9.0, main_cpu_ns=9_000_000_000, main_switches=99)
        bench.fold(1, {"pid": 100, "meters": moved})
    elif what == "stack":
        bench.sample(100, 1.0, ("wait", 3))
    elif what == "gone":
        bench.fold(1, gone={"99": {"exit_code": 1}})
    elif what == "new":
        bench.fold(1, process(101, 1))
    else:
        bench.store.change_node("n1", {"state": "lost"})
    assert bench.store.news
    bench.publish(1)
    assert not bench.store.news


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
