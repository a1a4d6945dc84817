"""What a diagnosis tells beside causes: what is ruled out, when what happened, what is apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.analysis.verdict.others import BY_ITSELF
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.model.node.facts import KernelLine
from hangtop_core.model.node.hardware import GpuProcess
from hangtop_core.model.snapshot import Fact, Node
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.text.clean import duration
from support.build import ATTACHED, HUNG_SINCE, NOW, World, judged
from support.gpus import gpu
from support.logs import with_log
from support.situations import (
    DESTROY,
    FUTEX,
    POLL,
    QUEUE,
    RENDEZVOUS,
    SLEEP,
    STOP,
    TRACED,
    c10d,
    user,
)

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis

LOGGED = {"kernel log": Fact(True)}
OOM = "Out of memory: Killed process {} (python3) total-vm:1kB, anon-rss:1kB, UID:0"


def skipped() -> World:
    """Three ranks wait for rank 3, which sleeps."""
    world = World()
    world.waiters(3)
    world.add(user("cool_down", 35), SLEEP)
    return world


def ruled_out(diagnosis: Diagnosis) -> dict[str, str]:
    return {one.text: one.looked_at for one in diagnosis.ruled_out}


def test_what_was_seen_and_shows_no_fault_is_ruled_out_with_what_was_looked_at() -> None:
    out = ruled_out(judged(skipped()))
    assert out["a rank that is not there"] == "all 4 ranks of WORLD_SIZE are there and alive"
    assert out["a rank that is stopped, traced or frozen"].startswith("none of 4 ranks is")
    assert out["ranks that wait at different calls"].startswith(
        "ranks 0-2 all wait in all_reduce at"
    )
    assert out["a node that is away"] == "n1 answers"
    assert out["slow, not hung"].startswith("CPU time, stacks and bytes of all ranks: none")


def test_what_was_not_seen_is_not_ruled_out() -> None:
    out = ruled_out(judged(skipped()))
    assert not {"a GPU that failed", "an RDMA port that is down", "errors in logs"} & out.keys()
    assert "a kill or crash in the kernel log" not in out, "the kernel log cannot be read"
    assert "too little memory" not in out, "no pressure was read"
    assert "different versions" not in out, "no versions are known"
    # GIVEN a node that was not heard of for a while
    world = skipped()
    world.nodes["n1"] = Node("n1", "lost", last_seen=NOW - 20)
    quiet = ruled_out(judged(world))
    assert not {"a rank that is not there", "slow, not hung", "a node that is away"} & quiet.keys()
    assert "a rank that is stopped, traced or frozen" not in quiet
    # GIVEN a rank of which there is no stack
    world = skipped()
    world.ranks[1] = msgspec.structs.replace(world.ranks[1], sample=None)
    blind = ruled_out(judged(world))
    assert "ranks that wait at different calls" not in blind
    assert blind["slow, not hung"].startswith("CPU time and bytes of all ranks")


def test_what_is_concluded_is_never_ruled_out() -> None:
    world = World()
    world.waiters(3)
    world.add(user("load", 7), STOP)
    found = judged(world)
    assert found.verdicts[0].cause == "rank-stopped"
    causes = {cause for one in found.ruled_out for cause in one.causes}
    assert not causes & {verdict.cause for verdict in found.verdicts}
    assert "a rank that is not there" in ruled_out(found)


def test_a_kernel_log_without_such_a_line_rules_out_a_kill() -> None:
    world = skipped()
    world.nodes["n1"] = Node("n1", "ready", capabilities=LOGGED)
    assert "a kill or crash in the kernel log" in ruled_out(judged(world))
    line = KernelLine(NOW - 100, OOM.format(99))
    world.nodes["n1"] = Node("n1", "ready", capabilities=LOGGED, kernel_lines=(line,))
    assert "a kill or crash in the kernel log" not in ruled_out(judged(world))


@pytest.mark.parametrize(("state", "out"), [("ok", True), ("lost", False)])
def test_a_gpu_that_is_lost_is_not_ruled_out_whoever_was_on_it(state: str, out: bool) -> None:
    world = skipped()
    used = gpu(0, processes=(GpuProcess(world.ranks[0].process.pid, 60 << 30),))
    world.nodes["n1"] = Node("n1", "ready", gpus=(used, gpu(1, state=state)))
    assert ("a GPU that failed" in ruled_out(judged(world))) == out


def test_the_timeline_goes_from_the_start_to_the_hang() -> None:
    moments = judged(skipped()).timeline
    assert [one.at for one in moments] == sorted(one.at for one in moments)
    kinds = [one.kind for one in moments]
    assert kinds[0] == "started"
    assert {"watched", "sign", "stopped", "hung"} <= set(kinds)
    (sign,) = [one for one in moments if one.kind == "sign"]
    assert (sign.rank, sign.at) == (3, HUNG_SINCE)
    (hung,) = [one for one in moments if one.kind == "hung"]
    assert hung.at == HUNG_SINCE + 30.0


def test_the_timeline_tells_what_the_kernel_said_of_this_job_and_of_no_other() -> None:
    world = skipped()
    mine = world.ranks[3].process.pid
    lines = (KernelLine(NOW - 90, OOM.format(mine)), KernelLine(NOW - 80, OOM.format(99)))
    world.nodes["n1"] = Node("n1", "ready", kernel_lines=lines)
    (told,) = [one for one in judged(world).timeline if one.kind == "kernel"]
    assert str(mine) in told.text
    assert told.at == NOW - 90


def test_two_faults_on_two_ranks_stand_apart() -> None:
    world = World()
    world.waiters(2)
    world.add(user("load", 7), STOP)
    world.add(user("cool_down", 35), SLEEP, moved_at=HUNG_SINCE + 12)
    first, second = judged(world).verdicts
    assert (first.cause, first.weaker, first.apart) == ("rank-stopped", "", False)
    assert (second.cause, second.apart) == ("missing-collective", True)
    assert second.weaker.startswith("what holds rank 2 does not hold rank 3")
    assert second.weaker.endswith("it began 12 s later")
    # Of one that was never seen to run it is not known when it began, but that it was so by then.
    world.ranks[3] = msgspec.structs.replace(world.ranks[3], moved_at=None)
    assert "it began" not in judged(world).verdicts[1].weaker
    world.ranks[3] = msgspec.structs.replace(world.ranks[3], moved_at=HUNG_SINCE + 12)
    text = diagnosis_text(judged(world))
    assert "Verdict 2 of 2 (a fault of its own): missing-collective" in text


@pytest.mark.parametrize(
    ("facts", "process", "cause"),
    [
        (STOP, {}, "rank-stopped"),
        (TRACED, {"tracer_pid": 777, "tracer": "gdb"}, "rank-traced"),
        (FUTEX, {"frozen": True, "cgroup": "/job_1"}, "cgroup-frozen"),
    ],
)
def test_who_was_held_while_it_already_waited_is_not_the_first_cause(
    facts: Any, process: dict[str, Any], cause: str
) -> None:
    # GIVEN a job that hangs, and somebody who then looks at a rank that waits with a debugger
    world = World()
    world.waiters(2)
    world.add(user("cool_down", 35), SLEEP)
    held = {"moved_at": NOW - 12.0, "left_at": HUNG_SINCE}
    world.add(c10d("all_reduce"), facts, process=process, **held)
    first, second = judged(world).verdicts
    assert (first.cause, second.cause, second.apart) == ("missing-collective", cause, True)
    # THEN it is told since when it is held, and not that it was so all the time
    before = duration(NOW - 12.0 - HUNG_SINCE)
    assert f"for 12 s, and had got nowhere for {before} before that" in second.summary
    assert second.weaker.endswith(f"it began {before} later")
    signs = [(one.rank, one.at) for one in judged(world).timeline if one.kind == "sign"]
    assert signs == [(2, HUNG_SINCE), (3, NOW - 12.0)]
    # GIVEN another fault that began later than that: it may follow from it
    world = World()
    world.waiters(2)
    since = {"same_since": NOW - 10.0, "same_functions_since": NOW - 10.0}
    world.add(QUEUE, FUTEX, moved_at=NOW - 10.0, sample=since)
    world.add(c10d("all_reduce"), facts, process=process, **held)
    assert [one.cause for one in judged(world).verdicts] == [cause, "queue-wait"]


def test_what_may_follow_from_the_first_is_no_fault_of_its_own() -> None:
    world = World()
    world.waiters(2)
    world.add(user("load", 7), STOP)
    world.add(DESTROY, FUTEX)
    first, second = judged(world).verdicts
    assert (first.cause, second.cause, second.apart) == ("rank-stopped", "teardown", False)
    assert "may also only follow from the first" in second.weaker


def test_what_may_come_by_itself_are_causes_that_there_are() -> None:
    assert {rule.cause for rule in RULES} >= BY_ITSELF


def test_a_weak_verdict_is_no_fault_of_its_own() -> None:
    world = World()
    world.waiters(4)
    world.add(user("load", 7), STOP)
    world.add(None, FUTEX)
    verdicts = judged(world).verdicts
    assert verdicts[0].cause == "rank-stopped"
    for verdict in verdicts[1:]:
        assert verdict.confidence < 0.6
        assert not verdict.apart
        assert verdict.weaker


def test_a_job_that_gets_on_has_nothing_ruled_out() -> None:
    world = World()
    world.waiters(3, c10d("all_reduce"), FUTEX, moved_at=NOW - 0.2)
    found = judged(world)
    assert found.state != "hung"
    assert found.ruled_out == ()
    assert found.timeline == ()


def test_a_job_without_ranks_has_a_timeline_of_its_launcher() -> None:
    world = World()
    launcher = world.process(500, POLL, role="launcher", launcher="torchrun", started_at=NOW - 100)
    sample = world.sample(RENDEZVOUS, pid=500)
    snapshot = world.snapshot(
        ranks=(),
        launchers=(launcher,),
        launcher_samples={f"{launcher.node}:500": sample},
        nodes=("n1",),
        world_size=None,
    )
    found = diagnose(snapshot, snapshot.jobs[0])
    assert found.verdicts[0].cause == "rendezvous-incomplete"
    texts = [one.text for one in found.timeline]
    assert texts[0] == "1 launcher started"
    assert "last sign of progress of the launcher" in texts
    assert not {"slow, not hung", "a rank that is not there"} & ruled_out(found).keys()


@pytest.mark.parametrize(
    ("nodes", "last"), [(40, "n[5-39] were last heard of"), (6, "n5 was last heard of")]
)
def test_many_silent_nodes_are_few_moments(nodes: int, last: str) -> None:
    world = World()
    for number in range(nodes):
        node = f"n{number}"
        world.waiters(1, node=node)
        if number:
            world.nodes[node] = Node(node, "lost", last_seen=NOW - 100 + number)
    told = [one.text for one in judged(world).timeline if one.kind == "left"]
    assert told[0] == "n1 was last heard of"
    assert told[-1] == last
    assert len(told) == 5


def test_an_error_in_a_log_has_its_place_in_the_timeline() -> None:
    text = (
        "2026-11-21 11:17:20,100 rank 2 starts\n"
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/srv/train.py", line 7, in step\n'
        "[rank2]: ValueError: bad sample 17\n"
    )
    (found,) = with_log(text).diagnoses.values()
    (told,) = [one for one in found.timeline if one.kind == "log"]
    assert told.text.startswith("rank 2: ValueError: bad sample 17")
    assert found.timeline[0].at < told.at


def test_who_looks_again_and_again_did_not_get_anywhere_after_the_job_itself() -> None:
    # GIVEN a rank that polls, seen first when hangtop came, long after the others began to wait
    world = World()
    world.waiters(2)
    since = {"same_since": ATTACHED - 0.5, "same_functions_since": ATTACHED - 0.5}
    world.add(user("wait_for_file", 36), SLEEP, moved_at=NOW - 0.3, sample=since)
    found = judged(world)
    assert found.verdicts[0].culprits[0].rank == 2
    moments = [one for one in found.timeline if one.kind in ("sign", "stopped")]
    assert [one.text for one in moments] == ["last sign of progress of any rank"]


def test_what_was_not_read_before_the_first_sample_is_no_stillness() -> None:
    # GIVEN a busy node, of which /proc was last read 40 s ago, and a first stack of just now
    world = World()
    world.nodes["n1"] = Node("n1", "ready", last_seen=NOW - 40.0)
    world.waiters(2)
    one = world.add(user("wait_for_file", 36), SLEEP, moved_at=NOW - 40.2)
    assert one.sample is not None
    first = {"first_at": NOW - 0.5, "same_since": NOW - 0.5, "same_functions_since": NOW - 0.5}
    sample = msgspec.structs.replace(one.sample, count=1, **first)
    world.ranks[2] = msgspec.structs.replace(one, sample=sample)
    # THEN what it did in between is not known, nor whether the job hangs
    assert judged(world).state == "unknown"
    # GIVEN another of 35 s later
    world = World(at=NOW + 35.0)
    world.nodes["n1"] = Node("n1", "ready", last_seen=NOW - 40.0)
    world.waiters(2)
    later = msgspec.structs.replace(sample, at=NOW + 34.5, count=2)
    world.add(user("wait_for_file", 36), SLEEP, moved_at=NOW - 40.2)
    world.ranks[2] = msgspec.structs.replace(world.ranks[2], sample=later)
    found = judged(world)
    # THEN it is one, and as long as it was seen to be there; not that it has not run since
    assert (found.state, found.stalled_for_s) == ("hung", 35.0)
    (told,) = [one.text for one in found.verdicts[0].evidence if one.source == "process"]
    assert "last ran" not in told
