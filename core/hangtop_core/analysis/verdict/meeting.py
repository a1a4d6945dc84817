"""Causes while ranks connect to one another: a store that is gone, ports that are closed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import SHOWN, fact
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.sentences import is_are, sentence
from hangtop_core.analysis.verdict.steps import answers, on_node, thaw, who_is, word
from hangtop_core.analysis.verdict.storehost import in_store
from hangtop_core.analysis.verdict.storestart import lost_theirs
from hangtop_core.logs.meaning.steps import KILLS
from hangtop_core.model.node.places import Places
from hangtop_core.text import node_sets
from hangtop_core.text.addresses import host_of, port_of
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import Advice, words_of
from hangtop_core.text.launchers import ELASTIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.meters import Stalled
    from hangtop_core.model.snapshot import Process
    from hangtop_core.stacks.kinds import Kind
    from hangtop_core.text.commands import Command, Step

_MEETING: frozenset[Kind] = frozenset({"init", "new-group", "store", "collective", "recv", "send"})
"""In which ranks connect to one another; in others only what leads to a node of the job counts."""
TEST_PORT = 29617
"""Not the default of torch, which the job may have."""
_BY_STORE: frozenset[Kind] = frozenset({"init", "new-group", "store"})


class Tried(NamedTuple):
    """A connection that a rank tries to make, and nobody has answered."""

    subject: Subject
    one: Stalled

    @property
    def host(self) -> str:
        """Where to."""
        return host_of(self.one.remote)

    @property
    def port(self) -> str:
        """And to which port there."""
        return port_of(self.one.remote)


def _blocked(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if not case.calling:
        return
    places = Places(case.snapshot.nodes)
    tried = [
        each
        for subject in case.calling
        for each in (connecting(subject) if subject.waits and not in_store(subject) else ())
        if not subject.rank.process.meets_at(each.one.remote)
        if subject.activity.kind in _MEETING
        or places.node_of(each.host, subject.rank.node) in case.own_nodes
    ]
    if not tried:
        return
    subjects = tuple({id(each.subject): each.subject for each in tried}.values())
    target = Counter(each.host for each in tried).most_common(1)[0][0]
    first = next(each for each in tried if each.host == target)
    node = places.node_of(target, first.subject.rank.node)
    there = f"{node} ({target})" if node else target
    more = f" and {plural(len(tried) - 1, 'more connection')}" if len(tried) > 1 else ""
    yield Hit(
        subjects=subjects,
        summary=sentence(
            case,
            f"{name_ranks(subjects)} cannot connect to {clean(there, 200)} port "
            f"{clean(first.port, 8)}{more}: nothing answers (SYN_SENT), as where a firewall drops "
            "it",
            blamed=subjects,
        ),
        evidence=tuple(
            fact("network", each.subject.number, socket_text(each.one)) for each in tried[:SHOWN]
        ),
        steps=(
            *try_again(first),
            Advice("open all ports above 1024 between the nodes: NCCL and gloo choose any of them"),
            nettest(case),
            Advice("if the nodes have several networks: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME"),
        ),
        confidence=None if node else 0.7,
    )


def nettest(case: Case) -> Step:
    """The test of every way between the nodes of the job, beside which its port is taken."""
    nodes = [case.nodes[name] for name in case.job.nodes if name in case.nodes]
    far = next((one for one in nodes if one.shell is not None), None)
    words = "every way between the nodes, and who is blocked"
    if far is None or far.name not in words_of(far.options):
        why = f"{words}, with the options that lead to these nodes"
        return on_node("", "hangtop", "nettest", "--port", TEST_PORT, why=why)
    all_of_them = word(node_sets.fold(case.job.nodes)) or far.name
    options = [all_of_them if one == far.name else one for one in words_of(far.options)]
    return on_node("", "hangtop", "nettest", *options, "--port", TEST_PORT, why=words)


def connecting(subject: Subject) -> Iterator[Tried]:
    """Connections that a rank tries to make and that nobody has answered."""
    for one in subject.rank.process.stalled:
        if one.state == "SYN_SENT":
            yield Tried(subject, one)


def try_again(one: Tried) -> tuple[Command, ...]:
    """A command that makes the connection; none where what the node told is no address."""
    command = answers(one.one.remote)
    return (on_node(one.subject.rank.node, *command),) if command else ()


def _store_dead(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    ended = [
        (subject, one)
        for subject in case.calling
        if subject.waits and subject.activity.kind in _BY_STORE
        for one in subject.rank.process.stalled
        if one.state == "CLOSE_WAIT" and subject.rank.process.meets_at(one.remote)
    ]
    if not ended:
        yield from _store_lost(case)
        yield from _store_held(case)
        return
    subjects = tuple(subject for subject, _ in ended)
    master = case.job.master or "its address"
    first = subjects[0]
    yield Hit(
        subjects=(),
        explained=subjects,
        summary=sentence(
            case,
            f"the store at {master} has closed its connections: the process that hosts it (rank "
            f"0, or torchrun) is gone. {name_ranks(subjects)} still "
            f"{is_are(subjects, 'waits', 'wait')} for it {case.since(first)}".rstrip(),
        ),
        evidence=tuple(
            fact("network", subject.number, socket_text(one)) for subject, one in ended[:SHOWN]
        ),
        steps=(Advice("end the job: it cannot go on without its store"), _why_left(case, first)),
    )


def _why_left(case: Case, subject: Subject) -> Step:
    """What the kernel of the store's node says of its end, beside its own log."""
    words = "see why the process that had the store has ended, besides by the end of its log"
    host = host_of(case.job.master or "")
    node = Places(case.snapshot.nodes).node_of(host, subject.rank.node) if host else None
    is_known = bool(node) and node in case.nodes
    return on_node(node or "" if is_known else "", *KILLS, why=words + (", there" * (not is_known)))


