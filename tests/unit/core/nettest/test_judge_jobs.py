"""What is concluded from the jobs that ran: who made them fail, be slow, or compute wrong."""

from __future__ import annotations

from itertools import combinations

import msgspec

from hangtop_core.nettest import judge, report
from hangtop_core.nettest.facts import Facts, JobRun, Member, Outcome
from hangtop_core.text.commands import texts
from support.nettest import NODES, facts, failing, only, pair, run

# Recorded with torch 2.13 on one machine: AVX512, and ATEN_CPU_CAPABILITY=default.
SOFTMAX = "0x1.3fc8740000000p-13"
SOFTMAX_ROUNDED = "0x1.3fc8760000000p-13"
POWER_CPU = 7.94328212738037109375
POWER_GPU = 7.94328308105468750000


def test_a_job_is_narrowed_down_to_a_node() -> None:
    made = facts(
        jobs=[failing("init", "Gloo connectFullMesh failed with timed out", *NODES)],
        pair_jobs=[pair("n1", "n2", True), pair("n1", "n3", False), pair("n2", "n3", False)],
    )
    one = only(made)
    assert one.nodes == ("n3",)
    assert "fails because of n3 (10.0.0.3)" in one.summary
    assert one.evidence[0] == "jobs of two nodes: 1 of 3 work"
    assert texts(one.next_steps)[0] == "the others by themselves: hangtop nettest -w 'n[1-2]'"
    made.pair_jobs = [pair("n1", "n2", True), pair("n1", "n3", True), pair("n2", "n3", False)]
    assert "the way between n2 (10.0.0.2) and n3 (10.0.0.3)" in only(made).summary
    made.pair_jobs = [pair("n1", "n2", True), pair("n1", "n3", True), pair("n2", "n3", True)]
    assert "only together they fail" in only(made).evidence[0]


def test_a_process_that_ended_is_the_trouble_of_its_node() -> None:
    ended = Outcome(Member("n2"), step="init", error="its process was killed by SIGABRT", gone=True)
    late = Outcome(Member("n1"), step="init", error="Connection reset by peer")
    one = only(facts(jobs=[run(late, ended, Outcome(Member("n3")))]))
    assert (one.cause, one.nodes) == ("job-failed", ("n2",))
    assert "fails because of n2" in one.summary


def test_a_job_that_works_once_its_interface_is_named() -> None:
    made = facts(jobs=[failing("init", "Connection refused", *NODES), run(forced=True)])
    made.names["n2"].names["n2"] = ("127.0.1.1",)
    one = judge.findings(made)[0]
    assert (one.cause, one.level, one.nodes) == ("wrong-interface", "failure", ("n2",))
    assert "works with GLOO_SOCKET_IFNAME=eth0" in one.summary


def test_gloo_on_nodes_with_different_interfaces_is_told_one_each() -> None:
    made = facts(jobs=[failing("init", "Connection refused", *NODES), run(forced=True)])
    for node in ("n2", "n3"):
        made.names[node].names[node] = ("127.0.1.1",)
    made.spots["n3"] = msgspec.structs.replace(made.spots["n3"], interface="ens3")
    one = judge.findings(made)[0]
    told = "GLOO_SOCKET_IFNAME=ens3 on n3 and GLOO_SOCKET_IFNAME=eth0 on n2"
    assert one.summary.endswith(f"works with {told}")
    assert texts(one.next_steps) == (f"set {told} for all ranks",)


def test_what_nccl_prints_is_explained() -> None:
    line = (
        "n2:5776:5902 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer "
        "10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)"
    )
    broken_job = failing("all_reduce", "NCCL error", "n2")
    made = facts(jobs=[msgspec.structs.replace(broken_job, backend="nccl")], lines={"n2": (line,)})
    assert any("10.2.0.5" in fact and fact.startswith("n2: ") for fact in only(made).evidence)


def wrong(error: str, *nodes: str, step: str = "all_reduce") -> JobRun:
    return failing(step, error, *nodes, wrong=True)


def test_who_makes_sums_wrong_is_told_and_not_all_who_see_it() -> None:
    made = facts(jobs=[wrong("3 of 1000 sums are wrong", *NODES)])
    made.pair_jobs = [pair("n1", "n2", True), pair("n1", "n3", False), pair("n2", "n3", False)]
    one = only(made)
    assert (one.cause, one.nodes) == ("numbers-wrong", ("n3",))
    assert one.summary == (
        "numbers come out wrong because of n3 (10.0.0.3): 3 of 1000 sums are wrong"
    )
    assert one.evidence[0] == "jobs of two nodes: 1 of 3 work"
    assert texts(one.next_steps)[1] == "the others by themselves: hangtop nettest -w 'n[1-2]'"
    # The way between two of them.
    made.pair_jobs = [pair("n1", "n2", True), pair("n1", "n3", True), pair("n2", "n3", False)]
    assert "because of the way between n2 (10.0.0.2) and n3 (10.0.0.3)" in only(made).summary
    # Not known whose it is: all who see it, and how to find out.
    made.pair_jobs = []
    assert only(made).nodes == NODES
    assert "by itself: hangtop nettest -w n1" in texts(only(made).next_steps)


