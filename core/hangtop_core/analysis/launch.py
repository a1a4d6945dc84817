"""What ranks and launchers of one job were told that cannot all be true."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.layout import absent, node_rank
from hangtop_core.jobs.joining import master, world_size
from hangtop_core.model.node.places import Places
from hangtop_core.model.snapshot import Rank
from hangtop_core.text import launchers as launchline
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.addresses import is_address, is_loopback
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice
from hangtop_core.text.launchers import NUMBERING, WORLD_SIZES, number_in
from hangtop_core.text.rank_sets import names, rank_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from hangtop_core.model.snapshot import Job, Process, Snapshot

SHOWN = 4
_TOLD = ("MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE", *WORLD_SIZES)


class Contradiction(Struct, frozen=True):
    """One thing that is told differently, or twice."""

    text: str
    """What differs, and where."""
    odd: tuple[Rank, ...]
    """Ranks that are not as the most are; empty where nothing tells who is wrong."""
    fix: Advice
    ends: tuple[Rank, ...] = ()
    """Ranks that are left from an earlier run."""
    early: bool = True
    """Whether it keeps ranks from meeting, and so explains nothing once they have."""


def contradictions(snapshot: Snapshot, job: Job) -> tuple[Contradiction, ...]:
    """Return what cannot all be true, the most fundamental first."""
    live = [rank for rank in job.ranks if not rank.ended]
    launchers = [one for one in job.launchers if one.gone_at is None]
    # Nearly always all are told the same, which one look at each environment shows.
    told = {tuple(map(rank.process.env.get, _TOLD)): rank for rank in live}.values()
    found = [
        _stores(live, told, snapshot),
        _twice(live, snapshot, job),
        _sizes(live, told) or _started(live, told),
        _node_counts(live) if len(told) > 1 else None,
        *(_launchers(launchers, Places(snapshot.nodes)) if not live else ()),
    ]
    return tuple(one for one in found if one is not None)


def _stores(
    ranks: Sequence[Rank], each: Iterable[Rank], snapshot: Snapshot
) -> Contradiction | None:
    """MASTER_ADDR and MASTER_PORT name more than one store; ``each`` is one of those told alike."""
    stores = {one for rank in each if (one := master(rank.process)) is not None}
    if len(stores) < 2 and not any(is_loopback(host) for host, _ in stores):
        return None  # as nearly always: what is spelt alike means the same
    told, places = {id(rank): master(rank.process) for rank in ranks}, Places(snapshot.nodes)

    def store(rank: Rank) -> str | None:
        one = told[id(rank)]
        return None if one is None else places.store(*one, rank.process, rank.node)

    groups = _apart(ranks, store)
    addresses, ports = {one[0] for one in stores}, {one[1] for one in stores}
    if len(groups) < 2 or (len(ports) == 1 and _may_be_alias(ranks, places)):
        return None
    nodes = {rank.node for rank in ranks}
    right = next((r.node for r in ranks if r.rank == 0), ranks[0].node)
    fix = Advice(f"give all of them one address and port of the node of rank 0, which is {right}")
    if len(nodes) > 1 and all(map(is_loopback, addresses)):
        text = f"MASTER_ADDR is {' or '.join(sorted(addresses))} on {nodesets.fold(nodes)}: "
        text += "every node waits at a store of its own"
    else:
        what = "MASTER_ADDR:MASTER_PORT" if len(addresses) > 1 else "MASTER_PORT"
        text = _differs(what, ranks, lambda r: ":".join(told[id(r)] or ()))
    return Contradiction(text, _odd(groups), fix)


def _may_be_alias(ranks: Iterable[Rank], places: Places) -> bool:
    """Whether a master is named that no node goes by: it may be another name of one of them."""
    told = ((master(rank.process), rank.node) for rank in ranks)
    return any(
        one is not None and not is_address(one[0]) and places.node_of(one[0], node) is None
        for one, node in told
    )


def _twice(ranks: Sequence[Rank], snapshot: Snapshot, job: Job) -> Contradiction | None:
    """Two live processes claim one rank."""
    if len({rank.rank for rank in ranks}) == len(ranks):
        return None
    places = Places(snapshot.nodes)
    by_number: dict[int, list[Rank]] = defaultdict(list)
    for rank in ranks:
        by_number[rank.rank].append(rank)
    twice = {n: some for n, some in by_number.items() if len(some) > 1 and _same_script(some)}
    if not twice:
        return None
    involved = [rank for some in twice.values() for rank in some]
    left = [r for r in involved if r.process.ppid <= 1 and r.process.launcher_pid is None]
    if left and len(involved) - len(left) == len(twice):
        pids = ", ".join(f"{r.process.pid} on {clean(r.node)}" for r in left[:SHOWN])
        text = f"{names(twice)} {_are(twice)} there twice: pid {pids} "
        text += "is" if len(left) == 1 else "are"
        text += " left from an earlier run, whose launcher is gone"
        fix = Advice("end what is left of the earlier run")
        return Contradiction(text, tuple(left), fix, tuple(left), early=False)
    where = {tuple(sorted({rank.node for rank in some})) for some in twice.values()}
    nodes = next(iter(where)) if len(where) == 1 else ()
    groups = {node_rank(rank) for rank in involved}
    text = f"{names(twice)} {_are(twice)} claimed twice: " + "; ".join(
        f"{rank_name(n)} by "
        + " and ".join(f"pid {r.process.pid} on {clean(r.node)}" for r in some)
        for n, some in list(twice.items())[:SHOWN]
    )
    text += _counted_otherwise(involved)
    if lacking := absent(job, len(involved)):
        text += f"; no process seen is {names(lacking)}"
    fix = Advice("give every process a rank of its own")
    if len(nodes) > 1 and len(groups) == 1 and None not in groups:
        (group,) = groups
        text = f"{_both(nodes)} have node rank {group}, and so all run {names(twice)}"
        fix = Advice("give every node its own --node-rank")
    head = next((places.node_of(m[0], r.node) for r in involved if (m := master(r.process))), None)
    odd = [rank for rank in involved if rank.node != head] if head in nodes else []
    return Contradiction(text, tuple(odd or involved), fix, early=False)


def _counted_otherwise(some: Sequence[Rank]) -> str:
    """That processes of one rank were told other numbers of ranks on their nodes; or empty."""
    told = [clean(rank.process.env.get("LOCAL_WORLD_SIZE", ""), 8) for rank in some[:SHOWN]]
    if len(set(told)) < 2 or not all(told):
        return ""
    return f", which were told LOCAL_WORLD_SIZE={' and '.join(told)}"


def _same_script(some: Sequence[Rank]) -> bool:
    """A helper that inherited RANK and lives on by itself runs another script."""
    return len({launchline.script(rank.process.cmdline) for rank in some}) == 1


def _sizes(ranks: Sequence[Rank], each: Collection[Rank]) -> Contradiction | None:
    """WORLD_SIZE differs, or is too small for a rank; ``each`` is one of those told alike."""
    if len({world_size(rank.process) for rank in each} - {None}) > 1:
        groups = _apart(ranks, lambda rank: world_size(rank.process))
        text = _differs("WORLD_SIZE", ranks, lambda r: str(world_size(r.process) or ""))
        return Contradiction(
            text, _odd(groups), Advice("give all of them the same number of ranks")
        )
    least = min((world_size(rank.process) or len(ranks) for rank in each), default=0)
    high = [rank for rank in ranks if rank.rank >= least]
    beyond = [r for r in high if r.rank >= (world_size(r.process) or r.rank + 1)]
    if not beyond:
        return None
    text = f"{names(r.rank for r in beyond)} on {_nodes(beyond)}: ranks go up "
    text += f"to {(world_size(beyond[0].process) or 1) - 1}, for WORLD_SIZE is "
    text += f"{world_size(beyond[0].process)}"
    return Contradiction(
        text, tuple(beyond), Advice("look how RANK is computed where these are started")
    )


def _started(ranks: Sequence[Rank], each: Iterable[Rank]) -> Contradiction | None:
    """WORLD_SIZE is another number than the launcher that numbered all of them has started."""
    some = [rank.process.env for rank in each]
    for size, number, launcher in NUMBERING:
        told = {tuple(number_in(env, (name,)) for name in (size, "WORLD_SIZE")) for env in some}
        (count, wanted), *others = told or {(None, None)}
        if others or count is None or wanted in (None, count) or len(ranks) < 2:
            continue
        # torchrun, which may be started so as well, numbers its ranks anew.
        if any("GROUP_WORLD_SIZE" in env for env in some) or any(
            number_in(rank.process.env, (number,)) != rank.rank for rank in ranks
        ):
            continue
        text = f"{launcher} has started {count} ranks ({size}={count}), and all of them "
        text += f"have WORLD_SIZE={wanted} in their environment"
        return Contradiction(
            text, (), Advice(f"unset WORLD_SIZE before {launcher}, or start them all")
        )
    return None


def _node_counts(ranks: Sequence[Rank]) -> Contradiction | None:
    """GROUP_WORLD_SIZE, torchrun's number of nodes, differs."""
    groups = _apart(ranks, lambda rank: number_in(rank.process.env, ("GROUP_WORLD_SIZE",)))
    if len(groups) < 2:
        return None
    text = _differs(
        "the number of nodes (GROUP_WORLD_SIZE)",
        ranks,
        lambda r: r.process.env.get("GROUP_WORLD_SIZE", ""),
    )
    return Contradiction(text, _odd(groups), Advice("start all nodes with the same --nnodes"))


