"""A store that does not answer although its connections stand, or one that nobody seen has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.descriptors import name_descriptor, peer
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import is_are, sentence
from hangtop_core.analysis.verdict.steps import as_host, on_node
from hangtop_core.analysis.verdict.storehost import by_torchrun, hosts_store, open_sockets
from hangtop_core.model.node.places import Places
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.stacks.kinds import COMMUNICATION
from hangtop_core.text.addresses import host_of, port_of
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice
from hangtop_core.text.launchers import ELASTIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.text.commands import Step

_AT_ONCE = re.compile(
    r"(store(?:\(\))?)?\.(add|set|check|compare_set|append|multi_set|num_keys|delete_key)\s*\("
)
"""What a store answers at once, whatever keys there are."""
_WAITS = re.compile(r"\.(wait|get|multi_get|queue_pop)\s*\(")
"""What waits for keys that somebody is still to set."""
LONG_S = 10.0
"""Seconds of sleep in one request that is answered at once, after which it is not."""


def _request(case: Case, subject: Subject) -> str:
    """Which request that a store answers at once a rank stands in and does not wake; or empty."""
    activity, ran_at = subject.activity, subject.rank.moved_at
    if subject.rank.process.meters.main_last_ran_s is None or ran_at is None:
        return ""  # whether it has woken up meanwhile is not known
    source = activity.top.source if activity.top is not None else None
    if source is None or activity.thread or activity.by_thread or case.at - ran_at < LONG_S:
        return ""
    asleep = activity.kind in ("store", "init", "new-group") and not _WAITS.search(source)
    found = _AT_ONCE.search(source) if asleep else None
    if found is None or not (found[1] or _asks(subject)):
        return ""
    return found[2]


def _asks(subject: Subject) -> bool:
    """Whether it sleeps in its connection to the store, by whatever name its program calls that."""
    main, one = subject.rank.process.main_thread, _connection(subject)
    return main is not None and one is not None and main.fd == one.fd


def _silent(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    by_store = [s for s in case.waiters if s.activity.kind in ("store", "init", "new-group")]
    if not by_store or case.suspects or case.seats or case.calling or not _alive(case):
        return
    asking = [s for s in by_store if _request(case, s)]
    if asking:
        yield _unanswered(case, asking)
        return
    keys = [s for s in by_store if _for_keys(s)]
    if len(keys) == len(case.subjects) and _nobody_has_it(case):
        yield _not_seen(case, keys)


def _for_keys(subject: Subject) -> bool:
    """Whether a rank waits for keys in the store, and not for any other server."""
    top = subject.activity.top
    named = top is not None and "store" in (top.source or "").lower()
    return subject.activity.kind == "store" and (named or _asks(subject))


def _alive(case: Case) -> bool:
    """Whether all ranks are there, seen, and wait for one another."""
    size = case.job.world_size
    waits = all(s.activity.kind in COMMUNICATION for s in case.subjects)
    return waits and size is not None and len(case.subjects) >= size


def _nobody_has_it(case: Case) -> bool:
    """Whether no rank and no launcher seen has the store, and its address is of no node seen."""
    if any(hosts_store(s) or by_torchrun(s) for s in case.live):
        return False
    if any(one.launcher in ELASTIC for one in case.job.launchers):
        return False
    first = case.subjects[0]
    host = _address(case)[0]
    there = Places(case.snapshot.nodes).node_of(host, first.rank.node) if host else None
    return bool(host) and (there is None or case.nodes[there].state not in OBSERVED)


def _connection(subject: Subject) -> Descriptor | None:
    """Its connection to the store, by MASTER_PORT, as far as its sockets were looked at."""
    process = subject.rank.process
    for one in open_sockets(subject):
        there = one.socket
        if there and there.state == "ESTABLISHED" and process.meets_at(there.remote):
            return one
    return None


def _address(case: Case) -> tuple[str, str]:
    """Host and port of the store: of a connection to it, or else as the environment names it."""
    for subject in case.subjects:
        one = _connection(subject)
        if one is not None and one.socket is not None:
            return host_of(one.socket.remote), port_of(one.socket.remote)
    env = case.subjects[0].rank.process.env
    return env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")


def _where(case: Case) -> str:
    """`at 10.0.0.9:29500, which rank 0 has,`, as far as that is known."""
    host, port = _address(case)
    hosts = [s for s in case.live if hosts_store(s)]
    at = clean(f"at {host}:{port}", 200) if host and port else "of the job"
    if _nobody_has_it(case):
        return f"{at}, which no rank has and whose host is not observed,"
    return f"{at}, which {name_ranks(hosts)} has," if len(hosts) == 1 else at


def _unanswered(case: Case, asking: Sequence[Subject]) -> Hit:
    first = asking[0]
    stands = ", and the connection stands" if _connection(first) is not None else ""
    called = ", ".join(sorted({_request(case, s) for s in asking}))
    return Hit(
        subjects=(),
        explained=case.waiters,
        summary=sentence(
            case,
            f"the store {_where(case)} does not answer: {name_ranks(asking)} "
            f"{is_are(asking, 'sleeps', 'sleep')} in {called}, which a store answers at once, "
            f"{case.since(first)}{stands}: who has it is stopped, or the store is stuck",
        ),
        evidence=(*_facts(case, asking), *common_facts(case, asking[:1])),
        steps=_steps(case, first),
    )


def _not_seen(case: Case, waiting: Sequence[Subject]) -> Hit:
    first = waiting[0]
    return Hit(
        subjects=(),
        explained=case.waiters,
        summary=sentence(
            case,
            f"all ranks wait for keys in the store {_where(case)} and nobody is left "
            "who could set them but that host: the store does not answer, or what should set the "
            "keys there does not",
        ),
        evidence=(*_facts(case, waiting), *common_facts(case, waiting[:1])),
        steps=_steps(case, first),
        confidence=0.4,
    )


def _facts(case: Case, some: Sequence[Subject]) -> Iterator[Evidence]:
    for subject in some[:SHOWN]:
        one = _connection(subject)
        if one is not None:
            yield fact("network", subject.number, name_descriptor(one, peer(case, subject, one)))
    if not any(hosts_store(s) for s in case.live):
        yield fact("process", None, "no rank has a thread pt_tcpstore: none of them has the store")


def _steps(case: Case, first: Subject) -> tuple[Step, ...]:
    host, port = _address(case)
    name = as_host(host)
    if name is None or not port.isdecimal():
        return (Advice("see who has the store, and whether that runs"),)
    has = ("ps", "-o", "pid,stat,wchan:20,etime,args", "-p", "PID")
    return (
        on_node("", "ss", "-tlnp", f"sport = :{port}", why=f"see on {name} who has the store"),
        on_node("", *has, why="and whether that runs (T: stopped, kill -CONT lets it run)"),
        on_node("", "hangtop", "-H", name, why="see that host, together with the nodes of the job"),
        on_node(
            first.rank.node,
            "ss",
            "-tnoi",
            "dst",
            name,
            why="what the kernel has of the connections",
        ),
    )


SILENT = Rule(
    cause="store-dead",
    title="The store does not answer, or is where nobody looks",
    seen="All ranks are there and wait, and some have slept for "
    f"{LONG_S:.0f} seconds or more in one request that a store answers at once (add, set, check), "
    "on a connection that stands. With confidence 0.40: all wait for keys (wait, get), no rank "
    "and no launcher has the store, and its address is of no node that is observed.",
    excluded="A rank is elsewhere or missing: it may be to set the key. A connection does not get "
    "on.",
    confidence=0.85,
    next_steps=("Look on the host of the store who has it, and whether that runs",),
    find=_silent,
    needs=(More("descriptors", "where its store is, and whether the connection stands"),),
)
