"""Which process is at the other end of a connection, and what of it is evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.peers import End, peers, sought, unread
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable, Node
from support.build import NOW, World
from support.situations import FUTEX, RECVFROM, STOP, URLLIB, c10d, frame, user

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Snapshot

A, B = "10.77.0.2:41822", "10.77.0.3:29555"


def table(*ends: tuple[int, str, str], **fields: Any) -> DescriptorTable:
    """Sockets as (fd, local, remote)."""
    return DescriptorTable(
        NOW,
        tuple(
            Descriptor(
                fd, "socket", "socket:[1]", socket=Socket("tcp", "ESTABLISHED", *end, **fields)
            )
            for fd, *end in ends
        ),
    )


def two_nodes(one: DescriptorTable | None, other: DescriptorTable | None, **fields: Any) -> World:
    """Rank 0 on n1 and rank 1 on n2, with what was read of their descriptors."""
    world = World()
    world.nodes = {
        "n1": Node("n1", "ready", addresses=("10.77.0.2",)),
        "n2": Node("n2", "ready", addresses=("10.77.0.3",)),
    }
    for number, read in enumerate((one, other)):
        world.add(
            c10d("all_reduce"),
            FUTEX,
            rank=number,
            node=f"n{number + 1}",
            descriptors=read,
            process=fields,
        )
    return world


def named(snapshot: Snapshot) -> dict[End, str]:
    return {end: peer.text for end, peer in peers(snapshot).items()}


def test_both_ends_of_a_connection_name_one_another() -> None:
    snapshot = two_nodes(table((9, A, B)), table((5, B, A))).snapshot()
    assert named(snapshot) == {
        End("n1", 4000, 9): "rank 1 on n2",
        End("n2", 4010, 5): "rank 0 on n1",
    }
    assert sought(snapshot) == {}


def test_where_the_other_table_was_not_read_the_node_is_known_and_whom_to_ask() -> None:
    snapshot = two_nodes(table((9, A, B)), None).snapshot()
    assert named(snapshot) == {End("n1", 4000, 9): "a process on n2"}
    rank = snapshot.jobs[0].ranks[0]
    assert unread(snapshot, rank, peers(snapshot)) == {"n2": [4010]}
    read = two_nodes(table((9, A, B)), table()).snapshot()
    assert unread(read, read.jobs[0].ranks[0], peers(read)) == {}


def test_the_store_is_told_by_its_address() -> None:
    env = {"RANK": "0", "MASTER_ADDR": "n2", "MASTER_PORT": "29500"}
    snapshot = two_nodes(table((9, A, "10.77.0.3:29500")), None, env=env).snapshot()
    assert named(snapshot) == {End("n1", 4000, 9): "the store on n2"}


def test_loopback_means_the_same_node_and_namespace() -> None:
    left, right = ("127.0.0.1:1000", "127.0.0.1:2000"), ("127.0.0.1:2000", "127.0.0.1:1000")
    assert named(two_nodes(table((9, *left)), table((5, *right))).snapshot()) == {}
    world = World()
    for number, (ends, net) in enumerate(((left, None), (right, None), (right, 7))):
        world.add(
            c10d("all_reduce"),
            FUTEX,
            rank=number,
            descriptors=table((9, *ends)),
            process={"net_ns": net},
        )
    assert named(world.snapshot()) == {
        End("n1", 4000, 9): "rank 1 on n1",
        End("n1", 4010, 9): "rank 0 on n1",
    }


def test_what_the_probe_found_on_the_node_itself_is_named() -> None:
    world = World()
    world.add(c10d("all_reduce"), FUTEX)
    rank = world.add(
        c10d("all_reduce"),
        FUTEX,
        descriptors=table(
            (
                9,
                A,
                B,
            ),
            peer_pid=4000,
        ),
    )
    world.add(
        c10d("all_reduce"), FUTEX, descriptors=table((9, A, B), peer_pid=77, peer_name="proxy")
    )
    assert named(world.snapshot()) == {
        End("n1", rank.process.pid, 9): "rank 0 on n1",
        End("n1", 4020, 9): "proxy on n1",
    }


@pytest.mark.parametrize("source", ["self.sock.sendall(data)", None])
def test_who_sends_is_not_told_that_nothing_is_sent_to_it(source: str | None) -> None:
    """With a timeout a socket waits in poll until it can send."""
    world = World()
    world.waiters(3)
    name = "HTTPConnection.request" if source else "SSLSocket.send"
    stack = (frame(name, "py:http/client.py", 1037, source), *URLLIB[2:])
    full = table((17, A, B), send_queue=2_500_000)
    world.add(stack, ("S", "poll_schedule_timeout", "poll", 17, None), descriptors=full)
    snapshot = world.snapshot()
    verdict = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert verdict.cause == "remote-service-wait"
    assert "(fd 17, ESTABLISHED), which takes no more of what is sent" in verdict.summary


def test_of_a_connection_that_its_other_end_has_closed_that_is_told() -> None:
    world = World()
    world.waiters(3)
    closed = Socket("tcp", "CLOSE_WAIT", A, B)
    one = Descriptor(17, "socket", "socket:[1]", socket=closed)
    world.add(URLLIB, RECVFROM, descriptors=DescriptorTable(NOW, (one,)))
    snapshot = world.snapshot()
    verdict = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert "(fd 17, CLOSE_WAIT), which has closed the connection" in verdict.summary


def test_a_rank_that_waits_for_a_socket_of_another_node_says_whose_it_is() -> None:
    world = two_nodes(None, table((5, B, A)))
    world.waiters(2, node="n2")
    del world.ranks[0]
    world.add(URLLIB, RECVFROM, rank=0, node="n1", descriptors=table((17, A, B)))
    snapshot = world.snapshot()
    verdict = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert verdict.cause == "remote-service-wait"
    assert f"for {B} (fd 17, ESTABLISHED) = rank 1 on n2, which sends nothing" in verdict.summary
    assert any(one.text.endswith("= rank 1 on n2") for one in verdict.evidence)


def test_only_a_socket_that_is_waited_for_is_looked_after_by_itself() -> None:
    world = two_nodes(table((17, A, B)), None)
    assert sought(world.snapshot()) == {}
    world.ranks[0] = replace(
        world.ranks[0],
        process=replace(
            world.ranks[0].process,
            threads=tuple(replace(t, fd=17) for t in world.ranks[0].process.threads),
        ),
    )
    assert sought(world.snapshot()) == {"n2": frozenset({4010})}


@pytest.mark.parametrize(
    ("send", "more"),
    [(0, ""), (7, ", 7 bytes that rank 0 has written, and that are not acknowledged")],
)
def test_bytes_that_a_stopped_rank_does_not_read_are_evidence(send: int, more: str) -> None:
    world = two_nodes(None, table((5, B, A)))
    world.ranks.clear()
    world.add(c10d("all_reduce"), FUTEX, rank=1, node="n2", descriptors=table((5, B, A)))
    stuck = table((9, A, B), recv_queue=96, send_queue=send)
    world.add(c10d("all_reduce"), STOP, rank=0, node="n1", descriptors=stuck)
    snapshot = world.snapshot()
    verdict = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert verdict.cause == "rank-stopped"
    told = [one.text for one in verdict.evidence if one.source == "network"]
    end = f"fd 9 = socket:[1] {A} -> {B} ESTABLISHED = rank 1 on n2: "
    assert told == [f"{end}96 bytes that rank 0 has not read{more}"]


@pytest.mark.parametrize(("remote", "service"), [("[fd00::2]:5000", False), ("[fd00::9]:5", True)])
def test_what_leads_to_a_node_of_the_job_is_no_service(remote: str, service: bool) -> None:
    """Its addresses are told without the brackets that sockets have."""
    world = World()
    world.nodes = {"n1": Node("n1", "ready", addresses=("fd00::2",))}
    world.waiters(3)
    read = table((17, "[fd00::2]:40000", remote))
    polls = ("S", "poll_schedule_timeout", "poll", None, None)
    world.add(user("ask", 5, "reply = client(request)"), polls, descriptors=read)
    snapshot = world.snapshot()
    verdict = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert (verdict.cause == "remote-service-wait") == service