def _launchers(launchers: Sequence[Process], places: Places) -> Iterable[Contradiction]:
    """The same of launchers that have started no rank yet."""
    told = [(one, launchline.launch_options(one.cmdline)) for one in launchers]
    spanning = [(one, options) for one, options in told if launchline.spans_nodes(one.cmdline)]
    if len(spanning) < 2:
        return
    meets = [(one, launchline.endpoint(one.cmdline)) for one, _ in spanning]
    stores = {places.store(*at, one, one.node) for one, at in meets if at is not None}
    nodes = nodesets.fold(one.node for one, _ in meets)
    if len(stores) > 1:
        text = "the rendezvous differs: " + _each(
            (":".join(at), one.node) for one, at in meets if at is not None
        )
        if all(at is None or is_loopback(at[0]) for _, at in meets):
            text = f"the rendezvous is on localhost on {nodes}: "
            text += "every node waits at one of its own"
        yield Contradiction(
            text, (), Advice("give all nodes one endpoint: the address of one of them")
        )
    for option in ("nnodes", "rdzv_id", "rdzv_backend"):
        values = [(options.get(option, ""), one.node) for one, options in spanning]
        if len({value for value, _ in values}) > 1:
            name = "--" + option.replace("_", "-")
            text = f"{name} differs: " + _each((value or "none", node) for value, node in values)
            yield Contradiction(text, (), Advice(f"start all nodes with the same {name}"))
    claimed: dict[str, list[str]] = defaultdict(list)
    for one, options in spanning:
        if _ranked(options):
            claimed[options["node_rank"]].append(one.node)
    for value, some in claimed.items():
        if len(some) > 1:
            text = f"{_both(some)} have node rank {value}"
            yield Contradiction(text, (), Advice("give every node its own --node-rank"))


