"""Causes before training: nodes that never came, ranks that never joined."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hangtop_core.analysis.layout import by_node, place_text
from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.evidence import SHOWN, absent, common_facts, fact, place_facts
from hangtop_core.analysis.verdict.exited import together
from hangtop_core.analysis.verdict.logfacts import overtaken
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.analysis.verdict.needs import BY_WAIT, OPEN, More
from hangtop_core.analysis.verdict.network import sent_in_vain
from hangtop_core.analysis.verdict.recorderrules import SUBSET
from hangtop_core.analysis.verdict.sentences import does, is_are, sentence, who
from hangtop_core.analysis.verdict.steps import answers, as_host, on_node, trace_steps
from hangtop_core.jobs.joining import master, size_name
from hangtop_core.model.node.states import AWAY, OBSERVED
from hangtop_core.text import node_sets
from hangtop_core.text.addresses import is_loopback
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Node
    from hangtop_core.stacks.kinds import Kind
    from hangtop_core.text.commands import Step

NOT_ACKNOWLEDGED = 0.75
"""Confidence where kernels of other nodes get no answer to what their ranks sent, either."""
_TOGETHER_S = 20.0
"""A node that is seen for longer after the job stopped did not stop it by going away."""
_GENERIC = frozenset({"sleep", "busy", "waiting", "importing", "unknown", "idle-worker"})


def _absent(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    size = case.job.world_size
    joining = case.joining
    if not joining or len(joining) != len(case.waiters):
        return
    if any(not one.ends for one in case.contradictions):
        return  # those are why they did not find one another
    here, name = {rank.rank for rank in case.job.ranks}, size_name(case.job)
    # Of those that a launcher starts with the others `rank-exited` says that they have left.
    lacking = [s for s in case.seats if s.unseen is None and not (s.beside and together(case, s))]
    blind = any(node.state not in OBSERVED for node in case.snapshot.nodes)
    for some in by_node(lacking):
        node = some[0].node
        numbers = name_ranks(seat.rank for seat in some)
        told = f"{place_text(some) if node else numbers} never joined"
        told += f", and no such process is on {node}" if node else ""
        died = _died_first(case, some)
        yield Hit(
            subjects=(),
            absent=absent(some),
            summary=sentence(
                case,
                f"{told}: {name} is {size} and {len(here)} ranks are there"
                + (f"; {died[0]}" if died else ""),
            ),
            evidence=(
                *(died[1:] if died else ()),
                fact(
                    "environment" if name == "WORLD_SIZE" else "stacks",
                    joining[0].number,
                    f"{name}={size}; seen: {name_ranks(here)}",
                ),
                *place_facts(some),
            ),
            steps=(
                *(
                    (Advice("mend what that error tells of, and start the job again"),)
                    if died
                    else ()
                ),
                Advice(
                    f"start {numbers}{f' on {node}' if node else ''}, or look in the log of the "
                    f"launcher there why {'it' if len(some) == 1 else 'they'} ended"
                ),
                _reach(case, node),
            ),
            confidence=0.6 if blind and node is None else 0.75 if node and some[0].named else None,
        )


def _died_first(case: Case, some: Sequence[Seat]) -> tuple[str, Evidence] | None:
    """Of what ranks have most likely died before they joined: an error that none printed who lives.

    In a launch by a shell all ranks print into one file, in which nothing tells whose a line is.
    """
    first = case.said.judged.first if case.said.judged is not None else None
    record = first.record if first is not None else None
    missing = {seat.rank for seat in some}
    if first is None or record is None or record.part != "root" or record.code != "traceback":
        return None
    if set(first.ranks) - missing or overtaken(case, [record.at if record.exact else None]):
        return None
    they = "it" if len(some) == 1 else "one of them"
    whose = f"of {name_ranks(first.ranks)}" if first.ranks else "without saying whose it is"
    told = f"a log has, {whose}, {record.text}{record.from_where}"
    return f"most likely {they} was started and died: {told}", fact("log", None, told)


def _store(case: Case) -> str:
    """Where ranks meet, as another node would say it."""
    first = case.job.ranks[0]
    told = master(first.process)
    if told is None:
        return "MASTER_ADDR:MASTER_PORT"
    alone = len(case.snapshot.nodes) < 2
    return f"{first.node if is_loopback(told[0]) and not alone else told[0]}:{told[1]}"


def _reach(case: Case, node: str | None) -> Step:
    """Try from where ranks are missing whether the store answers."""
    store, words = _store(case), "try from there whether the store can be reached"
    command = answers(store)
    if not command:
        return Advice(f"check from there that {store} can be reached")
    there = node is not None and node in case.nodes
    return on_node((node or "") if there else "", *command, why=words)


def _outside(meeting: Kind, case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks that are elsewhere while all others meet: in init_process_group, or in new_group."""
    joining = [s for s in case.waiters if s.activity.kind == meeting]
    late = [s for s in left if s.activity.kind in _GENERIC]
    if not joining or len(joining) != len(case.waiters) or not late:
        return
    rpc = all(s.activity.text.endswith("init_rpc") for s in joining)
    what = "new_group" if meeting == "new-group" else "init_rpc" if rpc else "init_process_group"
    for group in alike(late, lambda s: (s.activity.text, s.activity.at)):
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'has', 'have')} not reached {what}: "
                f"{is_are(group, 'it', 'they')} {does(group)} at {group[0].activity.at}",
                case.since(group[0]),
            ),
            evidence=common_facts(case, group),
            steps=trace_steps(group[0]),
            needs=OPEN.get(group[0].activity.family or "", ()),
            # Ranks of a node that went away may be the ones that this one waits for as well.
            confidence=0.6 if case.unheard(case.subjects) else None,
        )


