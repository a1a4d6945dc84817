"""Blind spots: what could not be observed, why, and what would change that."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.analysis.activity import uses_cuda
from hangtop_core.analysis.flight.ways import unread
from hangtop_core.analysis.gpus import Slots
from hangtop_core.analysis.layout import seats
from hangtop_core.analysis.verdict.steps import on_node, spelt
from hangtop_core.diagnosis import NO_FIX, BlindSpot
from hangtop_core.jobs.joining import size_name
from hangtop_core.logs.meaning.kernel_lines import deaths
from hangtop_core.model.node.states import UNSEEN
from hangtop_core.stacks import merging
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import SAID, clean, duration, from_afar, name_pids, plural
from hangtop_core.text.commands import Spelt, quoting, spelt_or_why
from hangtop_core.text.launchers import LOOKED_FOR
from hangtop_core.text.rank_sets import fold, is_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangtop_core.analysis.layout import Seat
    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot

_STALE = 10.0
"""Seconds after which what was read of a node that answers slowly is told with its age."""
_STALE_FIX = "look at the node: load, memory, processes in state D (ps -eo pid,state,wchan,cmd)"
_RAS_NOT_ASKED = "it was not asked: its threads in all ranks would have to talk to one another"
_RAS_FIX = "`hangtop diagnose --ras` asks it once, when the job hangs"
_ONE_NUMBER = "compare RANK, the title and the arguments of its process: all should say one number"


def blind_spots(snapshot: Snapshot, job: Job | None) -> tuple[BlindSpot, ...]:
    """All blind spots of a job; with no job, of the search for one."""
    found = [
        *_nodes(snapshot.nodes, snapshot.at),
        *_capabilities(snapshot.nodes, ("py-spy", "ptrace")),
        *_others(snapshot.nodes),
    ]
    if job is not None:
        empty = seats(snapshot, job)
        found = [
            *_stacks(job, {node.name for node in snapshot.nodes if node.shell is not None}),
            *found,
            *_capabilities(_bereft(snapshot, job, empty), ("kernel log",)),
            *_gpus(snapshot, job),
            *unread([rank for rank in job.ranks if not rank.process.is_program]),
            *_ras(job),
            *_absent(snapshot, job, empty),
            *_unnumbered(job),
            *_disputed(job),
        ]
    else:
        found += _nothing(snapshot)
    return tuple(found)


def _spot(
    what: str,
    nodes: tuple[str, ...],
    ranks: tuple[int, ...],
    why: str,
    fix: str | Spelt,
) -> BlindSpot:
    if isinstance(fix, str):
        fix = quoting(clean(fix))
    return BlindSpot(what, nodes, ranks, clean(why), fix.text, fix.command)


def _stacks(job: Job, afar: set[str]) -> Iterator[BlindSpot]:
    for one in merging.missing(rank for rank in job.ranks if not _gone(rank)):
        fix = one.fix or NO_FIX
        if afar.issuperset(one.nodes):
            fix = from_afar(fix)
        yield _spot("stacks", one.nodes, one.ranks, one.why, fix)


def _gone(rank: Rank) -> bool:
    """Whether a rank has ended, be it just before its stack was to be read."""
    failure = rank.sample.failure if rank.sample is not None else None
    return rank.ended or (failure is not None and failure.kind == "gone")


def _ras(job: Job) -> Iterator[BlindSpot]:
    """Why there is no report of NCCL's RAS, or what is wrong with it."""
    asked = [rank for rank in job.ranks if rank.ras is not None]
    if not asked and any("nccl" in rank.process.versions for rank in job.ranks):
        yield _spot("NCCL RAS", (), (), _RAS_NOT_ASKED, _RAS_FIX)
    if any(rank.ras.failure is None and rank.ras.whole for rank in asked if rank.ras):
        return
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for rank in asked:
        if rank.ras is not None:
            why = rank.ras.failure or "its report is cut off: there may be more to it"
            reasons[why, rank.ras.fix or ""].append(rank.node)
    for (why, fix), names in reasons.items():
        yield _spot("NCCL RAS", tuple(sorted(set(names))), (), why, fix or NO_FIX)


