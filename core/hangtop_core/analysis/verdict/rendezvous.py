"""Launchers that do not meet: nodes that never came, or a rendezvous that cannot be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import AT_START, Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import fact
from hangtop_core.analysis.verdict.sentences import sentence
from hangtop_core.analysis.verdict.steps import answers, on_node
from hangtop_core.model.frames import where
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.addresses import host_of, is_loopback
from hangtop_core.text.clean import of_several, plural
from hangtop_core.text.commands import Advice, Sign, Step
from hangtop_core.text.launchers import AGENT, endpoint, launch_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.model.snapshot import Frame, Process

MAX_LAUNCHERS = 8
"""Launchers that are named one by one."""
_OWN_STORE = "_create_tcp_store_server"
"""Where torchrun, once all nodes have come, connects to the store that it has opened under its
own name (torch 2.8 to 2.15, elastic/rendezvous/dynamic_rendezvous.py)."""
_AGENTS = Advice(
    "compare what each node gives LaunchConfig: min_nodes, rdzv_endpoint and run_id (a name that "
    "each makes up for itself is another on each, and they never meet); start it on every node"
)
_CONNECTS, _STATIC = "_create_tcp_store", "/static_tcp_rendezvous.py"
"""Where it connects to the rendezvous: a function of that with c10d, and all of the static one."""


def no_rank(case: Case) -> str:
    """`; torchrun on n[1-2] is not through with the rendezvous, and no rank has been started`."""
    waiting = [
        one
        for one in (() if case.job.ranks else case.job.launchers)
        if case.reader.process(one, case.job.launcher_sample(one)).kind == "rendezvous"
    ]
    if not waiting:
        return ""
    return f"; {_on(waiting)} is not through with the rendezvous, and no rank has been started"


def _rendezvous(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    if case.job.ranks or case.contradictions:
        return
    evidence: list[Evidence] = []
    waiting: list[Process] = []
    alone: list[Process] = []
    away: list[Process] = []
    for launcher in case.job.launchers:
        activity = case.reader.process(launcher, case.job.launcher_sample(launcher))
        if activity.kind != "rendezvous":
            continue
        waiting.append(launcher)
        if activity.top is not None and activity.top.name.endswith(_OWN_STORE):
            alone.append(launcher)
        elif activity.top is not None and _connects(activity.top):
            away.append(launcher)
        on = f" on {launcher.node}" if launcher.node else ""
        evidence.append(
            fact("stacks", None, f"launcher pid {launcher.pid}{on} is in {where(activity.top)}")
        )
    if not waiting:
        return
    if alone:
        yield _own_store(case, alone[0], evidence)
        return
    options, meets = launch_options(waiting[0].cmdline), endpoint(waiting[0].cmdline)
    wanted = options.get("nnodes")
    told = options.get("rdzv_endpoint") or (":".join(meets) if meets else case.job.master)
    if away:
        yield _not_there(case, away, waiting, told or "", evidence)
        return
    agents = waiting[0].launcher == AGENT  # which tells nothing of what it was told
    if wanted:
        evidence.append(fact("environment", None, f"the command line asks for {wanted} nodes"))
    text = _waits(waiting, wanted, told, agents=agents) + _without_launcher(case)
    yield Hit(
        subjects=(),
        summary=sentence(
            case,
            f"{text}; no rank has been started",
            case.lasting(case.progress.since),
        ),
        evidence=tuple(evidence[:MAX_LAUNCHERS]),
        steps=(
            _AGENTS
            if agents
            else Advice(
                "start the launcher on every node, with the same --nnodes, --rdzv-id and endpoint"
            ),
            _reach(told or ""),
        ),
    )


def _waits(
    waiting: Sequence[Process], wanted: str | None, told: str | None, *, agents: bool
) -> str:
    """`torchrun (pid 7) waits at the rendezvous for 2 nodes, of which 1 is seen here`."""
    named = f"(pid {waiting[0].pid}) waits"
    if len(waiting) > 1:
        named = f"waits on {nodesets.fold(p.node for p in waiting)}"
    if agents:
        named = of_several(named) if len(waiting) > 1 else named
        return f"{plural(len(waiting), AGENT)} {named} at the rendezvous for others"
    nodes = f"{wanted} nodes" if wanted else "the other nodes"
    seen = f"{len(waiting)} {'is' if len(waiting) == 1 else 'are'} seen here"
    at = f" {told}" if told else ""
    return (
        f"{waiting[0].launcher or 'torchrun'} {named} at the rendezvous{at} for {nodes}, of which "
        f"{seen}"
    )


def _connects(top: Frame) -> bool:
    """Whether a launcher still connects to the rendezvous."""
    return top.name.endswith(_CONNECTS) or f"/{top.file}".endswith(_STATIC)


def _not_there(
    case: Case,
    away: Sequence[Process],
    waiting: Sequence[Process],
    told: str,
    evidence: Sequence[Evidence],
) -> Hit:
    """Launchers that do not get through to the rendezvous, for which others may wait there."""
    pids = {(one.node, one.pid) for one in away}
    there = [one for one in waiting if (one.node, one.pid) not in pids]
    text = f"{_on(away)} tries to connect to the rendezvous"
    text += f" {told}" if told else ""
    text += " in vain"
    if there:
        text += f", where {_on(there)} waits for others"
    text += _without_launcher(case)
    command = answers(told)
    return Hit(
        subjects=(),
        summary=sentence(
            case, f"{text}; no rank has been started", case.lasting(case.progress.since)
        ),
        evidence=tuple(evidence[:MAX_LAUNCHERS]),
        steps=(
            *((on_node(away[0].node, *command),) if command else ()),
            Advice(
                "see that the launcher which has the rendezvous runs at that address, and that no "
                "firewall drops connections to its port"
            ),
        ),
    )


def _on(some: Sequence[Process]) -> str:
    """`torchrun (pid 7 on node-1)`, or `torchrun on node-[1-3]`."""
    name = some[0].launcher or "torchrun"
    if len(some) > 1:
        return f"{name} on {nodesets.fold(one.node for one in some)}"
    return f"{name} (pid {some[0].pid}{f' on {some[0].node}' if some[0].node else ''})"


def _own_store(case: Case, launcher: Process, evidence: Sequence[Evidence]) -> Hit:
    """All nodes have come, and the store for the ranks cannot be reached, by its own node even."""
    return Hit(
        subjects=(),
        summary=sentence(
            case,
            f"{launcher.launcher or 'torchrun'} (pid {launcher.pid}) does not get through to the "
            "store that it has opened itself, under the name of its machine; no rank has been "
            "started",
            case.lasting(case.progress.since),
        ),
        evidence=tuple(evidence[:MAX_LAUNCHERS]),
        steps=(
            on_node(
                launcher.node,
                "getent",
                "hosts",
                Sign.FULL_HOST_NAME,
                why="see whether the machine's own name leads to it",
            ),
            Advice(
                "mend that name in /etc/hosts or DNS; on a single node give torchrun "
                "--local-addr=127.0.0.1 meanwhile"
            ),
        ),
    )


def _without_launcher(case: Case) -> str:
    """`; none on node-3 (observed), node-4 (unreachable)`: nodes that may be the missing ones."""
    taken = {launcher.node for launcher in case.job.launchers}
    others = [node for node in case.snapshot.nodes if node.name not in taken]
    if not others or len(case.snapshot.nodes) < 2:
        return ""
    seen = [node.name for node in others if node.state in OBSERVED]
    away = [node.name for node in others if node.state not in OBSERVED]
    told = [f"there is none on {nodesets.fold(seen)}"] if seen else []
    told += [f"{nodesets.fold(away)} could not be observed"] if away else []
    return f" ({'; '.join(told)})"


def _reach(endpoint: str) -> Step:
    """What to do about an endpoint that other nodes may not reach."""
    if is_loopback(host_of(endpoint)):
        text = f"no other node can reach {endpoint}: give all of them --rdzv-endpoint=HOST:PORT"
        return Advice(text)
    command = answers(endpoint)
    if not command:
        return Advice("check from the missing nodes that they reach the endpoint")
    return on_node("", *command, why="try the endpoint from the missing nodes")


RENDEZVOUS = Rule(
    cause="rendezvous-incomplete",
    title="torchrun waits for nodes that have not come, or cannot reach a store",
    seen="A launcher without any rank, its main thread in next_rendezvous. Where that connects to "
    "the store for the ranks, all nodes have come, and this machine's own name leads nowhere. "
    "Where it connects to the rendezvous, that is told instead of for whom it waits.",
    excluded="Ranks exist.",
    confidence=0.9,
    next_steps=("Start the launcher on the missing nodes", "Check the endpoint from there"),
    find=_rendezvous,
    states=AT_START,
    complete="no rank exists; the stacks of launchers and their connections are read by themselves",
)
