"""What is ruled out, and by what was looked at: only what was observed, never what was not.

A check says what it looked at where everything it needs was seen and shows no fault. Of what could
not be seen it says nothing: that is a blind spot.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hangtop_core.analysis import cgroups
from hangtop_core.analysis.standing import HALTED
from hangtop_core.analysis.verdict.naming import name_ranks, tracer
from hangtop_core.analysis.versions import NAMES, differences
from hangtop_core.diagnosis import Exclusion
from hangtop_core.jobs.joining import size_name
from hangtop_core.logs.meaning.kernel_lines import read
from hangtop_core.model.node.states import AWAY, OBSERVED
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, duration, plural, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Node

_MEETING = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FULL_SHARE = 10.0
"""Percent of stalls for want of memory from which that is no longer ruled out."""


class _Check(NamedTuple):
    """What would be excluded, and what says that it is."""

    causes: tuple[str, ...]
    text: str
    looked_at: Callable[[Case], str | None]
    """None where it was not seen, or is not excluded."""


def exclusions(case: Case, causes: Collection[str]) -> Iterator[Exclusion]:
    """Say what is ruled out.

    Args:
        case: what was observed.
        causes: of the verdicts that were given; what says one of them is not ruled out.
    """
    for check in _CHECKS:
        if any(cause in causes for cause in check.causes):
            continue
        seen = check.looked_at(case)
        if seen is not None:
            yield Exclusion(check.causes, check.text, clean(seen, 200))


def _node(case: Case, subject: Subject) -> Node | None:
    return case.nodes.get(subject.rank.node)


def _heard(case: Case) -> bool:
    """Whether what is known of all ranks is true now: no node of theirs is silent."""
    return not any(node.state in AWAY for node in case.seen_nodes)


def _all_seen(case: Case) -> bool:
    """Whether what all ranks do now is known: they are there, sampled, and on nodes that answer."""
    return (
        bool(case.subjects)
        and _heard(case)
        and all(s.rank.sample is not None and s.rank.sample.threads for s in case.live)
    )


def _answering(case: Case) -> str | None:
    nodes = case.seen_nodes
    if len(nodes) < len(case.job.nodes) or any(n.state not in OBSERVED for n in nodes) or not nodes:
        return None
    names = shorten(nodesets.fold(node.name for node in nodes), 60)
    return f"{names} answers" if len(nodes) == 1 else f"all {len(nodes)} nodes answer: {names}"


def _present(case: Case) -> str | None:
    size, here = case.job.world_size, {s.number for s in case.live}
    if size is None or len(here) < size or not _heard(case):
        return None
    return f"all {size} ranks of {size_name(case.job)} are there and alive"


def _unhalted(case: Case) -> str | None:
    if not case.subjects or not _heard(case):
        return None
    if any(s.activity.kind in HALTED for s in case.subjects):
        return None
    told = f"none of {plural(len(case.live), 'rank')} is, by state, tracer and cgroup"
    traced = Counter(by for s in case.live if (by := tracer(s.rank.process)))
    return "; ".join((told, *(f"{by} traces {n}, which run" for by, n in traced.most_common(3))))


def _undisked(case: Case) -> str | None:
    processes = [p for s in case.live for p in (s.rank.process, *s.rank.children)]
    threads = [thread for process in processes for thread in process.threads]
    if not threads or not _heard(case):
        return None
    if any(thread.state == "D" for thread in threads):
        return None
    return f"none of {plural(len(threads), 'thread')} of ranks and their children is in state D"


def _unstarved(case: Case) -> str | None:
    workers = [p for s in case.live for p in s.rank.children if p.role == "dataloader-worker"]
    if not workers or not _all_seen(case) or any(p.state == "Z" for p in workers):
        return None
    if any(s.activity.kind in ("data", "inline-data", "pin-memory") for s in case.subjects):
        return None
    return f"no rank waits for a batch; none of {plural(len(workers), 'worker')} has ended"


def _issued_alike(case: Case) -> str | None:
    seen = case.picture
    recorded = len(seen.world.traces) if seen is not None else 0
    if seen is None or recorded < len(case.subjects) or seen.world.absent:
        return None
    if any(one.mismatched for one in case.in_flight):
        return None
    return f"by the recorders of {plural(recorded, 'rank')} equal numbers are equal calls"


def _at_one_call(case: Case) -> str | None:
    """One call of equal ranks may still be the next one of some: only recorders tell that."""
    if len(case.waiting_classes) != 1 or not _all_seen(case):
        return None
    text, members = case.waiting_classes[0]
    return f"{name_ranks(members)} {'waits' if len(members) == 1 else 'all wait'} {text}"


def _unkilled(case: Case) -> str | None:
    nodes = case.seen_nodes
    able = [node.capabilities.get("kernel log") for node in nodes]
    if not nodes or not case.subjects or not all(one is not None and one.ok for one in able):
        return None
    lines = [line for node in nodes for line in node.kernel_lines if line.at >= case.began]
    if any(read(line) is not None for line in lines):
        return None
    return f"the kernel log of {shorten(nodesets.fold(n.name for n in nodes), 60)} has no such line"


def _remembering(case: Case) -> str | None:
    nodes = case.seen_nodes
    shares = [node.memory_full for node in nodes if node.memory_full is not None]
    if not nodes or len(shares) < len(nodes) or max(shares) >= _FULL_SHARE:
        return None
    some = case.subjects if any(node.cgroups for node in case.snapshot.nodes) else ()
    groups = (group for s in some for group in cgroups.of(_node(case, s), s.rank.process))
    if any(group.memory_full >= _FULL_SHARE for group in groups):
        return None
    return f"{max(shares):.0f}% of the last 10 s were lost for want of memory"


def _unfailing(case: Case) -> str | None:
    gpus = {(s.rank.node, gpu.index) for s in case.on_gpus for gpu in case.gpus(s)}
    # Of one that is lost nobody may know any more which rank is on it.
    near = (gpu for node in case.seen_nodes for gpu in node.gpus)
    if not gpus or any(gpu.state != "ok" for gpu in near) or any(case.xids.values()):
        return None
    if len(gpus) == 1:
        return "1 GPU answers, and has had no Xid"
    return f"{len(gpus)} GPUs answer, and none has had an Xid"


def _linked(case: Case) -> str | None:
    ports = [nic for node in case.seen_nodes for nic in node.nics if nic.kind != "ethernet"]
    if not ports or any(nic.state != "ACTIVE" or nic.new_errors for nic in ports):
        return None
    return f"{plural(len(ports), 'RDMA port')} ACTIVE, no new errors"


def _acknowledged(case: Case) -> str | None:
    ranks = [s.rank for s in case.live]
    if not ranks or not _heard(case):
        return None
    if any(rank.process.stalled or rank.process.denied for rank in ranks):
        return None
    return f"TCP connections of {plural(len(ranks), 'rank')}: all that was sent is acknowledged"


def _agreeing(case: Case) -> str | None:
    told = [s.rank.process.env for s in case.subjects]
    if len(told) < 2 or len({tuple(map(env.get, _MEETING)) for env in told}) > 1:
        return None
    if any(name not in told[0] for name in _MEETING):
        return None
    return f"{', '.join(_MEETING)} are the same in {plural(len(told), 'rank')}"


def _of_one_version(case: Case) -> str | None:
    ranks = [s.rank for s in case.subjects]
    if len(ranks) < 2:
        return None
    first = ranks[0].process.versions
    alike = all(rank.process.versions == first for rank in ranks)
    shown = [
        key
        for key in ("torch", "nccl", "python")
        if first.get(key) and (alike or all(r.process.versions.get(key) for r in ranks))
    ]
    if "torch" not in shown or (not alike and differences(case.job)):
        return None
    said = (f"{NAMES[key]} {first[key]}" for key in shown)
    return f"all {len(ranks)} ranks have {', '.join(said)}"


def _not_full(case: Case) -> str | None:
    nodes = [node for node in case.seen_nodes if node.mounts]
    if not nodes or len(nodes) < len(case.job.nodes):
        return None
    if any(node.full_mounts or node.full_quotas for node in nodes):
        return None
    return f"none of {plural(sum(len(node.mounts) for node in nodes), 'mount')} is full"


def _silent_logs(case: Case) -> str | None:
    judged = case.said.judged
    if judged is None or judged.first is not None:
        return None
    return f"none in those of {plural(len(judged.ranks), 'rank')}" if judged.ranks else None


def _not_slow(case: Case) -> str | None:
    if case.progress.state != "hung" or case.progress.stalled_for_s is None:
        return None
    if not case.subjects or not _heard(case):
        return None
    told, stacks = duration(case.progress.stalled_for_s), ", stacks" if _all_seen(case) else ""
    return f"CPU time{stacks} and bytes of all ranks: none has got on for {told}"


_CHECKS = (
    _Check(("straggler", "long-phase"), "slow, not hung", _not_slow),
    _Check(
        ("rank-exited", "rank-crashed", "rank-oom-killed", "rank-never-joined"),
        "a rank that is not there",
        _present,
    ),
    _Check(
        ("rank-stopped", "rank-traced", "cgroup-frozen", "rank-dumping-core"),
        "a rank that is stopped, traced or frozen",
        _unhalted,
    ),
    _Check(
        ("mismatched-collective", "mismatched-size", "mismatched-dtype"),
        "different operations under one number",
        _issued_alike,
    ),
    _Check(("mismatched-collective",), "ranks that wait at different calls", _at_one_call),
    _Check(
        ("dataloader-worker-stuck", "dataloader-worker-dead", "data-starved", "fork-deadlock"),
        "DataLoader workers",
        _unstarved,
    ),
    _Check(("io-wait", "checkpoint-slow"), "a disk or file server that hangs", _undisked),
    _Check(("disk-full",), "a full file system", _not_full),
    _Check(("memory-thrash",), "too little memory", _remembering),
    _Check(("gpu-lost", "gpu-xid", "gpu-ecc", "gpu-nvlink"), "a GPU that failed", _unfailing),
    _Check(("ib-port-down",), "an RDMA port that is down", _linked),
    _Check(("tcp-peer-dead",), "a connection to a dead node", _acknowledged),
    _Check(("node-unreachable",), "a node that is away", _answering),
    _Check(("launch-misconfigured",), "a launch that contradicts itself", _agreeing),
    _Check(("version-mismatch",), "different versions", _of_one_version),
    _Check(
        ("rank-oom-killed", "rank-crashed", "gpu-xid"),
        "a kill or crash in the kernel log",
        _unkilled,
    ),
    _Check(("nccl-ib-error", "store-unreachable", "shm-too-small"), "errors in logs", _silent_logs),
)
