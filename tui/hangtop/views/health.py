"""The health of the data: connected nodes, states of ranks, missing capabilities."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, counted, labelled, line
from hangtop.views.common import STATE_ROLES, ago, span, unheard
from hangtop.views.nodes.gpus import doing_counts
from hangtop.views.nodes.nodes import alike, counts, node_role
from hangtop_core.analysis.gpus import doing
from hangtop_core.analysis.layout import absent
from hangtop_core.analysis.verdict.naming import name_ranks
from hangtop_core.model.node.states import OBSERVED
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import plural, size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from hangtop_core.model.snapshot import Job, Node, Rank, Snapshot

NEEDED = frozenset({"py-spy", "strace", "ptrace"})
"""Capabilities that are worth a line when missing; a node without GPUs needs none for them."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a label: DataLoader workers die when it is full


def health_steps(
    snapshot: Snapshot | None,
    job: Job | None,
    now: float,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> Generator[None, None, list[Line]]:
    """Compute, in steps: nodes that answered, states of ranks, age of stacks, load of the host.

    `keys` as `Keymap.names` has them.
    """
    if snapshot is None:
        return []
    failing = [node for node in snapshot.nodes if node.state not in ("ready", "connecting")]
    alone = len(snapshot.nodes) == 1
    states = counts([node for node in snapshot.nodes if node not in failing or alone])
    page = f"  {' '.join(filter(None, (keys.get('nodes'), 'Nodes')))}"
    lines = [labelled("nodes", line(states, (page, "key")) if failing and not alone else states)]
    for group in alike(failing):
        node = group[0]
        first = min(member.since for member in group)
        since = f" for {span(now - first)}" if first else ""
        text = f"{nodesets.fold(member.name for member in group)} {node.state}{since}"
        # For several nodes Nodes has the reasons: the space here is small.
        reason = f" {node.cause}" if alone else ""
        lines.append(labelled("", line((text, node_role(node.state)), reason)))
    yield
    if job is not None:
        lines += yield from _rank_health(job, unheard(snapshot.nodes, now), now)
    lines += [*_gpu_health(snapshot), *_host_health(snapshot)]
    return lines


def _gpu_health(snapshot: Snapshot) -> Iterator[Line]:
    """Yield what the GPUs do, if there are any."""
    gpus = [gpu for node in snapshot.nodes for gpu in node.gpus]
    if gpus:
        yield labelled("gpus", doing_counts(map(doing, gpus)))


def _rank_health(
    job: Job, quiet: Mapping[str, tuple[str, float]], now: float
) -> Generator[None, None, list[Line]]:
    """Compute, in steps, the states of ranks; unknown for those on silent nodes (`quiet`)."""
    heard = [rank for rank in job.ranks if rank.node not in quiet]
    yield
    lines = [labelled("ranks", _rank_states(heard, len(job.ranks) - len(heard)) or "none yet")]
    yield
    lines += _unseen_ranks(job)
    yield
    children = Counter(child.role for rank in job.ranks for child in rank.children)
    if children:
        text = "  ".join(f"{count} {role}" for role, count in children.most_common(3))
        lines.append(labelled("children", text))
    yield
    times = [rank.sample.at for rank in job.ranks if rank.sample and rank.sample.threads]
    yield
    failed = sum(1 for rank in job.ranks if rank.sample and not rank.sample.threads)
    lines.append(labelled("stacks", _stacks_taken(times, len(job.ranks), failed, now)))
    return lines


def _rank_states(ranks: Sequence[Rank], silent: int) -> Line:
    """Return `3 running 1 blocked`, and the number of ranks on silent nodes."""
    states = counted((rank.state for rank in ranks), STATE_ROLES.__getitem__)
    if not silent:
        return states
    return line(states, "  " if states else "", (f"{silent} on silent nodes", "warn"))


def _unseen_ranks(job: Job) -> Iterator[Line]:
    """Yield the ranks that are missing, and how many processes may be ranks."""
    if missing := absent(job):
        yield labelled("", line((f"{name_ranks(missing)} not found", "bad")))
    if job.unnumbered:
        count = plural(len(job.unnumbered), "process", "processes")
        yield labelled("", line((f"{count} whose rank could not be read", "warn")))


def _stacks_taken(times: Sequence[float], ranks: int, failed: int, now: float) -> Line:
    """Return how many ranks gave a stack, how long ago, and how many gave none."""
    if not times:
        return line((f"none  {failed or ''}", "dim"))
    text = f"{len(times)} of {ranks}, newest {ago(max(times), now)}"
    return line(text, (f"  {failed} gave none", "warn") if failed else ("", ""))


def _lacking(nodes: Sequence[Node], alone: bool) -> Iterator[Line]:
    """Yield the missing capabilities, one line each, whatever the number of nodes."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        for name, fact in node.capabilities.items():
            if not fact.ok and name in NEEDED:
                why = fact.why or "not usable"
                reasons.setdefault(name, {}).setdefault(why, []).append(node.name)
    for name, nodes_by_reason in reasons.items():
        why = max(nodes_by_reason, key=lambda reason: len(nodes_by_reason[reason]))
        names = nodesets.fold(name for nodes in nodes_by_reason.values() for name in nodes)
        where = "" if alone else f"{names}: "
        # Reasons may contain paths, which differ between nodes.
        more = (
            f" and {plural(len(nodes_by_reason) - 1, 'reason')} like it"
            if len(nodes_by_reason) > 1
            else ""
        )
        yield labelled(name, line(where, (why, "warn"), (more, "dim")))


def _host_health(snapshot: Snapshot) -> list[Line]:
    lines: list[Line] = []
    ready = [node for node in snapshot.nodes if node.state in OBSERVED]
    if len(snapshot.nodes) == 1 and ready:
        node = ready[0]
        load = "?" if node.load1 is None else f"{node.load1:.1f}"
        lines.append(labelled("load", f"{load} on {plural(node.cpus or 0, 'cpu')}"))
        if node.memory_total:
            free = size(node.memory_available)
            lines.append(labelled("memory", f"{free} free of {size(node.memory_total)}"))
        if node.shm_total:
            low = (node.shm_free or 0) < node.shm_total * 0.05
            text = f"{size(node.shm_free)} free of {size(node.shm_total)}"
            lines.append(labelled(SHARED_MEMORY, line((text, "bad" if low else ""))))
    lines += _lacking(ready, len(snapshot.nodes) == 1)
    noise = sum(node.noise_lines for node in snapshot.nodes)
    if noise:
        lines.append(labelled("noise", line((plural(noise, "foreign line"), "warn"))))
    return lines
