"""Causes in what ranks gave init_process_group and its store, whatever their environment says.

A program may take port, rank and world size from a file of its own, or change its environment. What
it really uses shows in frames of torch (`Process.told_size` and its kin), threads and sockets.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.sourcelines import makes_store
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import (
    SHOWN,
    common_facts,
    fact,
    is_are,
    peer,
    sentence,
    who,
)
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.steps import on
from hangtop_core.rankset import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.steps import Step
    from hangtop_core.descriptors import Socket
    from hangtop_core.diagnosis import Evidence, JobState

_STATES: frozenset[JobState] = frozenset({"hung", "unknown", "starting"})
STORE_THREAD = "pt_tcpstore"
"""How the thread is called in which a process hosts a TCPStore (torch 2.6 to 2.15)."""


def in_store(subject: Subject) -> bool:
    """Whether a rank is still making its store: as the host, or connecting to it."""
    return subject.activity.kind == "init" and makes_store(subject.activity.top)


def _hosts(subject: Subject) -> bool:
    return any(one.name.startswith(STORE_THREAD) for one in subject.rank.process.threads)


def by_torchrun(subject: Subject) -> bool:
    """Whether torchrun started it, and so hosts the store that MASTER_PORT names."""
    return "TORCHELASTIC_RUN_ID" in subject.rank.process.env


def _sockets(subject: Subject) -> tuple[Socket, ...]:
    table = subject.rank.descriptors
    some = (one.socket for one in (table.descriptors if table is not None else ()))
    return tuple(one for one in some if one is not None and one.family == "tcp")


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _listens_at(subject: Subject) -> str:
    """The port of the store that a rank hosts, to which it is connected itself; empty: unknown."""
    some = _sockets(subject)
    open_ = {_port(one.local) for one in some if one.state == "LISTEN"}
    own = {_port(one.remote) for one in some if one.peer_pid == subject.pid} & open_
    told = subject.rank.process.told_port
    return own.pop() if len(own) == 1 else str(told or "")


class _Start:
    """Who is where while ranks make their stores."""

    def __init__(self, case: Case) -> None:
        self.waiters = case.waiters
        making = [s for s in case.joining if in_store(s)]
        self.hosts = [s for s in making if _hosts(s)]
        # Before torch 2.6 the thread has no name of its own, and rank 0 is the host.
        named = any(_hosts(s) or by_torchrun(s) for s in case.live) if making else False
        self.tries = [
            s
            for s in making
            if s.activity.family == "sleep" and not _hosts(s) and (named or s.number != 0)
        ]
        ids = {id(s) for s in self.tries}
        self.others = [s for s in case.waiters if id(s) not in ids] if making else []


def _out_of_reach(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks that try again and again to connect to a store, and others have one.

    A client of a store sleeps only between two attempts to connect to it.
    """
    start = _Start(case)
    tries, others = start.tries, start.others
    if not tries or case.contradictions:
        return
    there = [s for s in others if _hosts(s) or not (in_store(s) or s.rank.process.stalled)]
    if not there and (case.seats or case.suspects):
        return  # who should host it may not have come yet
    ports = {id(s): str(s.rank.process.told_port or "") for s in tries}
    tried = next(iter(ports.values())) if len(set(ports.values())) == 1 else ""
    at = next((port for s in start.hosts if (port := _listens_at(s))), "")
    host = start.hosts[0] if start.hosts else None
    alone = host is not None and len(others) == 1 and len(tries) > 1
    if host is not None and alone and (tried != at if tried and at else len(case.own_nodes) == 1):
        yield _host_alone(case, host, tries, at, tried)
        return
    for_ = f" at port {tried}" if tried else ""
    where = "no rank has got through to one"
    if host is not None:
        where = f"{name_ranks([host])} has {'that of the others' if len(others) > 1 else 'one'}"
        where += f" at port {at}" if at else ""
    elif there:
        where = f"{name_ranks(there)} {is_are(there, 'is', 'are')} connected to one"
    if tried and tried == at:
        where += ", so its address, or the way there, is wrong"
    yield Hit(
        subjects=tuple(tries),
        explained=tuple(others),
        summary=sentence(
            case,
            f"{who(tries)} cannot reach {is_are(tries, 'its', 'their')} store{for_}: "
            f"{is_are(tries, 'it tries', 'they try')} again and again to connect, and nobody "
            f"answers; {where}",
            blamed=tries,
        ),
        evidence=(*_store_facts(case, tries, start.hosts), *common_facts(case, tries[:1])),
        steps=_steps(tries[0]),
        confidence=0.7 if left else None,
    )


