"""What logs say where nothing else explains a hang: when it counts, and when it does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.logs.output import Output
from hangtop_core.outputs import parse
from support.build import ATTACHED, HUNG_SINCE, NOW, SLEEP, World, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Verdict


def stamped(at: float, rank: int, text: str) -> str:
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(at))
    head = f"[rank{rank}]:[E{stamp}.000000000 ProcessGroupNCCL.cpp:1]"
    return f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {text}"


def behind(at: float) -> list[str]:
    """Watchdogs of ranks 0 and 1 wait for #9, which rank 2 has not begun."""
    state = " failure detected by watchdog at work sequence id: 9 PG status: "
    state += "last enqueued work: {}, last completed work: 8"
    return [stamped(at, rank, state.format(8 if rank == 2 else 9)) for rank in range(3)]


def judged(world: World, *lines: str, size: int | None = None) -> tuple[Verdict, ...]:
    """Verdicts of a job of a size whose ranks print to one file."""
    text = "".join(f"{line}\n" for line in lines)
    snapshot = world.snapshot(world_size=size or len(world.ranks))
    pids = (100, *(rank.process.pid for rank in snapshot.jobs[0].ranks))
    log = parse("n1", "/logs/job.log", text, 0, len(text), NOW)
    output = Output("n1", "1:2", "/logs/job.log", pids, NOW, len(text), NOW, 0, text, log)
    snapshot = msgspec.structs.replace(snapshot, outputs=(output,))
    return diagnose(snapshot, snapshot.jobs[0]).verdicts


def alike(ranks: int = 3, observed_since: float = ATTACHED) -> World:
    world = World(observed_since=observed_since)
    world.waiters(ranks, process={"started_at": HUNG_SINCE - 7200})
    return world


def test_watchdogs_name_who_is_behind() -> None:
    (one,) = judged(alike(), *behind(HUNG_SINCE + 60))
    assert (one.cause, [c.rank for c in one.culprits]) == ("missing-collective", [2])
    assert "#9 of group default_pg" in one.summary


def test_an_old_line_counts_only_where_nobody_saw_the_job_get_on_since() -> None:
    old = behind(HUNG_SINCE - 300)
    assert judged(alike(), *old)[0].cause == "missing-collective"
    watched = alike(observed_since=HUNG_SINCE - 600)
    assert judged(watched, *old)[0].cause == "unknown"


def test_lines_are_asked_last() -> None:
    world = alike(2)
    world.add(user("evaluate", 30, "time.sleep(9)"), SLEEP)
    (one,) = judged(world, *behind(HUNG_SINCE + 60))
    assert (one.cause, [c.rank for c in one.culprits]) == ("missing-collective", [2])
    assert any(e.source == "stacks" for e in one.evidence)
    assert any("begun #8" in e.text for e in one.evidence)


def test_what_half_of_the_ranks_print_is_nobodys_fault() -> None:
    lines = [f"[rank{rank}]: RuntimeError: CUDA out of memory" for rank in range(2)]
    assert judged(alike(), *lines)[0].cause == "unknown"
    assert judged(alike(), lines[1])[0].cause == "missing-collective"


def test_a_line_of_the_kernel_is_about_the_process_it_names() -> None:
    world = alike()
    pid = world.snapshot().jobs[0].ranks[1].process.pid
    line = f"[rank0]: [1.2] NVRM: Xid (PCI:0000:9b:00): 79, pid={pid}, GPU has fallen off the bus"
    one = judged(world, line)[0]
    assert (one.cause, [c.rank for c in one.culprits]) == ("gpu-xid", [1])


def test_who_lost_the_connection_to_a_rank_that_is_not_there_is_not_to_blame() -> None:
    """As seen of four gloo ranks without a launcher, of which one had aborted."""
    world = alike(1)
    for rank in (2, 3):
        sleeps = {"started_at": HUNG_SINCE - 7200}
        world.add(user("main", 25, "time.sleep(9)"), SLEEP, rank=rank, process=sleeps)
    lines = [f"[rank{rank}]: RuntimeError: Connection reset by peer" for rank in (2, 3)]
    one = judged(world, *lines, size=4)[0]
    assert (one.cause, [c.rank for c in one.culprits]) == ("rank-exited", [1])
    assert "ranks 2-3 lost the connection to a rank" in one.summary
    # Nothing was lost: who sleeps is to blame.
    assert judged(world, "step 5", size=4)[0].cause == "missing-collective"
