"""Causes while ranks make the store they meet at: who hosts it, who is connected, who is not.

A program may take the port from a file of its own, or change its environment. What it really uses
shows in frames of torch (`Process.told_port`), threads and sockets.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject, besides
from hangtop_core.analysis.verdict.descriptors import name_descriptor, peer
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.refusals import no_way
from hangtop_core.analysis.verdict.sentences import is_are, sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, on
from hangtop_core.analysis.verdict.storehost import (
    by_torchrun,
    connects,
    hosts_store,
    in_store,
    listens_at,
    names_it,
    open_sockets,
    tcp_sockets,
)
from hangtop_core.analysis.verdict.storenames import name_server, resolve, store_name
from hangtop_core.model.process import STORE_THREAD
from hangtop_core.text.addresses import is_address, port_of
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.model.file_log import Record
    from hangtop_core.text.commands import Step


_CLOSED = frozenset({"T8", "T10"})
"""Codes of lines that tell that a store has closed a connection."""
_NO_STORE = re.compile(r"failed to connect/validate .*(?:reset by peer|Broken pipe|got 0 bytes)")


class _Start:
    """Who is where while ranks make their stores."""

    def __init__(self, case: Case) -> None:
        making = [s for s in case.joining if in_store(s)]
        calling = {s.rank.node for s in making if connects(s)}
        told = [s for s in making if s.rank.node in calling and not hosts_store(s)]
        making = besides(making, told)  # storeaway tells of them
        self.hosts = [s for s in making if hosts_store(s)]
        # Before torch 2.6 the thread has no name of its own, and rank 0 is the host.
        by = (names_it, hosts_store, by_torchrun)
        named = bool(making) and any(one(s) for s in case.live for one in by)
        self.tries = [
            s
            for s in making
            if s.activity.family == "sleep" and not hosts_store(s) and (named or s.number != 0)
        ]
        self.unanswered = [
            s
            for s in making
            if s.activity.family in ("poll", "socket")
            and not (hosts_store(s) or s.rank.process.stalled)
            and (named or s.number != 0)
        ]
        known = (*told, *self.tries, *self.unanswered)
        self.others = besides(case.waiters, known) if making else []


_COMPARE_SIZES = Advice(
    "compare the world_size of the store with how many ranks are started; those that make it with "
    "wait_for_workers=False are not counted"
)


def lost_theirs(case: Case) -> tuple[Record, ...]:
    """Lines that a store has closed a connection, where all ranks connect to one that none has."""
    start = _Start(case)
    if case.seats or len(start.tries) < len(case.subjects) or any(map(by_torchrun, start.tries)):
        return ()
    lines = [line for one in case.said.folds for line in one.members]
    if any(_NO_STORE.search(text) for line in lines if line.code == "T9" for text in line.lines):
        return ()  # something else is there, which closes what connects to it
    lines = [line for line in lines if line.code in _CLOSED]
    return tuple(line for line in lines if not line.exact or (line.at or 0.0) > case.began)


def _out_of_reach(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks that try again and again to connect to a store, and others have one.

    A client of a store sleeps only between two attempts to connect to it.
    """
    start = _Start(case)
    tries, others = start.tries, start.others
    if not tries or case.contradictions or lost_theirs(case) or case.store_taken:
        return
    there = [s for s in others if hosts_store(s) or not (in_store(s) or s.rank.process.stalled)]
    if not there and (case.seats or case.suspects):
        return  # who should host it may not have come yet
    ports = {str(s.rank.process.told_port or "") for s in tries}
    tried = ports.pop() if len(ports) == 1 else ""
    at = next((port for s in start.hosts if (port := listens_at(s))), "")
    host = start.hosts[0] if start.hosts else None
    alone = host is not None and len(others) == 1 and len(tries) > 1
    if host is not None and alone and (tried != at if tried and at else len(case.own_nodes) == 1):
        yield _host_alone(case, host, tries, at, tried)
        return
    for_, name = f" at port {tried}" if tried else "", store_name(tries, tried)
    for_ = f" at {name}:{tried}" if name else for_
    why = next(filter(None, (no_way(case, s) for s in tries[:SHOWN])), "")
    how = f"which fails: {why}, as is printed" if why else "in vain"
    where = "no rank is seen to have one"
    if host is not None:
        where = f"{name_ranks([host])} has {'that of the others' if len(others) > 1 else 'one'}"
        where += f" at port {at}" if at else ""
    elif there:
        where = f"{name_ranks(there)} {is_are(there, 'is', 'are')} through with that"
    if tried and tried == at:
        where += ", so its address, or the way there, is wrong"
        far = host is not None and host.rank.node not in {s.rank.node for s in tries}
        if name and host is not None and far and not is_address(name):
            where += f": on {tries[0].rank.node} the name {name} may mean another address than on "
            where += f"{host.rank.node} (/etc/hosts, DNS)"
    yield Hit(
        subjects=tuple(tries),
        explained=tuple(others),
        summary=sentence(
            case,
            f"{who(tries)} cannot reach {is_are(tries, 'its', 'their')} store{for_}: "
            f"{is_are(tries, 'it tries', 'they try')} again and again to connect, {how}; {where}",
            blamed=tries,
        ),
        evidence=(*_store_facts(case, tries, start.hosts), *common_facts(case, tries[:1])),
        steps=(*(resolve(tries[0]) if name else ()), *_steps(tries[0])),
        confidence=0.7 if left else None,
    )