def _absent(snapshot: Snapshot, job: Job, empty: Iterable[Seat]) -> Iterator[BlindSpot]:
    """Ranks that were not found: those of nodes that could not be observed by their node."""
    groups: dict[str | None, list[Seat]] = defaultdict(list)
    for seat in empty:
        groups[seat.unseen].append(seat)
    named = _by_name(snapshot.nodes)
    for reason, some in groups.items():
        nodes = tuple(sorted({seat.node for seat in some if seat.node is not None}))
        ranks = tuple(seat.rank for seat in some)
        text = (
            f"{size_name(job)} is {job.world_size}; {plural(len(ranks), 'rank')} ({fold(ranks)}) "
        )
        if reason is None:
            text += f"{'was' if len(ranks) == 1 else 'were'} not found on the nodes observed"
            fix = "run hangtop on their node, too; on this one, the launcher's log says why they "
            yield _spot("ranks", nodes, ranks, text, fix + "left")
            continue
        text += f"should be on {nodesets.fold(nodes)}, which was not observed: {reason}"
        fix = f"name it, too: {spelt_or_why(('-w', nodesets.fold((*named, *nodes))))}"
        if nodes and nodes[0] in named:
            fix = named[nodes[0]].fix or "see why the node cannot be observed"
        yield _spot("ranks", nodes, ranks, text, fix)