def _host_alone(case: Case, host: Subject, tries: Sequence[Subject], at: str, tried: str) -> Hit:
    """All others try to connect elsewhere: more likely it is the host that was told otherwise."""
    has = f"has the store{f' at port {at}' if at else ''} for itself"
    goes = f" at port {tried}" if tried else " elsewhere"
    return Hit(
        subjects=(host,),
        explained=tuple(tries),
        summary=f"{who([host])} {has}: all others ({name_ranks(tries)}) try again and again to "
        f"connect to one{goes}, and nobody answers there {case.since(host)}".rstrip(),
        evidence=(*_store_facts(case, tries, [host]), *common_facts(case, [host, tries[0]])),
        steps=_steps(host),
    )


def _steps(subject: Subject) -> tuple[Step, ...]:
    dump = f"hangtop dump --pid {subject.pid} --each --locals"
    hosts = "no rank hosts a store where all were started by torchrun: it has one itself, at the "
    hosts += "MASTER_PORT it gives them (TORCHELASTIC_USE_AGENT_STORE)"
    return (
        *((hosts,) if by_torchrun(subject) else ()),
        on(subject, dump, words="see port and address in the locals"),
        "give all ranks the address and port of one store; compare where the program takes them "
        "from with MASTER_ADDR and MASTER_PORT",
    )


def _store_facts(
    case: Case, tries: Sequence[Subject], hosts: Sequence[Subject]
) -> Iterator[Evidence]:
    for one in hosts[:1]:
        at = _listens_at(one)
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
    at, found = _listens_at(host), defaultdict[int | None, int](int)
    if not at or host.rank.descriptors is None:
        return {}
    for one in host.rank.descriptors.descriptors:
        socket = one.socket
        if socket is None or socket.state != "ESTABLISHED" or _port(socket.local) != at:
            continue
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