def _unanswered(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks that are connected to what does not answer as a store, while others have one.

    Or names are looked up, and nobody answers that.

    A client that is connected asks the store one thing, which it answers at once.
    """
    start = _Start(case)
    there = [s for s in start.others if hosts_store(s) or not in_store(s)]
    if not start.unanswered or not there or case.contradictions or case.store_taken:
        return
    some, first = start.unanswered, start.unanswered[0]
    for asking in (start.hosts, some):
        asked = [(s, one) for s in asking if (one := name_server(s)) is not None]
        if asked:
            yield _resolving(case, asked, start)
            return
    port = first.rank.process.told_port
    at = f" at port {port}" if port and len(some) == 1 else ""
    yield Hit(
        subjects=tuple(some),
        explained=tuple(start.others),
        summary=sentence(
            case,
            f"{who(some)} {is_are(some, *_waits(first))} something{at} that does not "
            f"answer as a store does, and {name_ranks(there)} {is_are(there, 'has', 'have')} one",
            blamed=some,
        ),
        evidence=(
            *_store_facts(case, (), start.hosts),
            *(
                fact("network", first.number, name_descriptor(one, peer(case, first, one)))
                for one in open_sockets(first)
                if one.socket is not None and one.socket.state == "ESTABLISHED"
            ),
            *common_facts(case, some[:1]),
        ),
        steps=(*_steps(first), Advice("see who listens there, and whether it runs")),
    )


def _waits(subject: Subject) -> tuple[str, str]:
    """That it is connected, unless its sockets were looked at and it is not."""
    states = [one.state for one in tcp_sockets(subject)]
    if states and "ESTABLISHED" not in states:
        return "waits for", "wait for"
    return "is connected to", "are connected to"


def _resolving(case: Case, asked: Sequence[tuple[Subject, Descriptor]], start: _Start) -> Hit:
    """Ranks that look up names while they make their stores, as torch does of both ends."""
    some, one = [s for s, _ in asked], asked[0][1]
    server = one.socket.remote if one.socket is not None else ""
    hosts = ""
    if hosts_store(some[0]):
        hosts = f", and hosts the store that {name_ranks(start.unanswered)} most likely wait for"
    return Hit(
        subjects=tuple(some),
        explained=(*start.others, *start.unanswered),
        summary=sentence(
            case,
            f"{who(some)} {is_are(some, 'has', 'have')} asked a name server (DNS), {server}, "
            f"which has not answered{hosts}",
            blamed=some,
        ),
        evidence=(
            *(fact("network", s.number, name_descriptor(one)) for s, one in asked[:SHOWN]),
            *common_facts(case, some[:1]),
        ),
        steps=(
            on(
                some[0],
                "cat",
                "/etc/resolv.conf",
                Sign.THEN,
                "time",
                "getent",
                "hosts",
                Sign.HOST_NAME,
            ),
            Advice(
                "have the name server answer, or put the addresses of the nodes into /etc/hosts"
            ),
        ),
    )


def _host_alone(case: Case, host: Subject, tries: Sequence[Subject], at: str, tried: str) -> Hit:
    """All others try to connect elsewhere: more likely it is the host that was told otherwise."""
    has = f"has the store{f' at port {at}' if at else ''} for itself"
    goes = f" at port {tried}" if tried else " elsewhere"
    return Hit(
        subjects=(host,),
        explained=tuple(tries),
        summary=f"{who([host])} {has}: all others ({name_ranks(tries)}) try again and again to "
        f"connect to one{goes}, in vain {case.since(host)}".rstrip(),
        evidence=(*_store_facts(case, tries, [host]), *common_facts(case, [host, tries[0]])),
        steps=_steps(host),
    )


def _steps(subject: Subject) -> tuple[Step, ...]:
    hosts = "no rank hosts a store where all were started by torchrun: it has one itself, at the "
    hosts += "MASTER_PORT it gives them (TORCHELASTIC_USE_AGENT_STORE)"
    return (
        *((Advice(hosts),) if by_torchrun(subject) else ()),
        dump_step(subject, "--each --locals", why="see port and address in the locals"),
        Advice(
            "give all ranks the address and port of one store; compare where the program takes "
            "them from with MASTER_ADDR and MASTER_PORT"
        ),
    )


def _store_facts(
    case: Case, tries: Sequence[Subject], hosts: Sequence[Subject]
) -> Iterator[Evidence]:
    for one in hosts[:1]:
        at = listens_at(one)
        text = f"thread {STORE_THREAD}: it hosts a store{f' at port {at}' if at else ''}"
        yield fact("process", one.number, text)
        yield from _connected_fact(case, one)
    for one in tries[:SHOWN]:
        told = one.rank.process.told_port
        text = "makes its store, which it does not host, and sleeps between attempts to connect"
        yield fact("stacks", one.number, text + (f" to port {told}" if told else ""))
        variable = one.rank.process.env.get("MASTER_PORT")
        if told and variable and variable != str(told):
            text = f"MASTER_PORT was {variable} when it was started"
            yield fact("environment", one.number, text)


def _connected(case: Case, host: Subject) -> dict[int | None, int]:
    """How many connections to the store of a host are whose, by rank; None for all unknown."""
    at, found = listens_at(host), defaultdict[int | None, int](int)
    for one in open_sockets(host) if at else ():
        socket = one.socket
        if socket is not None and socket.state == "ESTABLISHED" and port_of(socket.local) == at:
            other = peer(case, host, one)
            found[other.rank if other is not None else None] += 1
    return dict(found)


def _connected_fact(case: Case, host: Subject) -> Iterator[Evidence]:
    found = _connected(case, host)
    known = [number for number in found if number is not None]
    if known:
        text = f"connected to its store: {name_ranks(known)}"
        if found.get(None):
            text += f", and {found[None]} whose ranks are not known"
        yield fact("network", host.number, text)


def _waits_for_more(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """The host of a store counts who has come, and all that were started are through with that."""
    start = _Start(case)
    if (
        len(start.hosts) != 1
        or start.tries
        or start.unanswered
        or case.seats
        or case.suspects
        or case.contradictions
    ):
        return
    host, rest = start.hosts[0], [s for s in start.others if not hosts_store(s) or not in_store(s)]
    if any(s.activity.kind != "init" or in_store(s) for s in rest):
        return
    at, found = listens_at(host), _connected(case, host)
    port = f" at port {at}" if at else ""
    away = [s for s in rest if s.number not in found]
    sure = bool(found) and not found.get(None)
    facts = (*_store_facts(case, (), [host]), *common_facts(case, [host]))
    if sure and away and len(away) < len(case.waiters):
        yield Hit(
            subjects=tuple(away),
            explained=case.waiters,
            summary=sentence(
                case,
                f"{who(away)} {is_are(away, 'has', 'have')} got through to another store than the "
                f"others: {is_are(away, 'it is', 'they are')} not connected to that of "
                f"{name_ranks([host])}{port}, which waits for {is_are(away, 'it', 'them')}",
                blamed=away,
            ),
            evidence=(*facts, *common_facts(case, away[:1])),
            steps=_steps(away[0]),
            confidence=0.8,
        )
        return
    count = len(case.subjects)
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=sentence(
            case,
            f"{name_ranks([host])} has the store{port} and waits for more ranks to come to it, "
            + (
                f"although {'both' if count == 2 else f'all {count}'} that were started are "
                "connected to it: the store was told a greater world_size"
                if sure
                else f"although none of the {count} that were started is still on its way: it was "
                "told a greater world_size, or others have another store"
            ),
        ),
        evidence=facts,
        steps=(
            dump_step(host, "--each --locals", why="see its locals"),
            _COMPARE_SIZES,
        ),
        confidence=0.85 if sure else 0.6,
    )


OUT_OF_REACH = Rule(
    cause="store-unreachable",
    title="Ranks try to connect to a store that nobody has",
    seen="A rank is making its TCPStore, in init_process_group or by itself, sleeps between "
    "attempts to connect, and does not host one: it has no thread pt_tcpstore. Others have a "
    "store, or nobody is missing. Port by the frames of torch. Where all but the host of the "
    "store are so, the host is named.",
    excluded="The host of the store may not have come yet: a rank is missing, or elsewhere.",
    confidence=0.9,
    next_steps=("Compare address and port that ranks were given",),
    find=_out_of_reach,
    states=AT_START,
    needs=(More("descriptors", "which port it listens on, or is connected to"),),
)
UNANSWERED = Rule(
    cause="store-unreachable",
    title="Ranks are connected to what is no store, or one that does not answer",
    seen="A rank is making its TCPStore, does not host one, and waits in a socket, without trying "
    "to connect; another rank has a store, or is through with that. Where one of them, or the host "
    "of the store, has a connection to a name server, it is that which does not answer.",
    excluded="Nobody has a store yet. Its connection is not acknowledged, or was closed.",
    confidence=0.75,
    next_steps=("Compare address and port that ranks were given", "See who listens there"),
    find=_unanswered,
    states=AT_START,
    needs=(More("descriptors", "to whom it is connected"),),
)
WAITS_FOR_MORE = Rule(
    cause="launch-misconfigured",
    title="The store waits for more ranks than were started",
    seen="The rank that hosts the TCPStore is still making it, which ends once all have come, and "
    "all others are through with that. Blamed are those that are not connected to it.",
    excluded="A rank is missing, elsewhere, or still connecting.",
    confidence=0.85,
    next_steps=("Compare the world_size of the store with how many ranks are started",),
    find=_waits_for_more,
    states=AT_START,
    last=True,
    needs=(More("descriptors", "who is connected to the store"),),
)
