"""What nodes tell becomes jobs, ranks and samples; what did not change stays the same object."""

from __future__ import annotations

import pytest

from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_core.state.job_table import KEEP_GONE
from hangtop_probe.node import wallclock
from support.pieces import EPOCH, child, launcher, meters, piece, process, stacks
from support.stored import Bench


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


def test_a_named_process_that_is_taken_for_a_program_later_is_shown(bench: Bench) -> None:
    bench.fold(0, process(100, label="pid 100", launcher=None, launcher_pid=None))
    (job,) = bench.publish().jobs
    assert (len(job.unnumbered), job.ranks) == (1, ())
    bench.fold(1, {"pid": 100, "label": "process 100", "rank_source": "--pid"})
    (job,) = bench.publish().jobs
    assert [one.process.pid for one in job.ranks] == [100]


def test_controllers_beside_an_engine_are_of_its_job(bench: Bench) -> None:
    mp = {"launcher": "multiprocessing"}
    bench.fold(
        0,
        launcher(98, **mp, label="api_server.py"),
        launcher(99, **mp, label="VLLM::EngineCore", ppid=98, launcher_pid=98),
        launcher(97, **mp, label="detokenizer", ppid=98, launcher_pid=98),
        *(process(100 + r, r, **mp) for r in (0, 1)),
    )
    bench.sample(99, 1.0, ("busy_loop", 3))
    (job,) = bench.publish().jobs
    assert [one.name for one in job.controllers] == [
        "detokenizer (pid 97)",
        "api_server.py (pid 98)",
        "VLLM::EngineCore (pid 99)",
    ]
    assert job.controllers[2].sample is not None
    assert [one.process.pid for one in job.members] == [100, 101, 97, 98, 99]


def test_how_much_more_there_is_than_in_the_last_picture(bench: Bench) -> None:
    bench.publish()
    bench.fold(0, process(100, 0))
    assert bench.store.growth == 1.0, "that was of nobody"
    bench.publish()
    bench.fold(1, process(101, 1), process(102, 2), process(103, 3))
    assert bench.store.growth == 4.0
    bench.publish()
    assert bench.store.growth == 1.0


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
    for place in (
        "hangtop_core.state.store.MAX_PROCESSES",
        "hangtop_core.state.job_table.MAX_PROCESSES",
    ):
        monkeypatch.setattr(place, 10)
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
    monkeypatch.setattr(wallclock, "_offset", lambda: bench.store._clock._offset + moved)
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


def test_a_job_that_is_to_be_kept_stays_however_long_ago_it_left(bench: Bench) -> None:
    bench.fold(0, process(100, 0))
    (job,) = bench.publish().jobs
    bench.fold(1, gone={"100": {}})
    bench.store.keep(frozenset({job.key}))
    for at, count in ((50 * KEEP_GONE, 1), (50 * KEEP_GONE + 1, 1)):
        for _ in range(5):
            bench.publish(at)
        assert len(bench.publish(at).jobs) == count
    bench.store.keep(frozenset())
    for _ in range(5):
        bench.publish(60 * KEEP_GONE)
    assert not bench.publish(60 * KEEP_GONE).jobs


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
    bench.answers.renew("n1", 100, EPOCH + 8)
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
    before = bench.store.nodes["n1"].changes
    bench.publish(7)
    bench.sample(100, 8.0, ("wait", 3))
    assert not bench.store.news
    assert bench.store.nodes["n1"].changes == before
    (rank,) = bench.ranks(8)
    assert rank.sample is not None
    assert (rank.sample.at, rank.sample.count) == (EPOCH + 8, 2)
    bench.sample(100, 9.0, ("wait", 4))
    assert bench.store.news, "another line"
    assert bench.store.nodes["n1"].changes > before


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
