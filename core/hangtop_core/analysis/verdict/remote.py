"""Ranks that wait for a service outside of the job, or for somebody to connect to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, peer
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, on_node, sockets_step
from hangtop_core.analysis.verdict.storehost import open_sockets
from hangtop_core.text.addresses import host_of
from hangtop_core.text.commands import Advice, Step
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor, Socket

_SENDS = frozenset({"sendto", "sendmsg", "write", "writev", "sendfile"})
_SENDING = re.compile(r"^(?:\w+\.)*(?:send\w*|write)\(|\.send\w*\(")
"""A function, or a line, that sends: with a timeout it waits in poll until it can."""


def _remote(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    remote = [s for s in left if s.activity.kind == "remote"]
    groups: list[tuple[Subject, ...]] = [(s,) for s in remote if _listens(s) is None]
    for group in alike((s for s in remote if _listens(s)), lambda s: s.activity.site):
        yield _accepting(case, group)
    polling = [s for s in left if s.activity.kind == "waiting" and s.activity.family == "poll"]
    # One table tells for all that are in the same line: those of others are not asked for.
    groups += alike(polling, lambda s: s.activity.site)
    hosts = {address for node in case.seen_nodes for address in node.addresses} if groups else ()
    for group in groups:
        subject, one = group[0], descriptor(group[0])
        if one is None or one.socket is None:
            guesses = ((s, _guess(case, s, hosts)) for s in group)
            subject, one = next((g for g in guesses if g[1] is not None), (subject, one))
        if one is None and subject.activity.kind != "remote":
            continue
        other = peer(case, subject, one) if one is not None else None
        told = _PEERS.get(_kind_of(subject), "a network peer")
        if one is not None and one.socket is not None:
            told = f"{one.socket.remote} (fd {one.fd}, {one.socket.state})"
            if other is not None and other.rank is not None:
                told += f" = {other.text}"
            elif other is not None and other.pid is not None:
                told += f", pid {other.pid} ({other.label}) on {other.node}"
            elif other is not None:
                told += f", {other.text}"
            told += _silence(subject, one.socket)
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'waits', 'wait')} at {subject.activity.at} for "
                f"{told}",
                case.since(subject),
            ),
            evidence=(
                *([fact("network", subject.number, name_descriptor(one, other))] if one else []),
                *common_facts(case, group),
            ),
            steps=_steps(case, subject),
            confidence=None if subject.activity.kind == "remote" else 0.8,
        )


_PEERS = {"getaddrinfo": "a name server (DNS)", "zmq": "a message over zmq"}


def _kind_of(subject: Subject) -> str:
    """By what it waits for a peer: zmq, where its innermost frame is of that, else the function."""
    top = subject.activity.top
    return "zmq" if top is not None and "/zmq/" in f"/{top.file}" else subject.activity.op or ""


def _steps(case: Case, subject: Subject) -> tuple[Step, ...]:
    """Look at the peer: over zmq that is most likely a controller of the job."""
    if _kind_of(subject) != "zmq":
        return (
            sockets_step(subject, subject.pid),
            Advice(
                "give the request a timeout, or run offline (HF_HUB_OFFLINE=1, WANDB_MODE=offline)"
            ),
        )
    near = max(case.job.controllers, key=lambda one: one.process.started_at, default=None)
    if near is None:
        return (Advice("look at the process that sends it"), dump_step(subject, "--each --locals"))
    why = "the controller that sends to it"
    return (on_node(near.node, "hangtop", "dump", "--pid", near.process.pid, "--each", why=why),)


def _listens(subject: Subject) -> Descriptor | None:
    """The socket on which it waits for somebody to connect."""
    one = descriptor(subject)
    return one if one is not None and one.socket and one.socket.state == "LISTEN" else None


def _accepting(case: Case, group: Sequence[Subject]) -> Hit:
    some = [(s, one) for s in group[:SHOWN] if (one := _listens(s)) and one.socket]
    told = ", ".join(
        f"{f'{rank_name(s.number)} ' if len(group) > 1 else ''}at {one.socket.local} (fd {one.fd})"
        for s, one in some
        if one.socket
    )
    return Hit(
        subjects=tuple(group),
        summary=sentence(
            case,
            f"{who(group)} {is_are(group, 'waits', 'wait')} at {group[0].activity.at} for somebody "
            f"to connect, {told}, and nobody does",
            case.since(group[0]),
        ),
        evidence=(
            *(fact("network", s.number, name_descriptor(one)) for s, one in some),
            *common_facts(case, group),
        ),
        steps=(
            Advice("look who is to connect to it, to which address, and whether that was started")
            if len(group) == 1
            else Advice(
                "look which of them is to connect to the others: all wait for somebody to do so"
            ),
            sockets_step(group[0], group[0].pid),
        ),
    )


def _silence(subject: Subject, socket: Socket) -> str:
    """How the other end keeps a subject waiting, as far as the socket tells."""
    if socket.state == "SYN_SENT":
        return ", which does not answer its attempts to connect"
    if socket.state == "CLOSE_WAIT":
        return ", which has closed the connection"
    main, top = subject.activity.main, subject.activity.top
    sends = main is not None and main.syscall in _SENDS
    if sends or (top is not None and _SENDING.search(f"{top.name}( {top.source}")):
        return ", which takes no more of what is sent" if socket.send_queue else ""
    return "" if socket.recv_queue else ", which sends nothing"


def _guess(case: Case, subject: Subject, hosts: Container[str]) -> Descriptor | None:
    """The one connection that leads neither to the store nor to a process or node of the job."""
    open_ = [
        one
        for one in open_sockets(subject)
        if one.socket is not None
        and one.socket.state in ("ESTABLISHED", "SYN_SENT")
        and not subject.rank.process.meets_at(one.socket.remote)
        and not case.owners.has(subject.rank.node, one.socket.peer_pid)
        and (one.socket.peer_pid is not None or host_of(one.socket.remote) not in hosts)
    ]
    return open_[0] if len(open_) == 1 else None


REMOTE = Rule(
    cause="remote-service-wait",
    title="A rank waits for a remote service",
    seen="A network library, or a blocking read of a socket, in the stack of one rank; or it waits "
    "in poll, and one of its connections leads to nothing of the job (confidence 0.80); or it "
    "waits in accept for somebody to connect.",
    excluded="The socket leads to the store; most ranks are on the same line.",
    confidence=0.88,
    next_steps=("Look at the connection", "Give the request a timeout"),
    find=_remote,
    needs=(More("descriptors", "to whom the connection leads that it waits on"),),
)
