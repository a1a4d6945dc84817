"""Which smaller jobs follow one that fails: few, and enough to find the guilty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.nettest import judge, said
from hangtop_core.nettest.conduct import Wanted
from hangtop_core.nettest.facts import Facts, JobRun, Member, Outcome, Spot
from hangtop_core.nettest.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Sequence


class Broken:
    """Stands for processes with torch, of which some pairs cannot work together."""

    def __init__(self, pairs: set[frozenset[str]]) -> None:
        self.pairs = pairs
        self.turns: list[list[tuple[str, ...]]] = []
        self.lines: dict[str, list[str]] = {}

    def start(self, wanted: Sequence[tuple[str, str]]) -> tuple[dict[Any, said.Torch], Any]:
        return {who: said.Torch(torch="2.13.0", backends=("gloo",)) for who in wanted}, {}

    def run(
        self, jobs: Sequence[Sequence[Member]], order: Any, limit: float, backend: str
    ) -> list[JobRun]:
        self.turns.append([tuple(member.node for member in job) for job in jobs])
        found = []
        for job in jobs:
            assert {order(member)["store"][0] for member in job} == {job[0].node}
            nodes = {member.node for member in job}
            bad = any(pair <= nodes for pair in self.pairs)
            outcomes = [
                Outcome(member, step="init", error="timed out") if bad else Outcome(member)
                for member in job
            ]
            found.append(JobRun(backend, tuple(outcomes)))
        return found


def conducted(count: int, pairs: set[frozenset[str]]) -> tuple[Facts, Broken]:
    names = [f"n{n}" for n in range(1, count + 1)]
    python = said.Python("/usr/bin/python3", "3.11", "2.13.0")
    facts = Facts(nodes=tuple(names), looked={n: said.Look(n, pythons=(python,)) for n in names})
    facts.spots = {name: Spot("eth0", name, 24) for name in names}
    # Their names are right, so that there is no other interface to try.
    facts.names = {}
    ranks = Broken(pairs)
    jobs = Jobs(type("Nodes", (), {"tell": lambda self, text: None})(), facts, Wanted(29500))
    jobs._ranks = ranks  # type: ignore[assignment]
    jobs.run()
    return facts, ranks


@pytest.mark.parametrize("count", [3, 8, 20, 64])
def test_a_node_that_fails_with_all_others_is_found(count: int) -> None:
    bad = f"n{count - 1}"
    pairs = {frozenset({bad, f"n{n}"}) for n in range(1, count + 1) if f"n{n}" != bad}
    facts, ranks = conducted(count, pairs)
    finding = judge.findings(facts)[0]
    assert finding.nodes == (bad,)
    assert f"fails because of {bad}" in finding.summary
    # Not all pairs, but those of one group, some at the same time.
    assert len(facts.pair_jobs) <= 28
    assert len(ranks.turns) <= 10


@pytest.mark.parametrize("pair", [("n1", "n2"), ("n3", "n20"), ("n19", "n20")])
def test_one_pair_among_many_is_found(pair: tuple[str, str]) -> None:
    facts, _ = conducted(20, {frozenset(pair)})
    finding = judge.findings(facts)[0]
    assert set(finding.nodes) == set(pair)
    assert "the way between" in finding.summary
    assert len(facts.pair_jobs) < 20 * 19 / 2 / 2


def test_a_job_that_works_is_not_followed_by_others() -> None:
    facts, ranks = conducted(5, set())
    assert len(ranks.turns) == 1
    assert judge.findings(facts) == ()
