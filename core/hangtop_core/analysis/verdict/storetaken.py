"""A program of somebody else's has the port of the store, as connections tell, or logs."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import on_node, who_is
from hangtop_core.analysis.verdict.storehost import hosts_store, in_store, listens_at, tcp_sockets
from hangtop_core.jobs.joining import world_size
from hangtop_core.text.addresses import port_of
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.descriptors import Socket
    from hangtop_core.text.commands import Step


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
            on_node(subject.rank.node, *who_is(socket.peer_pid or 0)),
            Advice(
                "end that process, or choose another MASTER_PORT"
                + (
                    ", the same for all: a rank must not choose one alone"
                    if host is not None
                    else ""
                )
            ),
        ),
    )


def _to_store(subject: Subject) -> Iterator[Socket]:
    """Connections of a rank to the port of its store."""
    process = subject.rank.process
    for one in tcp_sockets(subject):
        if one.state == "ESTABLISHED" and process.meets_at(one.remote):
            yield one


class PortHolder(NamedTuple):
    """Who has the port of the store and is none of the job, as a verdict says it."""

    text: str
    facts: tuple[Evidence, ...]
    steps: tuple[Step, ...]


def port_holder(case: Case) -> PortHolder | None:
    """Who listens on the port of the store where ranks are, if that is no process of the job."""
    for subject in case.subjects:
        node, table = subject.rank.node, subject.rank.descriptors
        one = table.store_port if table is not None else None
        holders = one.holders if one is not None else ()
        others = [h for h in holders if not case.owners.has(node, h.pid)]
        if one is None or one.socket is None or not others:
            continue
        name = f"pid {others[0].pid} ({clean(others[0].comm, 40)}) on {node}"
        return PortHolder(
            f"{name} has it",
            (fact("network", None, f"{name} listens on {one.socket.local}"),),
            (on_node(node, *who_is(others[0].pid)),),
        )
    return None


class Binder(NamedTuple):
    """Rank 0, which could not listen on its port: the one that is not there, or who is instead."""

    absent: tuple[Seat, ...] = ()
    subjects: tuple[Subject, ...] = ()
    notes: tuple[str, ...] = ()


_LISTENS = re.compile(r"EADDRINUSE|address already in use|failed to (?:listen|bind)", re.IGNORECASE)


def binder(case: Case, texts: Sequence[str]) -> Binder:
    """Whose words it most likely were, where texts tell that somebody could not listen on a port.

    Without a launcher only rank 0 listens on MASTER_PORT. One that is there as rank 0 of a world
    of another size came before it, and has the port.
    """
    ports = [p for s in case.subjects[:1] if (p := s.rank.process.env.get("MASTER_PORT"))]
    said = [text for text in texts if _LISTENS.search(text)]
    if case.job.launchers or not any(_names(port, text) for port in ports for text in said):
        return Binder()
    seat = next((one for one in case.seats if one.rank == 0), None)
    if seat is not None and seat.unseen is None and not seat.beside:
        note = "most likely that was rank 0, which is not there and should have the store"
        return Binder((seat,), notes=(note,))
    sizes = Counter(size for s in case.subjects if (size := world_size(s.rank.process)))
    first = [s for s in case.subjects if s.number == 0][:1]
    if len(sizes) < 2 or not first:
        return Binder()
    if world_size(first[0].rank.process) in (None, sizes.most_common(1)[0][0]):
        return Binder()
    note = "was told another WORLD_SIZE and most likely is of another run, and has the port"
    return Binder(subjects=tuple(first), notes=(f"{who(first)} {note}",))


def _names(port: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(port)}\b", text) is not None


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