def _ranked(options: Mapping[str, str]) -> bool:
    """Only the static rendezvous takes node ranks as they are given (torch 2.13)."""
    return "node_rank" in options and options.get("rdzv_backend", "static") == "static"


def _apart(ranks: Iterable[Rank], key: Callable[[Rank], Hashable]) -> list[list[Rank]]:
    """Ranks by what they were told, the most first; among equals those with the lowest rank."""
    groups: dict[Hashable, list[Rank]] = defaultdict(list)
    for rank in ranks:
        value = key(rank)
        if value is not None:
            groups[value].append(rank)
    return sorted(groups.values(), key=lambda some: (-len(some), min(r.rank for r in some)))


def _odd(groups: Sequence[Sequence[Rank]]) -> tuple[Rank, ...]:
    return tuple(rank for some in groups[1:] for rank in some)


def _differs(what: str, ranks: Sequence[Rank], told: Callable[[Rank], str]) -> str:
    """`WORLD_SIZE differs: 8 on node-2 (ranks 2-3), 4 on node-1 (ranks 0-1)`."""
    groups = _apart(ranks, lambda rank: told(rank) or None)
    parts = [
        f"{clean(told(some[0]), 80)} on {_nodes(some)} ({names(r.rank for r in some)})"
        for some in reversed(groups[:SHOWN])
    ]
    return f"{what} differs: {', '.join(parts)}"


def _each(values: Iterable[tuple[str, str]]) -> str:
    on: dict[str, list[str]] = defaultdict(list)
    for value, node in values:
        on[clean(value, 80)].append(node)
    return ", ".join(f"{value} on {nodesets.fold(some)}" for value, some in on.items())


def _nodes(ranks: Iterable[Rank]) -> str:
    return nodesets.fold(rank.node for rank in ranks)


def _both(nodes: Sequence[str]) -> str:
    """`n1 and n2 both`, `n[1-8] all`; one node alone has two of its processes in mind."""
    some = sorted(set(nodes))
    if len(some) == 2:
        return f"{clean(some[0])} and {clean(some[1])} both"
    return (
        f"{nodesets.fold(some)} all" if some[1:] else f"{len(nodes)} launchers on {clean(some[0])}"
    )


def _are(some: Mapping[int, object]) -> str:
    return "is" if len(some) == 1 else "are"