def _unreachable(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks of nodes that went away no later than the job stopped, while others wait."""
    nodes = {node.name: node for node in case.snapshot.nodes if node.state in AWAY}
    stopped = case.progress.since
    waiting = any(s.rank.node not in nodes for s in case.waiters)
    gone = [
        nodes[name]
        for name in sorted(case.own_nodes & set(nodes))
        if waiting
        and stopped is not None
        and (seen := nodes[name].last_seen) is not None
        and seen <= stopped + _TOGETHER_S
    ]
    for some in _alike(gone):
        names = {node.name for node in some}
        group = tuple(s for s in case.subjects if s.rank.node in names)
        node = max(some, key=lambda one: one.last_seen or 0.0)
        name, why = node_sets.fold(names), node.cause or "silent"
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{name} with {name_ranks(group)} {'is' if len(some) == 1 else 'are'} "
                f"{node.state}: {why}; last seen {case.ago(node.last_seen) or 'a moment ago'}",
                blamed=[s for s in case.subjects if s.rank.node in nodes],
            ),
            evidence=_states(some, why),
            steps=_look_at(node.name, name),
        )
    yield from _never_reached(case, nodes)


def _alike(nodes: Iterable[Node]) -> Iterator[tuple[Node, ...]]:
    """Nodes that are away for the same reason: a switch takes many at once."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((node.state, node.cause), []).append(node)
    yield from map(tuple, groups.values())


def _never_reached(case: Case, nodes: Mapping[str, Node]) -> Iterator[Hit]:
    """Ranks that should be on nodes that have not answered at all: they may be waited for."""
    lacking = [seat for seat in case.seats if seat.node in nodes and not seat.beside]
    silent = [nodes[some[0].node or ""] for some in by_node(lacking)]
    unacknowledged = sent_in_vain(case, nodes) if silent else ()
    for some in _alike(node for node in silent if case.waiters and node.last_seen is None):
        names = {node.name for node in some}
        seats = [seat for seat in lacking if seat.node in names]
        name, why = node_sets.fold(names), some[0].cause or some[0].state
        missing = place_text(seats) if len(some) == 1 else name_ranks(seat.rank for seat in seats)
        yield Hit(
            subjects=(),
            absent=absent(seats),
            summary=sentence(
                case,
                f"{missing} {'was' if len(seats) == 1 else 'were'} not seen, for "
                f"{name} cannot be reached: {why}. Whether "
                f"{'it runs' if len(seats) == 1 else 'they run'} is not known",
            ),
            evidence=(*_states(some, why), *unacknowledged, *place_facts(seats)),
            steps=_look_at(some[0].name, name),
            confidence=NOT_ACKNOWLEDGED if unacknowledged else 0.5,
        )


def _states(some: Sequence[Node], why: str) -> tuple[Evidence, ...]:
    texts = (f"{one.name} is {one.state}: {why}" for one in some[:SHOWN])
    return tuple(fact("network", None, text) for text in texts)


def _look_at(one: str, everyone: str) -> tuple[Step, ...]:
    host = as_host(one)
    return (
        *((on_node("", "ping", "-c3", "-W2", host, why="see whether it is up"),) if host else ()),
        Advice("look at its console or BMC"),
        on_node("", "sinfo", "-R", "-n", everyone, why="see what Slurm says of it"),
        Advice(f"if it is gone, start the job again without {everyone}"),
    )


NEVER_JOINED = Rule(
    cause="rank-never-joined",
    title="A rank has never come to the process group",
    seen="All that wait are in init_process_group, and WORLD_SIZE, or the world_size "
    "that ranks of mp.spawn gave it, counts more ranks than exist; "
    "or a rank exists and is still before init_process_group. The node is named where the layout "
    "of the other ranks tells it.",
    excluded="A launcher started it with others, and it is gone: `rank-exited`. Its node cannot "
    "be observed: `node-unreachable`. Ranks were told different things: `launch-misconfigured`.",
    confidence=0.9,
    next_steps=("Start the missing ranks", "Read why they ended"),
    find=_absent,
    states=AT_START,
    needs=(More("kernel log", "whether the kernel ended it before it came"),),
)
UNREACHABLE = Rule(
    cause="node-unreachable",
    title="A node with ranks has gone away",
    seen="The connection to the node was lost about when the job stopped, and ranks elsewhere "
    "wait. With less confidence: the node never answered, ranks should be on it, and others wait; "
    "with 0.75 where what these sent to a node that does not answer is not acknowledged, either.",
    excluded="The node was seen for longer after the job had stopped.",
    confidence=0.8,
    next_steps=("Look whether the node is up", "Start the job again without it"),
    find=_unreachable,
    complete="who does not answer can be asked for nothing; what others sent there is read with "
    "every pass",
)
OUTSIDE_INIT = Rule(
    cause="rank-never-joined",
    title=NEVER_JOINED.title,
    seen=NEVER_JOINED.seen,
    excluded=NEVER_JOINED.excluded,
    confidence=0.85,
    next_steps=NEVER_JOINED.next_steps,
    find=partial(_outside, "init"),
    states=AT_START,
    needs=BY_WAIT,
)
OUTSIDE_GROUP = Rule(
    cause="subset-new-group",
    title=SUBSET.title,
    seen="All that wait are in new_group (split_group, init_device_mesh), and a rank is elsewhere "
    "in its own code.",
    excluded=NEVER_JOINED.excluded,
    confidence=0.85,
    next_steps=SUBSET.next_steps,
    find=partial(_outside, "new-group"),
    needs=BY_WAIT,
)