def _mistold(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """What ranks called init_process_group with cannot all be true."""
    told = [s for s in case.joining if s.rank.process.told_size]
    if not told or case.seats or case.contradictions:
        return
    started = len({s.number for s in case.subjects})
    sizes: dict[int, list[Subject]] = defaultdict(list)
    for one in told:
        sizes[one.rank.process.told_size or 0].append(one)
    groups = sorted(sizes.items(), key=lambda one: (-len(one[1]), one[0] != started))
    largest = max(sizes)
    if len(groups) > 1 and (largest > started or len(told) == started):
        yield _sizes_differ(case, groups)
    elif largest > started:
        yield _too_many(case, told, largest, started)
    elif largest == started:
        yield from _twice(case, told)


def _sizes_differ(case: Case, groups: Sequence[tuple[int, list[Subject]]]) -> Hit:
    odd = [s for _, some in groups[1:] for s in some]
    parts = [f"{size} ({name_ranks(some)})" for size, some in reversed(groups[:SHOWN])]
    text = f"world_size of init_process_group differs: {', '.join(parts)}"
    return _told_wrong(case, odd, text, "give all of them the same world_size")


def _too_many(case: Case, told: Sequence[Subject], size: int, started: int) -> Hit:
    """All that wait in init_process_group were told more ranks than there are."""
    odd = list(told) if len(case.joining) < len(case.waiters) else []
    numbers = {s.rank.process.told_rank for s in told}
    whole = len(told) == started and None not in numbers
    lacking = set(range(min(size, started + 1024))) - numbers if whole else set()
    text = f"world_size of init_process_group is {size} for {name_ranks(told)}, and "
    text += f"{started} {'rank was' if started == 1 else 'ranks were'} started"
    text += f": nobody is rank {fold(lacking)}" if lacking else ""
    fix = f"start {size} ranks, or tell the program {started}: it does not take WORLD_SIZE from its"
    fix += " environment, or changes it"
    return _told_wrong(
        case,
        odd,
        text,
        fix,
        "if there are more ranks, on nodes that hangtop was not pointed at, look there",
    )


def _twice(case: Case, told: Sequence[Subject]) -> Iterator[Hit]:
    """One rank was given to two."""
    by_number: dict[int, list[Subject]] = defaultdict(list)
    for one in told:
        if one.rank.process.told_rank is not None:
            by_number[one.rank.process.told_rank].append(one)
    twice = {number: some for number, some in by_number.items() if len(some) > 1}
    if not twice:
        return
    involved = [s for some in twice.values() for s in some]
    odd = [s for s in involved if s.rank.process.told_rank != s.number]
    text = "init_process_group was called with " + ", and ".join(
        f"rank={number} by {name_ranks(some)}" for number, some in list(twice.items())[:SHOWN]
    )
    lacking = set(range(len(case.subjects))) - set(by_number)
    if lacking and len(told) == len(case.subjects):
        text += f", and by none with rank={fold(lacking)}"
    yield _told_wrong(case, odd or involved, text, "give every process a rank of its own")


def _told_wrong(case: Case, odd: Sequence[Subject], text: str, *steps: str) -> Hit:
    told = [s for s in case.joining if s.rank.process.told_size]
    variable = next((s.rank.process.env.get("WORLD_SIZE") for s in told), None)
    return Hit(
        subjects=tuple(odd),
        explained=case.waiters,
        summary=sentence(case, text, blamed=odd),
        evidence=(
            *(
                fact(
                    "stacks",
                    s.number,
                    f"joins as rank {s.rank.process.told_rank} of {s.rank.process.told_size}",
                )
                for s in [*odd, *(one for one in told if one not in odd)][:SHOWN]
                if s.rank.process.told_rank is not None
            ),
            *((fact("environment", None, f"WORLD_SIZE={variable}"),) if variable else ()),
        ),
        steps=(*_locals_step(odd or told), *steps),
    )


def _locals_step(some: Sequence[Subject]) -> Iterator[Step]:
    for one in some[:1]:
        text = f"hangtop dump --pid {one.pid} --each --locals"
        yield on(one, text, words="see rank and world_size in the locals")


def _waits_for_more(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """The host of a store counts who has come, and all that were started are through with that."""
    start = _Start(case)
    if len(start.hosts) != 1 or start.tries or case.seats or case.suspects or case.contradictions:
        return
    host, rest = start.hosts[0], [s for s in start.others if not _hosts(s) or not in_store(s)]
    if any(s.activity.kind != "init" or in_store(s) for s in rest):
        return
    at, found = _listens_at(host), _connected(case, host)
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
            *_locals_step([host]),
            "compare the world_size of the store with how many ranks are started; those that make "
            "it with wait_for_workers=False are not counted",
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
    states=_STATES,
    needs=(More("descriptors", "which port it listens on, or is connected to"),),
)
MISTOLD = Rule(
    cause="launch-misconfigured",
    title="Ranks called init_process_group with what cannot all be true",
    seen="In frames of torch: a world_size that is greater than the number of ranks started, that "
    "differs between ranks, or one rank number that two were given; whatever environments say.",
    excluded="Ranks are missing that the environment tells of: `rank-never-joined`.",
    confidence=0.9,
    next_steps=("Give all ranks one world_size, and each a rank of its own",),
    find=_mistold,
    states=_STATES,
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
    states=_STATES,
    last=True,
    needs=(More("descriptors", "who is connected to the store"),),
)
