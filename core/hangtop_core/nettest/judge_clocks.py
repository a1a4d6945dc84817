"""Clocks that differ between nodes, and what that does to a job."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from hangtop_core.nettest.facts import Finding
from hangtop_core.text import node_sets
from hangtop_core.text.clean import duration
from hangtop_core.text.commands import Command, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.nettest.facts import Facts

NOTICED_S = 1.0
_CLOCKS = ("timedatectl", Sign.THEN, "chronyc", "tracking")
"""Seconds from which on it is told; clocks that are kept by NTP differ by milliseconds."""
RENDEZVOUS_S = 15.0
"""keep_alive_interval times keep_alive_max_attempt of torchrun's rendezvous: the time of a node's
last sign of life is compared with one's own (torch 2.0 to 2.15, elastic/rendezvous/
dynamic_rendezvous.py, `_sanitize`)."""
MUNGE_S = 300.0
"""For which a credential of Slurm's munge is good (munge(1), --ttl)."""


def of_clocks(facts: Facts) -> Iterator[Finding]:
    """Nodes whose clock is not that of most, this machine's counted where it decides."""
    off = _off(facts)
    if not off:
        return
    told = ", ".join(f"that of {node} is {_way(by)}" for node, by in off.items())
    most = len(facts.clocks) - len(off)
    others = f"{most} others agree" if most > 1 else "by the clock of this machine"
    evidence = [f"asked over the connections to all nodes; {others}"]
    worst = max(map(abs, off.values()))
    if worst > RENDEZVOUS_S:
        evidence.append(
            "torchrun --rdzv-backend c10d takes a node for dead whose clock is more than "
            f"{RENDEZVOUS_S:g} s behind another's: the job begins without it, or never"
        )
    if worst > MUNGE_S:
        evidence.append(f"Slurm (munge) refuses credentials that are off by {MUNGE_S:g} s")
    evidence.append("times in logs and of files do not tell what came first")
    first = next(iter(off))
    yield Finding(
        "clock-differs",
        "warning",
        f"clocks differ: {told}",
        tuple(off),
        evidence=tuple(evidence),
        next_steps=(Command("", _CLOCKS, f"see whether NTP runs on {first}"),),
    )


def clocks(facts: Facts) -> str:
    """How far the clocks of nodes are apart, in one line."""
    ahead = [clock.ahead for clock in facts.clocks.values()]
    within = max(clock.within for clock in facts.clocks.values())
    apart = max(ahead) - min(ahead)
    odd = node_sets.fold(_off(facts))
    if odd:
        return f"{duration(apart)} apart: {odd}"
    return f"those of {len(ahead)} nodes are the same within {max(apart, within) * 1000:.0f} ms"


def _off(facts: Facts) -> dict[str, float]:
    """Nodes with clocks that are not those of most, and by how many seconds ahead of these."""
    if len(facts.clocks) < 2:
        return {}
    ahead = [clock.ahead for clock in facts.clocks.values()]
    usual = statistics.median(ahead if len(ahead) % 2 else [*ahead, 0.0])
    return {
        node: by
        for node, clock in facts.clocks.items()
        if abs(by := clock.ahead - usual) > NOTICED_S + clock.within
    }


def _way(by: float) -> str:
    return f"{duration(abs(by))} {'ahead' if by > 0 else 'behind'}"