def _unnumbered(job: Job) -> Iterator[BlindSpot]:
    """Ranks whose number cannot be read, those with one reason together."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for process in job.unnumbered:
        # The probe says the fix behind the reason.
        why, _, fix = (process.denied or "").partition("; ")
        groups[process.user, why, fix].append(process.pid)
    for (user, why, fix), pids in groups.items():
        yield _spot(
            "rank number",
            (),
            (),
            f"the rank number{'s' * (len(pids) > 1)} of {name_pids(pids)} (user {user}) cannot be "
            f"read: {why or 'the environment holds none'}",
            fix or "name processes that have RANK and WORLD_SIZE, or their launcher",
        )


def _disputed(job: Job) -> Iterator[BlindSpot]:
    """Ranks of which two sources say different numbers, or two ranks the same."""
    for rank in job.ranks:
        odd, source = rank.process.rank_disputed, rank.process.rank_source
        if odd is None:
            continue
        why = f"{rank.place} is numbered by {source}, which is used; its {odd}"
        if is_key(rank.rank):
            why = f"{rank.place} has no number: its {odd}"
        yield _spot("rank number", (rank.node,), (rank.rank,), why, _ONE_NUMBER)


def _nodes(nodes: tuple[Node, ...], at: float) -> Iterator[BlindSpot]:
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node in nodes:
        if node.state in UNSEEN or node.state == "connecting":
            fix = node.fix or ""
            why = node.cause or ("no answer yet" if node.state == "connecting" else node.state)
            groups[node.state, why, fix].append(node.name)
        elif node.state == "slow" and node.last_seen is None:
            why = node.reason or "no process of it was seen yet"
            groups[node.state, why, node.fix or _STALE_FIX].append(node.name)
        elif node.state == "slow" and node.last_seen is not None and at - node.last_seen > _STALE:
            why = f"{node.reason or 'no answer'}; last read {duration(at - node.last_seen)} ago"
            groups[node.state, why, node.fix or _STALE_FIX].append(node.name)
    by_name = _by_name(nodes)
    for (state, why, fix), names in groups.items():
        look = spelt(on_node(names[0], "hangtop", "doctor", why="see what fails"), by_name)
        yield _spot("node", tuple(sorted(names)), (), f"{state}: {why}", fix or look)


def _bereft(snapshot: Snapshot, job: Job, empty: Iterable[Seat]) -> tuple[Node, ...]:
    """Nodes on which a rank has left: only there the kernel log is asked why."""
    left = {rank.node for rank in job.ranks if rank.ended}
    left |= {seat.node for seat in empty if seat.node is not None}
    return tuple(node for node in snapshot.nodes if node.name in left)


def _capabilities(nodes: tuple[Node, ...], names: tuple[str, ...]) -> Iterator[BlindSpot]:
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node in nodes:
        for name in names:
            able = node.capabilities.get(name)
            if able is not None and not able.ok:
                why = f"{SAID}{able.why}" if able.why else "not available"
                fix = able.fix or NO_FIX
                if node.shell is not None:
                    fix = from_afar(fix)
                groups[name, why, fix].append(node.name)
    for (name, why, fix), on in groups.items():
        yield _spot(name, tuple(sorted(on)), (), why, fix)


def _gpus(snapshot: Snapshot, job: Job) -> Iterator[BlindSpot]:
    """GPUs that could not be read: whether a rank that spins gets on is not known then."""
    users: dict[str, list[int]] = defaultdict(list)
    for rank in job.ranks:
        if uses_cuda(rank.process):
            users[rank.node].append(rank.rank)
    groups: dict[str, list[str]] = defaultdict(list)
    for node in snapshot.nodes:
        silent = [gpu for gpu in node.gpus if gpu.state == "silent"]
        if silent:
            why = silent[0].error
            groups[f"{SAID}{why}" if why else "NVML gives no answer"].append(node.name)
        elif node.name in users and not node.gpus and node.state == "ready":
            able, said = node.capabilities.get("nvml"), node.nvml
            why = said.error or said.missing if said is not None else able.why if able else None
            groups[f"{SAID}{why}" if why else "they have not been read yet"].append(node.name)
    yield from _shared_gpus(snapshot, job)
    for why, names in groups.items():
        ranks = sorted(rank for name in names for rank in users[name])
        # It may hang where NVML does.
        ask = on_node(names[0], "timeout", "20", "nvidia-smi", why="see what it says")
        fix = spelt(ask, _by_name(snapshot.nodes))
        yield _spot("GPUs", tuple(sorted(names)), tuple(ranks), why, fix)


def _shared_gpus(snapshot: Snapshot, job: Job) -> Iterator[BlindSpot]:
    """GPUs that work, or seem to, on which others than this job are."""
    if not any(gpu.worked_at for node in snapshot.nodes for gpu in node.gpus):
        return
    slots = Slots(snapshot.nodes)
    own = {(rank.node, one.pid) for rank in job.ranks for one in (rank.process, *rank.children)}
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    others: dict[tuple[str, int], str] = {}
    for rank in job.ranks:
        for slot in slots.of(rank):
            place, worked = (rank.node, slot.gpu.index), slot.gpu.worked_at
            if slot.how != "process" or worked is None or worked < snapshot.observed_since:
                continue
            strange = [p for p in slot.gpu.processes or () if (rank.node, p.pid) not in own]
            if strange:
                found[place].append(rank.rank)
                names = [f"pid {p.pid} ({clean(p.comm or '?', 20)})" for p in strange[:3]]
                more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
                others[place] = ", ".join(names) + more
    for (node, index), ranks in found.items():
        why = f"{others[node, index]} of no rank of this job use GPU {index}, too: that it works "
        why += "does not tell that these ranks get on"
        fix = "`hangtop flight` reads what these ranks have completed"
        yield _spot("GPUs", (node,), tuple(sorted(ranks)), why, fix)


def _by_name(nodes: Iterable[Node]) -> dict[str, Node]:
    return {node.name: node for node in nodes}


def _others(nodes: tuple[Node, ...]) -> Iterator[BlindSpot]:
    users: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for node in nodes:
        for user, count in node.other_users.items():
            users[user].append(node.name)
            counts[user] += count
    for user, names in users.items():
        yield _spot(
            "other users",
            tuple(sorted(names)),
            (),
            f"{plural(counts[user], 'rank-like process', 'rank-like processes')} of user {user} "
            f"left out",
            "hangtop --all-users; with sudo where their stacks are wanted",
        )


def _nothing(snapshot: Snapshot) -> Iterator[BlindSpot]:
    """What was looked for when no training job was found, and what was there instead."""
    looked = (
        "no Python process is in a process group of torch, has a rank in its environment "
        f"({LOOKED_FOR}), or is a launcher"
    )
    for node in snapshot.nodes:
        if node.state in UNSEEN:
            continue
        seen = ""
        if node.processes is not None:
            seen = f" among {plural(node.processes, 'process', 'processes')}"
        if node.python_processes:
            seen += "; Python processes instead: " + "; ".join(node.python_processes[:5])
        dead = deaths(node, snapshot.at)
        if dead:
            seen += "; the kernel log tells of Python processes that have died: " + "; ".join(dead)
        yield _spot(
            "training job",
            (node.name,),
            (),
            looked + seen,
            "`hangtop --pid PID` names the processes; another user's job: --all-users; a job on "
            "another machine: run hangtop there",
        )
