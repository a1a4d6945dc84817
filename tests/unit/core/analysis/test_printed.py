"""What logs say where nothing else explains a hang: when it counts, and when it does not."""

from __future__ import annotations

import time

from support.build import ATTACHED, HUNG_SINCE, World
from support.situations import SLEEP, user
from support.verdicts import printing


def stamped(at: float, rank: int, text: str) -> str:
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(at))
    head = f"[rank{rank}]:[E{stamp}.000000000 ProcessGroupNCCL.cpp:1]"
    return f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {text}"


def behind(at: float) -> list[str]:
    """Watchdogs of ranks 0 and 1 wait for #9, which rank 2 has not begun."""
    state = " failure detected by watchdog at work sequence id: 9 PG status: "
    state += "last enqueued work: {}, last completed work: 8"
    return [stamped(at, rank, state.format(8 if rank == 2 else 9)) for rank in range(3)]


def alike(ranks: int = 3, observed_since: float = ATTACHED) -> World:
    world = World(observed_since=observed_since)
    world.waiters(ranks, process={"started_at": HUNG_SINCE - 7200})
    return world


def test_watchdogs_name_who_is_behind() -> None:
    (one,) = printing(alike(), *behind(HUNG_SINCE + 60)).verdicts
    assert (one.cause, [c.rank for c in one.culprits]) == ("missing-collective", [2])
    assert "#9 of group default_pg" in one.summary


def test_an_old_line_counts_only_where_nobody_saw_the_job_get_on_since() -> None:
    old = behind(HUNG_SINCE - 300)
    assert printing(alike(), *old).verdicts[0].cause == "missing-collective"
    watched = alike(observed_since=HUNG_SINCE - 600)
    assert printing(watched, *old).verdicts[0].cause == "unknown"


def test_lines_are_asked_last() -> None:
    world = alike(2)
    world.add(user("evaluate", 30, "time.sleep(9)"), SLEEP)
    (one,) = printing(world, *behind(HUNG_SINCE + 60)).verdicts
    assert (one.cause, [c.rank for c in one.culprits]) == ("missing-collective", [2])
    assert any(e.source == "stacks" for e in one.evidence)
    assert any("begun #8" in e.text for e in one.evidence)


def test_what_half_of_the_ranks_print_is_nobodys_fault() -> None:
    lines = [f"[rank{rank}]: RuntimeError: CUDA out of memory" for rank in range(2)]
    assert printing(alike(), *lines).verdicts[0].cause == "unknown"
    assert printing(alike(), lines[1]).verdicts[0].cause == "missing-collective"


def test_a_line_of_the_kernel_is_about_the_process_it_names() -> None:
    world = alike()
    pid = world.snapshot().jobs[0].ranks[1].process.pid
    line = f"[rank0]: [1.2] NVRM: Xid (PCI:0000:9b:00): 79, pid={pid}, GPU has fallen off the bus"
    one = printing(world, line).verdicts[0]
    assert (one.cause, [c.rank for c in one.culprits]) == ("gpu-xid", [1])


def test_who_lost_the_connection_to_a_rank_that_is_not_there_is_not_to_blame() -> None:
    """As seen of four gloo ranks without a launcher, of which one had aborted."""
    world = alike(1)
    for rank in (2, 3):
        sleeps = {"started_at": HUNG_SINCE - 7200}
        world.add(user("main", 25, "time.sleep(9)"), SLEEP, rank=rank, process=sleeps)
    lines = [f"[rank{rank}]: RuntimeError: Connection reset by peer" for rank in (2, 3)]
    one = printing(world, *lines, world_size=4).verdicts[0]
    assert (one.cause, [c.rank for c in one.culprits]) == ("rank-exited", [1])
    assert "ranks 2-3 lost the connection to a rank" in one.summary
    # Nothing was lost: who sleeps is to blame.
    assert printing(world, "step 5", world_size=4).verdicts[0].cause == "missing-collective"
