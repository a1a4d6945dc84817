"""Ranks that are connected to a program of somebody else's, which has the port of their store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, fact, sentence
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.steps import Command
from hangtop_core.analysis.verdict.storehost import hosts_store, in_store, listens_at, open_sockets
from hangtop_core.places import port_of
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.descriptors import Socket


def taken(case: Case) -> Iterator[Hit]:
    """The store's port leads to a process that is none of the job, and rank 0 is not there.

    Or a rank has the store elsewhere, and waits for the others.
    """
    lacking = any(seat.rank == 0 for seat in case.seats)
    joining = [s for s in case.waiters if s.activity.kind in ("init", "store")]
    host = next((s for s in joining if in_store(s) and hosts_store(s)), None)
    if not (lacking or host) or case.job.launchers:
        # torchrun may host the store, and says itself whether it can.
        return
    found = [
        (subject, socket)
        for subject in joining
        for socket in _to_store(subject)
        if socket.peer_pid is not None and not case.owners.has(subject.rank.node, socket.peer_pid)
    ]
    if not found or any(subject is host for subject, _ in found):
        return
    without = "rank 0 could not listen there"
    if host is not None:
        at = listens_at(host)
        without = f"{name_ranks([host])} has the store{f' at port {at}' if at else ' elsewhere'}, "
        without += "and waits there for the others"
    subject, socket = found[0]
    name = f"pid {socket.peer_pid} ({clean(socket.peer_name or '?', 40)})"
    port = port_of(socket.remote)
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=sentence(
            case,
            f"the port of the store, {clean(port, 8)}, belongs to {name} on {subject.rank.node}, "
            f"which is no process of this job: {without}",
        ),
        evidence=tuple(
            fact("network", s.number, f"{one.local} -> {one.remote} = {name}")
            for s, one in found[:SHOWN]
        ),
        steps=(
            Command(subject.rank.node, f"ps -o pid,user,etime,args -p {socket.peer_pid}"),
            "end that process, or choose another MASTER_PORT"
            + (", the same for all: a rank must not choose one alone" if host is not None else ""),
        ),
    )


def _to_store(subject: Subject) -> Iterator[Socket]:
    """Connections of a rank to the port of its store."""
    process = subject.rank.process
    for one in open_sockets(subject):
        socket = one.socket
        if socket and socket.state == "ESTABLISHED" and process.meets_at(socket.remote):
            yield socket


TAKEN = Rule(
    cause="store-port-taken",
    title="The port of the store belongs to another process",
    seen="Rank 0 is not there, or a rank has the store elsewhere and waits for the others; ranks "
    "in init_process_group are connected to MASTER_PORT, or to the port in frames of torch, and "
    "the other end is a process of their node that is none of the job.",
    excluded="A launcher of the job was found: it may host the store. The other end is on another "
    "node: who has a port there is not known.",
    confidence=0.92,
    next_steps=("End that process, or choose another MASTER_PORT",),
    find=lambda case, left: case.store_taken,
    states=AT_START,
    complete="both ends of the connection, and which process has the other one, are all that it "
    "rests on",
)
