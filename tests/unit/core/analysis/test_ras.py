"""Reports of NCCL's RAS become evidence of ranks, and causes where nothing else tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.recorder.ras import Ras, from_json
from hangtop_core.model.recorder.ras_text import from_text
from hangtop_core.model.snapshot import Node
from support.build import NOW, World
from support.ras import document, missing, rank, text
from support.situations import FUTEX, SLEEP, c10d, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Verdict
    from hangtop_core.model.snapshot import Job

HOST = "10.0.0.1"
HERE = Node("n1", "ready", addresses=(HOST,))


def pid_of(number: int) -> int:
    return 4000 + number * 10


def judge(world: World, told: Ras | None, through: int = 0) -> Diagnosis:
    """Diagnose with a report that one rank has given."""
    world.nodes["n1"] = HERE
    snapshot = world.snapshot()
    job = _told(snapshot.jobs[0], told, through)
    return diagnose(replace(snapshot, jobs=(job,)), job)


def _told(job: Job, told: Ras | None, through: int) -> Job:
    ranks = (replace(one, ras=told) if one.rank == through else one for one in job.ranks)
    return replace(job, ranks=tuple(ranks))


def hung(late: int | None = None) -> World:
    world = World()
    for number in range(4):
        if number == late:
            world.add(user("cool_down", 41), SLEEP)
        else:
            world.add(c10d("all_reduce"), FUTEX)
    return world


def counts(late: int, host: str = HOST, pid: int | None = None) -> str:
    ranks = [
        rank(
            n,
            pid if n == late and pid is not None else pid_of(n),
            host,
            counts={"AllReduce": 41 if n == late else 42},
        )
        for n in range(4)
    ]
    return document((ranks, []))


def said(verdict: Verdict) -> list[tuple[str, int | None, str]]:
    return [
        (one.source, one.rank, one.text)
        for one in verdict.evidence
        if one.text.startswith("NCCL's RAS")
    ]


def test_without_a_difference_in_stacks_the_counts_tell_who_lacks() -> None:
    assert judge(hung(), None).verdicts[0].cause == "unknown"
    verdict = judge(hung(), from_json(counts(2), NOW)).verdicts[0]
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("missing-collective", [2])
    assert verdict.victims == (0, 1, 3)
    assert "launched AllReduce 41 times in communicator 0xc0ffee0, 3 others 42 times" in (
        verdict.summary
    )
    assert verdict.confidence == 0.7


def test_the_same_from_text() -> None:
    told = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 42
  1 ranks have launched up to operation 41
  Rank 2 -- GPU 2 managed by process 4020 on node 10.0.0.1

"""
    rows = "    0         1         1         4         4         4   RUNNING  MISMATCH\n"
    verdict = judge(hung(), from_text(text(rows, warnings=told), NOW)).verdicts[0]
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("missing-collective", [2])


def test_counts_support_what_a_stack_tells() -> None:
    verdict = judge(hung(late=2), from_json(counts(2), NOW)).verdicts[0]
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("missing-collective", [2])
    (fact,) = said(verdict)
    assert fact[:2] == ("flight", 2)
    assert "it has launched AllReduce 41 times" in fact[2]


@pytest.mark.parametrize(
    ("host", "pid", "found"),
    [
        (HOST, pid_of(2), True),
        ("127.0.0.1", pid_of(2), True),  # of the node that answered
        (HOST, 7, False),  # a stranger on a node whose other pids are those of ranks
        ("10.9.9.9", pid_of(2), False),  # a host that nobody knows
    ],
)
def test_ranks_are_told_by_host_and_pid(host: str, pid: int, found: bool) -> None:
    ranks = [rank(n, pid_of(n), counts={"AllReduce": 40 + n % 2}) for n in range(2)]
    ranks += [rank(2, pid, host, counts={"AllReduce": 30})]
    ranks += [rank(n, pid_of(n), counts={"AllReduce": 41}) for n in (3,)]
    facts = said(judge(hung(late=2), from_json(document((ranks, [])), NOW)).verdicts[0])
    assert bool(facts) == found


