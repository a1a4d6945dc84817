"""What a job costs grows with its ranks, and nothing grows faster: no rank is compared with all.

By counting lines of Python that run, which no other program changes. One rank to a node: what is
done for every pair of nodes, or of ranks, shows most there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop.views.health import health_steps
from hangtop.views.nodes.nodes import node_rows
from hangtop.views.overview import class_row_steps
from hangtop.views.ranks.ranks import RankRows
from hangtop.views.recorder.groups import grouped
from hangtop_core.analysis.peers import sought
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire import messages
from hangtop_core.model.updates import Options
from hangtop_core.scheduling.interruptible import at_once
from hangtop_core.stacks.merging import flatten, merge
from simulated.story import Story
from support.crowd import Crowd, first_words
from support.large import EPOCH, HANG_AFTER, Large, counted, operations
from support.played import Played

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = 24, 384
FASTER = 1.2
"""How much more a rank of many may cost than a rank of few."""
HUNG_AT, NOW = 2.0, 40.0


def hung(nodes: int, **story: object) -> Large:
    """All but one wait."""
    large = Large(nodes, ranks=1, hang_at=HUNG_AT, **story)  # type: ignore[arg-type]
    for at in (0.0, 1.0, 2.0, 3.0):
        large.hear(at)
    large.sample(4.0)
    large.hear(NOW)
    return large


def half_there(nodes: int) -> Large:
    """Half of the nodes have not answered yet: it is told where missing ranks should be."""
    return hung(nodes, silent=range(nodes // 2, nodes))


def lost(nodes: int) -> Large:
    """Half of the nodes are lost, each for a reason of its own."""
    large = hung(nodes)
    for number in range(0, nodes, 2):
        reason = f"no answer for {number} s; connecting again in 3 s"
        large.store.change_node(large.story.name(number), {"state": "lost", "reason": reason})
    return large


def each_alone(nodes: int) -> Large:
    """Every node was told a store of its own: they are found to be one job all the same."""
    return hung(nodes, env={"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"})


def in_two_calls(nodes: int) -> Large:
    """All wait, half of them in another call."""
    large = hung(nodes)
    snapshot = large.store.publish(EPOCH + NOW)
    key = snapshot.jobs[0].ranks[0].sample.threads[0].stack  # type: ignore[union-attr]
    there = tuple(replace(frame, line=frame.line + 1) for frame in snapshot.stacks[key])
    large.store.stacks.add("there", there)
    for number, view in enumerate(large.store.nodes.values()):
        (known,) = (one for one in view.live.values() if one.process.role == "rank")
        assert known.sample is not None
        waits = replace(known.sample.threads[0], stack="there" if number % 2 else key)
        known.sample = replace(known.sample, threads=(waits,))
        large.store.touched(view, known)
    return large


def in_sockets(nodes: int) -> Large:
    """Every rank waits on a socket to the next one; of half of them tables were read."""
    large = hung(nodes)
    for number, (name, view) in enumerate(large.store.nodes.items()):
        large.store.change_node(name, {"addresses": (address(number),)})
        known = next(one for one in view.live.values() if one.process.role == "rank")
        main, *others = known.process.threads
        threads = (replace(main, syscall="read", fd=4), *others)
        known.process = replace(known.process, threads=threads)
        if number % 2 == 0:
            local, remote = f"{address(number)}:4000", f"{address((number + 1) % nodes)}:5000"
            ends = {"family": "tcp", "state": "ESTABLISHED", "local": local, "remote": remote}
            one = {"fd": 4, "target": "socket:[1]", "kind": "socket", "socket": ends}
            said = {"pid": known.process.pid, "at": EPOCH + NOW, "descriptors": [one]}
            piece = messages.decode(said, messages.DescriptorPiece)
            large.answers.descriptors(name, piece)
    return large


def address(number: int) -> str:
    return f"10.0.{number >> 8}.{number & 255}"


def costs(large: Large) -> dict[str, int]:
    """Lines that run for each thing that is done with a picture."""
    found: dict[str, int] = {}

    def count(name: str, work: Callable[[], object]) -> None:
        found[name] = operations(work)

    at = EPOCH + NOW
    count("publish", lambda: large.store.publish(at))
    count("odd ranks", large.store.outlier_ranks)
    snapshot = counted(large.store.publish(at))
    (job,) = snapshot.jobs
    diagnosis = diagnose(snapshot, job, HANG_AFTER)
    assert not large.complaints
    assert diagnosis.verdicts
    count("sought", lambda: sought(snapshot))
    count("diagnose", lambda: diagnose(snapshot, job, HANG_AFTER))
    count("logs due", lambda: large.store.outputs.due(snapshot, {job.key: diagnosis}, at))
    rows = RankRows().take(snapshot, job, diagnosis, at)
    count("rows", lambda: RankRows().take(snapshot, job, diagnosis, at))
    count("groups", lambda: grouped(snapshot, rows, "node", frozenset(), at, whole=False))
    count("classes", lambda: at_once(class_row_steps(snapshot, job, diagnosis, at)))
    count("health", lambda: at_once(health_steps(snapshot, job, at)))
    count("nodes", lambda: node_rows(snapshot, job, diagnosis, at, folded=True))
    count("stacks", lambda: flatten(merge(snapshot, job)))
    return found


@pytest.mark.parametrize(
    "situation", [hung, half_there, lost, each_alone, in_two_calls, in_sockets]
)
def test_a_rank_of_many_costs_what_a_rank_of_few_does(situation: Callable[[int], Large]) -> None:
    few, many = costs(situation(FEW)), costs(situation(MANY))
    each = {name: (few[name] / FEW, many[name] / MANY) for name in few}
    wrong = {name: one for name, one in each.items() if one[1] > FASTER * one[0]}
    assert not wrong, "lines for each rank, of few and of many"


REST = 0.1
"""What a second costs in which a job hangs, of one in which all of its rows change."""


def lines_a_second(played: Played, seconds: float) -> float:
    found: list[int] = []
    played.run(seconds, lambda turn: found.append(operations(turn)))
    return sum(found) / seconds


def test_a_job_that_hangs_costs_next_to_nothing_and_a_change_is_seen_at_once() -> None:
    played = Played(32)
    played.run(4)
    busy = lines_a_second(played, 3)
    played.change(hang_at=played.now)
    played.run(80)
    assert played.diagnosis is not None
    assert played.diagnosis.state == "hung"
    assert [one.rank for one in played.diagnosis.verdicts[0].culprits] == [played.story.culprit]
    rests = lines_a_second(played, 30)
    assert rests < REST * busy
    before = played.pictures
    played.run(5)
    assert played.pictures <= before + 1, "there is nothing to see"
    played.change(hang_at=-1.0)
    played.run(4)
    assert played.diagnosis.state != "hung"


def start(nodes: int) -> dict[str, int]:
    """Lines that run from the first connection to the first picture of all, in its parts.

    As many log in at a time as a gate lets through, each as soon as one before it has.
    """
    words = first_words(Story(nodes=nodes, ranks=1, hang_at=-1.0))
    crowd = Crowd(0, at_once=8, options=Options())
    found: dict[str, int] = {}

    def add() -> None:
        crowd.add(nodes)

    def come() -> None:
        for number, (hello, table) in enumerate(words):
            crowd.hear(crowd.engine.opened[number], hello)
            crowd.hear(crowd.engine.opened[number], table)
            crowd.mono += 0.001
            crowd.collector.tick(crowd.now)

    def show() -> None:
        snapshot = crowd.collector.store.publish(EPOCH)
        crowd.collector.rounds.look_closer(snapshot)
        (job,) = snapshot.jobs
        assert len(job.ranks) == nodes
        RankRows().take(snapshot, job, diagnose(snapshot, job, HANG_AFTER), EPOCH)

    for name, work in (("add", add), ("come", come), ("show", show)):
        found[name] = operations(work)
    assert crowd.collector.arrivals.over
    return found


def test_a_node_of_many_is_as_soon_there_as_one_of_few() -> None:
    few, many = start(FEW), start(MANY)
    each = {name: (few[name] / FEW, many[name] / MANY) for name in few}
    wrong = {name: one for name, one in each.items() if one[1] > FASTER * one[0]}
    assert not wrong, "lines for each node, of few and of many"
