"""`hangtop dump`: whose stacks it takes, what it waits for, prints and writes."""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop.cli.commands.dump import (
    Answers,
    has_stacks,
    named,
    pids_by_node,
    render,
    sample,
    say_stale,
    write,
)
from hangtop.cli.jobs.dumpdata import as_data
from hangtop_core.diagnosis import to_json
from hangtop_core.model.frame import Frame
from hangtop_core.model.snapshot import (
    Job,
    Local,
    Node,
    Process,
    Rank,
    Snapshot,
    StackSample,
    ThreadStack,
)
from hangtop_core.model.updates import Update
from support.build import World
from support.documents import misfits
from support.situations import LOADER, POLL, user, worker_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


class Answering:
    """A session that publishes while answers come in, and once more when all are there."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.half = 0.0

    def sample(self, *_: Any, **__: Any) -> Future[tuple[()]]:
        self.half = time.time()
        time.sleep(0.01)
        future: Future[tuple[()]] = Future()
        future.set_result(())
        return future

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> None:
        half, whole = Snapshot(self.half, 0.0, 1), Snapshot(time.time() + 0.01, 0.0, 2)
        for name, snapshot in (("half", half), ("whole", whole)):
            if predicate(Update(snapshot, {}, 0.0)):
                self.accepted.append(name)


def test_a_dump_waits_for_the_picture_with_all_answers() -> None:
    session = Answering()
    arguments = argparse.Namespace(native=False, locals=False)
    sample(session, Job("k", "k", None, None, None, None), arguments)  # type: ignore[arg-type]
    assert session.accepted == ["whole"]


class Interrupted(Answering):
    """One of two nodes answers, then somebody presses Ctrl-C."""

    def sample(self, *_: Any, on_node: Callable[[str], None], **__: Any) -> Future[tuple[()]]:
        on_node("n1")
        raise KeyboardInterrupt


def two_ranks() -> Job:
    return Job("k", "k", None, None, 2, None, ranks=(rank_on("n1", 0), rank_on("n2", 1)))


def rank_on(node: str, number: int) -> Rank:
    process = Process(7 + number, 1, 1, 0.0, "rank", "", "S")
    return Rank(number, node, "sleeping", process)


def test_ctrl_c_tells_which_nodes_have_not_answered() -> None:
    arguments = argparse.Namespace(native=False, locals=False)
    answers = sample(Interrupted(), two_ranks(), arguments)  # type: ignore[arg-type]
    assert answers.missing == {"n2"}
    assert answers.failed == {("n2", 8): "interrupted before it answered"}


def test_what_was_asked_for_is_shown_and_not_what_was_sampled_by_itself_since() -> None:
    def sampled(at: float, *variables: Local) -> StackSample:
        thread = ThreadStack(7, None, True, False, "k", (variables,))
        return StackSample(at, 0.1, "nonblocking", (thread,))

    worker = Process(9, 7, 1, 0.0, "dataloader-worker", "", "S")
    asked = {("n1", 7): sampled(1.0, Local("x", "1")), ("n1", 9): sampled(1.1, Local("y", "2"))}
    first, second = two_ranks().ranks
    newer = replace(first, sample=sampled(2.0), children=(worker,), child_samples={9: sampled(2.1)})
    other = replace(second, sample=sampled(2.2))
    shown = Answers({}, frozenset(), asked).of(replace(two_ranks(), ranks=(newer, other)))
    assert shown.ranks[0].sample == asked["n1", 7]
    assert shown.ranks[0].child_samples == {9: asked["n1", 9]}
    assert shown.ranks[1] == other


def test_a_dump_without_a_job_is_a_document_with_the_nodes() -> None:
    nodes = (Node("n1", "ready"), Node("n2", "denied", reason="login refused", fix="ssh n2"))
    data = json.loads(to_json(as_data(Snapshot(1.0, 0.0, 1, nodes=nodes), None)))
    assert misfits(data) == []
    assert (data["schema"], data["job"], data["ranks"]) == ("hangtop.dump/1", None, [])
    assert data["nodes"][1] == {
        "name": "n2",
        "state": "denied",
        "reason": "login refused",
        "fix": "ssh n2",
        "nvml": None,
        "gpus": [],
        "nics": [],
    }


def test_whether_there_is_any_stack() -> None:
    assert not has_stacks(two_ranks())
    sampled = StackSample(90.0, 0.1, "nonblocking", (ThreadStack(7, None, True, False, "k"),))
    rank = Rank(0, "n1", "sleeping", two_ranks().ranks[0].process, sample=sampled)
    assert has_stacks(Job("k", "k", None, None, 1, None, ranks=(rank,)))


def test_an_older_stack_is_not_passed_off_as_what_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = StackSample(90.0, 0.1, "nonblocking", (ThreadStack(7, None, True, False, "k"),))
    process = Process(pid=7, ppid=1, start=1, started_at=0.0, role="rank", label="", state="S")
    rank = Rank(3, "n1", "sleeping", process, sample=old)
    one = Job("k", "k", None, None, None, None, ranks=(rank,))
    snapshot = Snapshot(100.0, 0.0, 1, jobs=(one,))
    say_stale(snapshot, one, {("n1", 7): "the probe was killed"})
    told = capsys.readouterr().err
    assert "pid 7 of rank 3 gave no new stack" in told
    assert "nonblocking one of 10 s ago: the probe was killed" in told
    say_stale(snapshot, one, {})
    assert not capsys.readouterr().err


def test_a_file_for_each_node_misses_no_rank_of_another_and_c_frames_are_not_cut(
    tmp_path: Path,
) -> None:
    def on(rank: Rank) -> Rank:
        thread = ThreadStack(rank.process.pid, None, True, False, "k")
        return replace(rank, sample=StackSample(90.0, 0.1, "native", (thread,)))

    library = [Frame(name, "libc.so.6", "", 0, native=True) for name in ("inner", "outer")]
    job = replace(two_ranks(), nodes=("n1", "n2"), world_size=2)
    job = replace(job, ranks=tuple(map(on, job.ranks)))
    snapshot = Snapshot(100.0, 0.0, 1, jobs=(job,), stacks={"k": tuple(library)})
    output = str(tmp_path / "trace-%N.out")
    options = {"json": False, "each": False, "locals": False, "all_threads": False, "pid": []}
    for native, shown in ((True, True), (False, False)):
        arguments = argparse.Namespace(output=output, native=native, library=None, **options)
        write(snapshot, job, arguments)
        text = (tmp_path / "trace-n1.out").read_text()
        assert "no process was found" not in text
        assert text.startswith("1 rank of 1 gave a stack")
        assert ("inner" in text) is shown


def with_workers() -> Job:
    """Ranks 0 and 1 wait for rank 2, which waits for its workers 5020 and 5021."""
    world = World()
    world.waiters(2)
    rank = world.add(LOADER, POLL)
    world.give_children(
        rank, [world.worker(rank, worker_in("read", 36), POLL, number) for number in range(2)]
    )
    launcher = world.process(300, None, role="launcher")
    return world.snapshot(launchers=(launcher,)).jobs[0]


def test_without_names_all_processes_are_taken() -> None:
    assert pids_by_node(named(with_workers(), [])) == {"n1": [4000, 4010, 4020, 5020, 5021]}


def test_a_launcher_stands_for_all_its_ranks() -> None:
    assert named(with_workers(), [300, 4000]) == with_workers()


def with_engine() -> tuple[World, Job]:
    """Two ranks and the engine that started them."""
    world = World()
    world.waiters(2)
    engine = world.process(300, None, role="launcher", launcher="multiprocessing", node="n1",
                           label="VLLM::EngineCore", cmdline=("VLLM::EngineCore",))  # fmt: skip
    sample = world.sample(user("run_busy_loop", 7), pid=300)
    samples = {"n1:300": sample}
    return world, world.snapshot(launchers=(engine,), launcher_samples=samples).jobs[0]


def test_a_controller_has_stacks_beside_the_ranks_and_alone() -> None:
    world, job = with_engine()
    assert pids_by_node(named(job, [])) == {"n1": [4000, 4010, 300]}
    assert pids_by_node(named(job, [300])) == {"n1": [300]}
    snapshot = world.snapshot()
    options = {"json": False, "each": False, "locals": False, "all_threads": False, "output": None}
    arguments = argparse.Namespace(native=False, library=None, pid=[], **options)
    text = render(snapshot, job, arguments)
    assert "2 ranks of 2 gave a stack" in text
    assert "n1:pid300  process 300: VLLM::EngineCore" in text
    assert "run_busy_loop" in text
    arguments = argparse.Namespace(native=False, library=None, pid=[300], **options)
    alone = render(snapshot, named(job, [300]), arguments)
    assert "run_busy_loop" in alone
    assert "all_reduce" not in alone
    document = as_data(snapshot, job)
    assert [one["label"] for one in document["controllers"]] == ["VLLM::EngineCore"]
    assert document["controllers"][0]["threads"][0]["frames"][0].name == "run_busy_loop"
    assert not misfits(json.loads(to_json(document)))


def test_a_rank_is_taken_alone_with_its_workers() -> None:
    assert pids_by_node(named(with_workers(), [4020])) == {"n1": [4020, 5020, 5021]}
    assert pids_by_node(named(with_workers(), [4010])) == {"n1": [4010]}


def test_a_worker_is_taken_with_its_rank() -> None:
    assert pids_by_node(named(with_workers(), [5021])) == {"n1": [4020, 5021]}