def test_in_a_container_with_pids_of_its_own_the_device_tells() -> None:
    ranks = [rank(n, 1 + n, counts={"AllReduce": 41 if n == 2 else 42}) for n in range(4)]
    facts = said(judge(hung(late=2), from_json(document((ranks, [])), NOW)).verdicts[0])
    assert [fact[1] for fact in facts] == [2]


def test_a_rank_that_does_not_answer() -> None:
    told = document(([rank(n, pid_of(n)) for n in (0, 1, 3)], [missing(2, pid_of(2), dead=True)]))
    verdict = judge(hung(late=2), from_json(told, NOW)).verdicts[0]
    assert said(verdict) == [("network", 2, "NCCL's RAS has given it up for dead")]


def test_a_communicator_that_is_being_made_without_a_rank() -> None:
    ranks = [rank(n, pid_of(n), init_state=7) for n in (0, 1, 3)]
    told = document((ranks, [missing(2, pid_of(2), unresponsive=False)]))
    verdict = judge(hung(), from_json(told, NOW)).verdicts[0]
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("nccl-init-incomplete", [2])
    assert "ranks 0-1,3 initialize communicator 0xc0ffee0 of 4 ranks, and rank 2 (n1" in (
        verdict.summary
    )


def test_one_rank_alone_initializes_a_communicator() -> None:
    ranks = [rank(n, pid_of(n), init_state=7) for n in (0,)]
    told = document((ranks, [missing(1, pid_of(1), unresponsive=False)]))
    verdict = judge(hung(), from_json(told, NOW)).verdicts[0]
    assert "rank 0 initializes communicator 0xc0ffee0 of 2 ranks, and rank 1 (n1" in verdict.summary


def test_an_error_is_told_with_its_meaning() -> None:
    ranks = [rank(n, pid_of(n), async_error=6 if n == 2 else 0) for n in range(4)]
    (fact,) = said(judge(hung(late=2), from_json(document((ranks, [])), NOW)).verdicts[0])
    assert fact[2].endswith("asynchronous error 6 (another rank failed or is gone)")


def test_that_all_agree_is_told_without_saying_that_all_is_well() -> None:
    ranks = [rank(n, pid_of(n), counts={"AllReduce": 42}) for n in range(4)]
    verdict = judge(hung(), from_json(document((ranks, [])), NOW)).verdicts[0]
    assert verdict.cause == "unknown"
    ((source, number, fact),) = said(verdict)
    assert (source, number) == ("flight", None)
    assert "That they are through is not told" in fact


def test_half_of_the_ranks_are_not_blamed_for_the_others() -> None:
    ranks = [rank(n, pid_of(n), counts={"AllReduce": 41 + n // 2}) for n in range(4)]
    assert judge(hung(), from_json(document((ranks, [])), NOW)).verdicts[0].cause == "unknown"


def test_why_there_is_no_report_is_a_blind_spot() -> None:
    def spots(world: World, told: Ras | None) -> list[tuple[str, str]]:
        found = judge(world, told).blind_spots
        return [(one.why, one.fix) for one in found if one.what == "NCCL RAS"]

    assert spots(hung(), None) == []
    world = hung()
    world.ranks[1] = replace(
        world.ranks[1], process=replace(world.ranks[1].process, versions={"nccl": "2.29.7"})
    )
    ((why, fix),) = spots(world, None)
    assert "not asked" in why
    assert "--ras" in fix
    failed = Ras(NOW, failure="NCCL 2.27.5 is not asked: it crashes", fix="a later one")
    assert spots(world, failed) == [("NCCL 2.27.5 is not asked: it crashes", "a later one")]
    assert spots(world, from_json(counts(2), NOW)) == []
    ((why, _),) = spots(world, replace(from_json(counts(2), NOW), whole=False))
    assert "cut off" in why
