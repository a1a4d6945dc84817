"""Which smaller jobs follow one that fails: few, and enough to find the guilty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.nettest import answers, judge
from hangtop_core.nettest.facts import Facts, JobRun, Member, Names, Outcome, Spot, Wanted
from hangtop_core.nettest.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Sequence


class Broken:
    """Stands for processes with torch, of which some pairs cannot work together.

    Names are those of places: a node, or one of its GPUs; no machine here has any.
    """

    def __init__(self, pairs: set[frozenset[str]], gpus: int, step: str) -> None:
        self.pairs = pairs
        self.step = step
        self.gpus = ("NVIDIA H100",) * gpus
        self.turns: list[list[tuple[str, ...]]] = []
        self.lines: dict[str, list[str]] = {}

    def start(self, wanted: Sequence[tuple[str, str]]) -> tuple[dict[Any, answers.Torch], Any]:
        hello = answers.Torch(torch="2.13.0", backends=("gloo", "nccl"), gpus=self.gpus)
        return dict.fromkeys(wanted, hello), {}

    def run(
        self, jobs: Sequence[Sequence[Member]], order: Any, limit: float, backend: str
    ) -> list[JobRun]:
        self.turns.append([tuple(member.place for member in job) for job in jobs])
        hosts = [job[0].node for job in jobs if len(job) > 1]
        assert len(hosts) == len(set(hosts)), "two stores at one port of a node"
        found = []
        for job in jobs:
            assert {order(member)["store"][0] for member in job} == {job[0].node}
            places = {member.place for member in job} | {member.node for member in job}
            comes_to_it = self.step in order(job[0])["steps"]
            bad = comes_to_it and any(pair <= places for pair in self.pairs)
            outcomes = [
                Outcome(member, step=self.step, error="timed out") if bad else Outcome(member)
                for member in job
            ]
            found.append(JobRun(backend, tuple(outcomes)))
        return found


def conducted(
    count: int, pairs: set[frozenset[str]], gpus: int = 0, step: str = "init"
) -> tuple[Facts, Broken]:
    names = [f"n{n}" for n in range(1, count + 1)]
    python = answers.Python("/usr/bin/python3", "3.11", "2.13.0")
    facts = Facts(nodes=tuple(names))
    for name in names:  # which are their addresses, too
        links = (answers.Link("eth0", "ethernet", addresses=(answers.Address(name, 24),)),)
        facts.looked[name] = answers.Look(name, links=links, pythons=(python,))
    facts.spots = {name: Spot("eth0", name, 24) for name in names}
    # Their names are right, so that there is no other interface to try.
    facts.names = {name: Names({name: (name,)}) for name in names}
    ranks = Broken(pairs, gpus, step)
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
@pytest.mark.parametrize("step", ["init", "all_reduce", "bandwidth"])
def test_one_pair_among_many_is_found(pair: tuple[str, str], step: str) -> None:
    facts, _ = conducted(20, {frozenset(pair)}, step=step)
    finding = judge.findings(facts)[0]
    assert set(finding.nodes) == set(pair)
    assert "the way between" in finding.summary
    assert len(facts.pair_jobs) < 20 * 19 / 2 / 2


def test_a_job_that_works_is_not_followed_by_others() -> None:
    facts, ranks = conducted(5, set())
    assert len(ranks.turns) == 1
    assert judge.findings(facts) == ()


def test_a_gpu_that_fails_alone_is_found_before_any_pair() -> None:
    facts, ranks = conducted(2, {frozenset({"n2 cuda:1"})}, gpus=2, step="memory")
    (finding,) = judge.findings(facts)
    assert (finding.cause, finding.nodes) == ("gpu-failed", ("n2",))
    assert finding.summary.startswith("n2 cuda:1 ")
    assert ranks.turns[1][0] == ("n1 cuda:0", "n1 cuda:1", "n2 cuda:0", "n2 cuda:1")
    assert not facts.pair_jobs


def test_a_pair_of_gpus_of_one_node_is_found() -> None:
    facts, _ = conducted(1, {frozenset({"n1 cuda:1", "n1 cuda:3"})}, gpus=4)
    finding = judge.findings(facts)[0]
    assert finding.nodes == ("n1",)
    assert "the way between n1 cuda:1 and n1 cuda:3" in finding.summary
    assert finding.evidence[0] == "jobs of two GPUs: 5 of 6 work"