def _store_lost(case: Case) -> Iterator[Hit]:
    """Ranks that had a store, lost it, and connect to it again and again."""
    said = lost_theirs(case)
    if not said:
        return
    ranks = sorted({one.rank for one in said if one.rank is not None})
    who_lost = name_ranks(ranks) if ranks else "a process of the job"
    yield Hit(
        subjects=(),
        explained=case.waiters,
        summary=sentence(
            case,
            f"the store at {case.job.master or 'its address'} is gone: {who_lost} lost the "
            "connection to it. All ranks of the job try again and again to connect, and nobody "
            f"answers {case.since(case.waiters[0])}".rstrip(),
        ),
        evidence=tuple(
            fact("log", one.rank, f"{'a rank' if one.rank is None else 'it'} printed {one.text}")
            for one in said[:SHOWN]
        ),
        steps=(
            _why_left(case, case.waiters[0]),
            Advice(
                "end the job: a store that is started anew has nothing of what was in the old one"
            ),
        ),
        confidence=0.9,
    )


def _store_held(case: Case) -> Iterator[Hit]:
    """Ranks that wait for a store which is in a launcher that does not run."""
    subjects = tuple(s for s in case.waiters if s.activity.kind in _BY_STORE)
    agents = [one for one in case.job.launchers if one.launcher in ELASTIC]
    held = [one for one in agents if one.state in ("T", "t") or one.frozen]
    if not subjects or not held or len(subjects) < len(case.waiters) or case.suspects:
        return
    one = held[0]
    how = "frozen" if one.frozen else "traced" if one.state == "t" else "stopped by a signal"
    name = clean(f"{one.launcher} (pid {one.pid} on {one.node})", 200)
    yield Hit(
        subjects=(),
        explained=subjects,
        summary=sentence(
            case,
            f"{name} is {how}, and with it the store at {case.job.master or 'its address'}: "
            f"{name_ranks(subjects)} {is_are(subjects, 'has', 'have')} waited for it "
            f"{case.since(subjects[0])}".rstrip(),
        ),
        evidence=(fact("process", None, f"launcher pid {one.pid}: state {one.state}"),),
        steps=_let_run(one),
    )


def _let_run(one: Process) -> tuple[Command, ...]:
    if one.frozen:
        return thaw(one, one.node)
    if one.state == "T":
        return (on_node(one.node, "kill", "-CONT", one.pid),)
    if not one.tracer_pid:
        return ()
    return (on_node(one.node, *who_is(one.tracer_pid), why="see who traces it"),)


def socket_text(one: Stalled) -> str:
    """One connection, as evidence."""
    again = f", tried {one.retransmits + 1} times" if one.state == "SYN_SENT" else ""
    return f"{one.local} -> {one.remote} {one.state}{again}"


STORE_DEAD = Rule(
    cause="store-dead",
    title="The store is gone, or does not run",
    seen="A rank waits in init, new_group or the store, and its connection to MASTER_PORT was "
    "closed by the other end (CLOSE_WAIT); or all connect again to a store, one has printed that "
    "its connection to it was lost, and no rank has it; or all wait so, and torchrun, which has "
    "the store, is stopped, traced or frozen.",
    excluded="The connection stands and the launcher runs: somebody has not come yet.",
    confidence=0.85,
    next_steps=("End the job", "Look why its host has left"),
    find=_store_dead,
    states=AT_START,
    complete="who had the store is gone, or its state says why it does not run; logs and what "
    "kernels say are read by themselves",
)
PORT_BLOCKED = Rule(
    cause="port-blocked",
    title="Ranks cannot connect to one another",
    seen="A waiting rank has tried three times or more to connect to a port that is not "
    "MASTER_PORT, and nobody answers (SYN_SENT).",
    excluded="It is the store's port: `store-unreachable`.",
    confidence=0.85,
    next_steps=("Connect to that port from there", "Open the ports between the nodes"),
    find=_blocked,
    states=AT_START,
    complete="what a firewall drops leaves no trace but attempts without an answer, counted with "
    "every pass",
)
