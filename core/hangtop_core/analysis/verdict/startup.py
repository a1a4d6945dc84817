"""Causes before training: nodes that never came, ranks that never joined."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import where
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.case import name_ranks
from hangtop_core.analysis.verdict.evidence import (
    common_facts,
    fact,
    sentence,
    trace_steps,
    waiting_facts,
    who,
)
from hangtop_core.diagnosis import Culprit, Evidence, JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Process

_AWAY = ("lost", "unreachable")
_TOGETHER_S = 20.0
"""A node that is seen for longer after the job stopped did not stop it by going away."""
_STARTING: frozenset[JobState] = frozenset({"hung", "unknown", "starting"})
_NNODES = re.compile(r"^--?nnodes(?:=(.+))?$")
_OPTIONS = ("--rdzv-endpoint", "--rdzv_endpoint", "--master-addr", "--master_addr")
_GENERIC = frozenset({"sleep", "busy", "waiting", "importing", "unknown", "idle-worker"})


def _rendezvous(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.job.ranks:
        return
    evidence: list[Evidence] = []
    waiting: list[Process] = []
    for launcher in case.job.launchers:
        activity = case.reader.process(launcher, case.job.launcher_samples.get(launcher.pid))
        if activity.kind != "rendezvous":
            continue
        waiting.append(launcher)
        evidence.append(
            fact("stacks", None, f"launcher pid {launcher.pid} is in {where(activity.top)}")
        )
    if not waiting:
        return
    wanted = _option(waiting[0], _NNODES)
    endpoint = _endpoint(waiting[0]) or case.job.master or "its rendezvous endpoint"
    if wanted:
        evidence.append(fact("environment", None, f"the command line asks for {wanted} nodes"))
    nodes = f"{wanted} nodes" if wanted else "the other nodes"
    stalled = case.progress.since
    yield Hit(
        subjects=(),
        summary=sentence(
            case,
            f"{waiting[0].launcher or 'torchrun'} (pid {waiting[0].pid}) waits at the rendezvous "
            f"{endpoint} for {nodes}, of which {len(waiting)} "
            f"{'is' if len(waiting) == 1 else 'are'} seen here; no rank has been started",
            case.ago(stalled),
        ),
        evidence=tuple(evidence),
        steps=(
            "start the launcher on every node, with the same --nnodes, --rdzv-id and endpoint",
            _reach(endpoint),
        ),
    )


def _reach(endpoint: str) -> str:
    """What to do about an endpoint that other nodes may not reach."""
    host, _, port = endpoint.rpartition(":")
    if host in ("localhost", "::1", "[::1]") or host.startswith("127."):
        return f"no other node can reach {endpoint}: give all of them --rdzv-endpoint=HOST:PORT"
    if not host or not port.isdecimal() or port == "0":
        return "check from the missing nodes that they reach the endpoint"
    return f"try the endpoint from the missing nodes: nc -zv {host.strip('[]')} {port}"


def _option(process: Process, pattern: re.Pattern[str]) -> str | None:
    arguments = list(process.cmdline)
    for index, argument in enumerate(arguments):
        met = pattern.match(argument)
        if met and (met[1] or index + 1 < len(arguments)):
            return met[1] or arguments[index + 1]
    return None


def _endpoint(process: Process) -> str | None:
    for name in _OPTIONS:
        found = _option(process, re.compile(rf"^{name}(?:=(.+))?$"))
        if found:
            port = _option(process, re.compile(r"^--master[-_]port(?:=(.+))?$"))
            return f"{found}:{port}" if port and ":" not in found else found
    return None


def _absent(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    size = case.job.world_size
    joining = [s for s in case.waiters if s.activity.kind == "init"]
    if size is None or not joining or len(joining) != len(case.waiters):
        return
    here = {rank.rank for rank in case.job.ranks}
    missing = [number for number in range(min(size, 1 << 20)) if number not in here]
    if not missing:
        return
    lost = [node.name for node in case.snapshot.nodes if node.state in ("unreachable", "lost")]
    yield Hit(
        subjects=(),
        absent=tuple(Culprit(number, "?", None) for number in missing[:64]),
        summary=sentence(
            case,
            f"{name_ranks(missing)} never joined: WORLD_SIZE is {size} and "
            f"{len(here)} ranks are there",
        ),
        evidence=(
            fact("environment", joining[0].number, f"WORLD_SIZE={size}; seen: {name_ranks(here)}"),
            *waiting_facts(case),
        ),
        steps=(
            f"start {name_ranks(missing)}, or look why they ended: their node's launcher and log",
            f"check that they reach {case.job.master or 'MASTER_ADDR:MASTER_PORT'}",
        ),
        confidence=0.6 if lost else None,
    )


def _outside(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    joining = [s for s in case.waiters if s.activity.kind in ("init", "new-group")]
    late = [s for s in left if s.activity.kind in _GENERIC]
    if not joining or len(joining) != len(case.waiters) or not late:
        return
    what = "new_group" if joining[0].activity.kind == "new-group" else "init_process_group"
    for subject in late:
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} has not reached {what}: it {subject.activity.text} at "
                f"{subject.activity.at}",
                case.since(subject),
            ),
            evidence=(*common_facts(case, [subject]), *waiting_facts(case)),
            steps=trace_steps(subject),
            confidence=0.85,
        )


def _unreachable(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    """Ranks of nodes that went away no later than the job stopped, while others wait."""
    nodes = {node.name: node for node in case.snapshot.nodes if node.state in _AWAY}
    stopped = case.progress.since
    for name in sorted({s.rank.node for s in case.subjects} & set(nodes)):
        node = nodes[name]
        seen = node.last_seen
        group = tuple(s for s in case.subjects if s.rank.node == name)
        waiting = [s for s in case.waiters if s.rank.node not in nodes]
        if not waiting or seen is None or stopped is None or seen > stopped + _TOGETHER_S:
            continue
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{name} with {name_ranks(group)} no longer answers: {node.reason or node.state}; "
                f"last seen {case.ago(seen)[4:] or 'a moment'} ago",
            ),
            evidence=(
                fact(
                    "network", None, f"{name} is {node.state}: {node.reason or 'no reason given'}"
                ),
                *waiting_facts(case),
            ),
            steps=(
                f"look at it: ping {name}; its console or BMC; `sinfo -n {name}` under Slurm",
                f"if it is gone, start the job again without {name}",
            ),
        )


RENDEZVOUS = Rule(
    cause="rendezvous-incomplete",
    title="torchrun waits for nodes that have not come",
    seen="A launcher without any rank, its main thread in next_rendezvous.",
    excluded="Ranks exist.",
    confidence=0.9,
    next_steps=("Start the launcher on the missing nodes", "Check the endpoint from there"),
    find=_rendezvous,
    states=_STARTING,
)

NEVER_JOINED = Rule(
    cause="rank-never-joined",
    title="A rank has never come to the process group",
    seen="All that wait are in init_process_group, and WORLD_SIZE counts more ranks than exist; "
    "or a rank exists and is still before init_process_group.",
    excluded="The launcher of the node started it and it is gone: `rank-exited`.",
    confidence=0.9,
    next_steps=("Start the missing ranks", "Read why they ended"),
    find=_absent,
    states=_STARTING,
)

UNREACHABLE = Rule(
    cause="node-unreachable",
    title="A node with ranks has gone away",
    seen="The connection to the node was lost about when the job stopped, and ranks elsewhere "
    "wait.",
    excluded="The node was seen for longer after the job had stopped.",
    confidence=0.8,
    next_steps=("Look whether the node is up", "Start the job again without it"),
    find=_unreachable,
)

OUTSIDE_INIT = Rule(
    cause="rank-never-joined",
    title=NEVER_JOINED.title,
    seen=NEVER_JOINED.seen,
    excluded=NEVER_JOINED.excluded,
    confidence=0.85,
    next_steps=NEVER_JOINED.next_steps,
    find=_outside,
    states=_STARTING,
)
