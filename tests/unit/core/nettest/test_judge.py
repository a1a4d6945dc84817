"""What is concluded of nodes, interfaces, names and ports, and how it is told."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from hangtop_core.attach.ways.large_packets import TO
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import UsageError
from hangtop_core.model.node.check import Clock
from hangtop_core.nettest import answers, judge, report
from hangtop_core.nettest.choose import spots
from hangtop_core.nettest.facts import Facts, Names, Spot, Way
from hangtop_core.nettest.judge_links import fits, gloo_lacks
from hangtop_core.nettest.judge_ports import of_ports
from hangtop_core.text.commands import texts
from support.documents import misfits
from support.nettest import broken, causes, facts, failing, link, look, only


def test_nothing_is_wrong_where_all_is_well() -> None:
    made = facts()
    assert judge.findings(made) == ()
    assert judge.status(made, (), True) == 0


@pytest.mark.parametrize(
    ("ahead", "odd"),
    [
        ([0.0, 0.4, 0.0], ""),
        ([0.0, 42.0, 0.0], "that of n2 is 42 s ahead"),
        # It is this machine's clock that is off: no matter for the job.
        ([42.0, 42.0, 42.0], ""),
        ([42.0, 42.0, -8.0], "that of n3 is 50 s behind"),
        # Of two nodes this machine decides.
        ([0.0, -3.0], "that of n2 is 3.0 s behind"),
        ([42.0], ""),
    ],
)
def test_clocks_that_are_not_those_of_most(ahead: list[float], odd: str) -> None:
    made = facts(clocks={f"n{n}": Clock(by, 0.001) for n, by in enumerate(ahead, 1)})
    found = judge.findings(made)
    assert [one.summary for one in found] == ([f"clocks differ: {odd}"] if odd else [])
    told = " ".join(text for one in found for text in one.evidence)
    assert ("takes a node for dead" in told) == (" 42 s" in odd or " 50 s" in odd)


def test_a_clock_that_took_long_to_tell_is_not_blamed() -> None:
    late = {f"n{n}": Clock(by, within) for n, by, within in ((1, 0, 0.1), (2, 0, 0.1), (3, 4, 5))}
    assert judge.findings(facts(clocks=late)) == ()


@pytest.mark.parametrize(
    ("why", "cause", "status"),
    [
        ("no hello from the probe within 20 s", "node-unreachable", judge.INCOMPLETE),
        (f"no hello from the probe within 20 s: {TO}", "mtu-mismatch", judge.FAILED),
    ],
)
def test_nodes_that_are_not_reached(why: str, cause: str, status: int) -> None:
    made = facts(missing={"n4": why})
    assert causes(made) == [("failure", cause)]
    assert judge.status(made, judge.findings(made), True) == status


# Which interface


def test_the_network_that_nodes_share_is_tested() -> None:
    two = {f"n{n}": look(n, link("ib0", "infiniband", f"10.9.0.{n}/16", mtu=2044)) for n in (1, 2)}
    # docker0 has one address everywhere, so it leads nowhere; of the rest names decide.
    assert {one.interface for one in spots(two, None, {"10.9.0.1"}).values()} == {"ib0"}
    assert {one.interface for one in spots(two, None).values()} == {"eth0"}
    assert spots(two, "ib0")["n2"].mtu == 2044
    assert spots(two, "10.9.0.0/16")["n1"].address == "10.9.0.1"
    # What only one node has is no way to the others.
    three = {**two, "n3": look(3)}
    assert {one.interface for one in spots(three, None, {"10.9.0.1"}).values()} == {"eth0"}
    with pytest.raises(UsageError, match="--interface eth7"):
        spots(two, "eth7")


def test_ipv6_counts_only_where_there_is_nothing_else() -> None:
    six = answers.Look("n1", links=(link("eth0", "ethernet", "fd00::1/64"),))
    both = answers.Look("n1", links=(link("eth0", "ethernet", "fd00::1/64", "10.0.0.1/24"),))
    assert spots({"n1": six}, None)["n1"].address == "fd00::1"
    assert spots({"n1": both}, None)["n1"].address == "10.0.0.1"
    down = answers.Look("n1", links=(link("eth0", "ethernet", "10.0.0.1/24", up=False),))
    assert spots({"n1": down}, None) == {}


@pytest.mark.parametrize(
    ("value", "interface", "meant"),
    [
        ("eth", "eth0", True),
        ("=eth", "eth0", False),
        ("=eth0,ib0", "ib0", True),
        ("^docker,lo", "lo", False),
        ("^docker,lo", "eth0", True),
        ("^=lo", "lo0", True),
    ],
)
def test_settings_are_read_as_nccl_reads_them(value: str, interface: str, meant: bool) -> None:
    assert fits(value, interface) == meant


def test_a_setting_that_fits_no_interface_is_named() -> None:
    looked = {f"n{n}": look(n) for n in (1, 2)}
    looked |= {f"n{n}": look(n, settings={"NCCL_SOCKET_IFNAME": "ib"}) for n in (2, 3)}
    one = only(facts(looked=looked))
    assert (one.cause, one.level, one.nodes) == ("wrong-interface", "failure", ("n2", "n3"))
    assert one.summary == "NCCL_SOCKET_IFNAME=ib fits no interface of n[2-3] that has an address"


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        ("eth0", ""),
        ("eth,lo", ""),
        ("=eth0", "=eth0"),
        ("^docker", "^docker"),
        ("eth0,ib0", "ib0"),
        ("lo, eth0", " eth0"),
    ],
)
def test_gloo_takes_all_it_is_told_and_as_it_is(value: str, lost: str) -> None:
    assert gloo_lacks(value, ["lo", "docker0", "eth0"]) == lost
    settings = {"GLOO_SOCKET_IFNAME": value}
    found = judge.findings(facts(looked={f"n{n}": look(n, settings=settings) for n in (1, 2, 3)}))
    part = f": {lost!r}" if lost != value else ""
    told = f"GLOO_SOCKET_IFNAME={value}{part} fits no interface of n[1-3] that has an address"
    assert [one.summary for one in found] == ([told] if lost else [])


def test_routes_and_mtus_that_differ_are_told() -> None:
    made = facts(looked={**{f"n{n}": look(n) for n in (1, 2)}, "n3": look(3, mtu=9000)})
    made.names["n1"].sources["10.0.0.2"] = "172.17.0.1"
    assert causes(made) == [("warning", "wrong-interface"), ("warning", "mtu-mismatch")]
    route, mtu = judge.findings(made)
    assert route.summary == "n1 (10.0.0.1) goes to 10.0.0.2 by docker0 (172.17.0.1), not by eth0"
    assert mtu.nodes == ("n3",)


def test_a_node_without_a_route_goes_by_no_interface() -> None:
    made = facts()
    for address in ("10.0.0.2", "10.0.0.3"):
        made.names["n1"].sources[address] = "no route: Network is unreachable"
    one = only(made)
    assert (one.cause, one.level, one.nodes) == ("no-route", "warning", ("n1",))
    assert one.summary == "n1 (10.0.0.1) has no way to 10.0.0.2, 10.0.0.3"
    assert one.evidence == ("its kernel says: no route: Network is unreachable",)


# Names


def test_names_that_lead_elsewhere() -> None:
    made = facts()
    made.names["n1"].names["n3"] = ("10.0.0.2",)
    made.names["n2"].names["n3"] = "Name or service not known"
    wrong, unknown = judge.findings(made)
    assert wrong.summary == "n1 takes n3 to be 10.0.0.2, which is n2's, not 10.0.0.3"
    assert wrong.evidence[1] == "1 of 2 nodes resolve it right"
    assert (unknown.cause, unknown.level) == ("name-unresolved", "warning")
    assert judge.status(made, (wrong, unknown), True) == 3


def test_a_loopback_address_is_right_only_for_the_node_itself() -> None:
    made = facts()
    made.names["n2"].names["n2"] = ("127.0.1.1",)
    assert causes(made) == [("warning", "wrong-interface")]
    made.names["n1"].names["n2"] = ("127.0.1.1",)
    assert causes(made) == [("failure", "name-wrong"), ("warning", "wrong-interface")]


@pytest.mark.parametrize(
    ("spots", "step"),
    [
        ({"n1": "eth0", "n2": "eth0"}, "set GLOO_SOCKET_IFNAME=eth0, or mend /etc/hosts"),
        (
            {"n1": "eth0", "n2": "ens3"},
            "set GLOO_SOCKET_IFNAME=ens3 on n2 and GLOO_SOCKET_IFNAME=eth0 on n1, or mend "
            "/etc/hosts",
        ),
        ({}, "mend /etc/hosts"),
    ],
)
def test_each_node_is_told_its_own_interface(spots: dict[str, str], step: str) -> None:
    made = facts()
    made.spots = {node: Spot(name, f"10.0.0.{node[1]}", 24) for node, name in spots.items()}
    for node in ("n1", "n2"):
        made.names[node].names[node] = ("127.0.1.1",)
    (odd,) = [one for one in judge.findings(made) if "its own name" in one.summary]
    assert texts(odd.next_steps) == (step,)


def test_addresses_that_have_the_name_of_another_node() -> None:
    made = facts()
    made.names["n1"].reverse["10.0.0.3"] = "n2.cluster"
    assert only(made).summary == "n1 takes 10.0.0.3, which is n3's, to be n2.cluster"


# Ports


@pytest.mark.parametrize(
    ("how", "cause", "sign"),
    [
        ("timed-out", "port-blocked", "packets are dropped"),
        ("refused", "port-blocked", "a firewall rejects it"),
        ("no-route", "no-route", "no route"),
        ("stalled", "mtu-mismatch", "large ones do not"),
        ("lossy", "packets-lost", "some packets arrive"),
        ("late", "node-slow", "no answer comes in time"),
        ("stranger", "address-taken", "something else answers there"),
    ],
)
def test_how_a_way_fails_says_why(how: str, cause: str, sign: str) -> None:
    made = broken(facts(), how, "n1-n3", "n2-n3")
    one = only(made)
    assert (one.cause, one.nodes) == (cause, ("n3",))
    told = {
        "mtu-mismatch": "large packets into n3 (10.0.0.3) get lost",
        "packets-lost": "packets into n3 (10.0.0.3) get lost",
        "node-slow": "n3 (10.0.0.3) takes connections but answers too late",
    }
    assert one.summary.startswith(told.get(cause, "no other node reaches n3 (10.0.0.3)"))
    assert sign in one.evidence[0]
    assert "from n[1-2] to n3" in one.evidence[0]


def test_a_port_that_is_open_alone_and_one_that_is_closed_alone() -> None:
    closed = only(broken(facts(), "timed-out", "n1-n3", "n2-n3", kind="chosen"))
    assert closed.summary.endswith("port 29500")
    assert "the same ways work on a port that the kernel gave" in closed.evidence
    assert any("another one as MASTER_PORT" in step for step in texts(closed.next_steps))
    alone = only(broken(facts(), "timed-out", "n1-n2", kind="any"))
    assert alone.summary.startswith("n1 (10.0.0.1) does not reach n2 (10.0.0.2)")
    assert any("32768-60999" in step for step in texts(alone.next_steps))


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Counted.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_ways_of_many_nodes_are_not_searched_one_by_one() -> None:
    nodes = [f"n{n}" for n in range(40)]
    ways = [
        Way(Counted(one), Counted(two), kind, 29500, "timed-out" if kind == "chosen" else "ok")
        for one, two in permutations(nodes, 2)
        for kind in ("chosen", "any")
    ]
    spots = {node: Spot("eth0", f"10.0.0.{at}", 24) for at, node in enumerate(nodes, 1)}
    Counted.times = 0
    (found,) = of_ports(Facts(nodes=tuple(nodes), spots=spots, ways=ways))
    assert found.summary == "no node reaches any other: port 29500 of n[0-39]"
    assert Counted.times < 50 * len(ways)


def test_a_port_that_is_taken_names_its_owner() -> None:
    opened = answers.Opened(29500, None, "Address already in use", "python train.py (pid 17)")
    one = only(facts(opened={"n2": (opened,)}))
    assert one.summary == ("port 29500 of n2 (10.0.0.2) is in use by python train.py (pid 17)")


# Telling it


def test_a_node_without_torch_leaves_the_test_incomplete() -> None:
    made = facts(no_torch={"n3": "no torch in /usr/bin/python3"})
    one = only(made)
    assert (one.cause, one.level) == ("no-torch", "warning")
    assert judge.status(made, (one,), True) == 4
    assert judge.status(made, (one,), False) == 0
    made.missing = {"n3": "port 22: Connection refused"}
    assert judge.status(made, judge.findings(made), False) == 4


def test_the_report_and_the_document() -> None:
    made = broken(facts(), "timed-out", "n1-n3", "n2-n3")
    made.lines = {"n1": ("\x1b[2Jboo",)}
    found = judge.findings(made)
    text = report.text(made, found, 3, 80)
    assert text.startswith("FAILED: 3 nodes n[1-3]: no other node reaches n3 (10.0.0.3): its ports")
    assert max(map(len, text.splitlines())) <= 80
    assert "port 29500   4 of 6 ways between nodes work, 1.0 ms each" in text
    document = json.loads(to_json(report.document(made, found, 3)))
    assert document["schema"] == "hangtop.nettest/1"
    assert misfits(document) == []
    assert document["findings"][0]["nodes"] == ["n3"]
    assert document["nodes"][0]["tested_at"]["address"] == "10.0.0.1"
    assert len(document["ways"]) == 12


def test_the_line_for_mpirun_names_nodes_interface_and_store() -> None:
    line = report.mpirun_line(facts(), "/opt/python")
    assert "--mca btl_tcp_if_include 10.0.0.0/24 " in line
    assert "--host n1:1,n2:1,n3:1" in line
    assert "-x GLOO_SOCKET_IFNAME=eth0 /opt/python" in line
    assert line.endswith("nettest_rank.py 10.0.0.1 29500")


def test_a_node_that_lies_chooses_no_command_and_moves_no_cursor() -> None:
    bad = "\x1b[2J; rm -rf /"
    evil = link(bad, "ethernet\x1b[2J", "10.0.0.3/24")
    more = link("eth0", "ethernet", "fd00::1%\x1b[2J/64", "10.0.0.3/24")
    python = answers.Python(bad, "3.11", "2.13.0")
    made = facts(
        looked={
            "n1": look(1),
            "n2": look(2),
            "n3": answers.Look(bad, bad, (evil, more), bad, pythons=(python,), settings={bad: bad}),
        },
        opened={"n3": (answers.Opened(29500, None, bad, bad),)},
        strangers={"n3": 7},
        no_torch={"n3": bad},
        left_out={"n3": bad},
        lines={"n3": (bad,)},
        jobs=[failing("init", bad, "n3")],
    )
    made.names["n3"] = Names(
        {"n1": (bad,), "n2": bad}, {"10.0.0.1": bad}, {bad: bad, "10.0.0.1": bad}
    )
    found = judge.findings(broken(made, bad, "n3-n1"))
    told = report.text(made, found, 3, 80)
    assert "\x1b" not in told
    steps = [step for one in found for step in texts(one.next_steps)]
    assert steps
    assert not any("rm -rf" in step for step in steps)
    made.spots["n3"] = made.spots["n1"]
    made.nodes = ("n3", "n1", "n2")
    assert "rm -rf" not in report.mpirun_line(made, None)
    assert b"\x1b" not in to_json(report.document(made, found, 3))