def test_bytes_that_arrived_changed_name_the_node_they_came_from() -> None:
    made = facts(jobs=[wrong("bytes from rank 2 arrived changed", "n2", step="bandwidth")])
    assert only(made).summary == "n2: bytes from rank 2 (n3) arrived changed"


def test_ranks_that_did_not_come_to_the_store_are_named_by_their_nodes() -> None:
    made = facts(jobs=[failing("store", "ranks [1, 2] did not come to the store", "n1")])
    assert "n1: ranks [1 (n2), 2 (n3)] did not come to the store" in only(made).evidence


def test_a_node_that_is_slow_both_with_near_and_with_far() -> None:
    # n2 sends little: n3 and n1, who receive from it at distance 1 and 2, get little from it.
    rates = {"n1": (10**9, 10**8), "n2": (10**9, 10**9), "n3": (10**8, 10**9)}
    outcomes = [
        Outcome(Member(node), rates=((1, near), (2, far))) for node, (near, far) in rates.items()
    ]
    made = facts(jobs=[run(*outcomes)])
    one = only(made)
    assert (one.cause, one.level, one.nodes) == ("slow-link", "warning", ("n2",))
    assert one.summary.startswith("n2 sends ")
    # Where pairs were tried, too, it has to be slow with each of them.
    made.pair_jobs = [
        JobRun("gloo", tuple(Outcome(Member(node), rates=((1, 10**9),)) for node in pair))
        for pair in combinations(NODES, 2)
    ]
    assert judge.findings(made) == ()
    made.pair_jobs = [
        JobRun(
            "gloo",
            # Who receives from n2 gets little.
            (
                Outcome(Member(a), rates=((1, 10**8 if b == "n2" else 10**9),)),
                Outcome(Member(b), rates=((1, 10**8 if a == "n2" else 10**9),)),
            ),
        )
        for a, b in combinations(NODES, 2)
    ]
    assert only(made).summary.startswith("n2 sends ")


def test_who_only_waits_for_a_very_slow_node_is_not_called_slow() -> None:
    # n2 sends 1 MB/s, so all send little, at which n3 looks slower than it is.
    rates = {"n1": (9 * 10**8, 10**6), "n2": (8 * 10**8, 9 * 10**8), "n3": (10**6, 3 * 10**7)}
    outcomes = [
        Outcome(Member(node), rates=((1, near), (2, far))) for node, (near, far) in rates.items()
    ]
    made = facts(jobs=[run(*outcomes)])
    one = only(made)
    assert (one.cause, one.nodes) == ("slow-link", ("n2",))
    assert "but n2 sends 977 KiB/s by gloo" in report.headline(made, (one,), 0)


def numeric(**values: float | str) -> Facts:
    texts = {
        node: value if isinstance(value, str) else value.hex() for node, value in values.items()
    }
    outcomes = [
        Outcome(Member(node), rates=((1, 10**9),), numerics={"powers": (text,)})
        for node, text in texts.items()
    ]
    return facts(jobs=[run(*outcomes)])


def test_rounding_is_a_note_and_more_than_that_a_failure() -> None:
    made = numeric(n1=SOFTMAX, n2=SOFTMAX, n3=SOFTMAX_ROUNDED)
    one = only(made)
    assert (one.cause, one.level, one.nodes) == ("rounding-differs", "note", ("n3",))
    assert judge.status(made, (one,), True) == 0
    # The difference between a CPU and an A100 of the guide: 1.2e-7.
    assert only(numeric(n1=POWER_CPU, n2=POWER_GPU, n3=POWER_CPU)).level == "note"
    one = only(numeric(n1=POWER_CPU, n2=7.95, n3=POWER_CPU))
    assert (one.cause, one.level, one.nodes) == ("numerics-differ", "failure", ("n2",))
    assert "n2 computes powers wrong: 7.95 on n2" in one.summary
    for value in ("nan", "inf", "what"):
        assert only(numeric(n1=POWER_CPU, n2=value, n3=POWER_CPU)).level == "failure"
    # Of two nobody knows who is right.
    assert "one of n2 and n1" in only(numeric(n1=POWER_CPU, n2=7.95)).summary
