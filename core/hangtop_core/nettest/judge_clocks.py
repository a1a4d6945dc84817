"""Clocks that differ between nodes, and the effects on a job."""

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
"""Seconds from which a difference is reported; clocks under NTP differ by milliseconds."""
_CLOCKS = ("timedatectl", Sign.THEN, "chronyc", "tracking")
RENDEZVOUS_S = 15.0
"""keep_alive_interval times keep_alive_max_attempt of torchrun's rendezvous, which compares a
node's last sign of life with its own time (torch 2.0 to 2.15,
elastic/rendezvous/dynamic_rendezvous.py, `_sanitize`)."""
MUNGE_S = 300.0
"""Seconds for which a credential of Slurm's munge is valid (munge(1), --ttl)."""


def of_clocks(facts: Facts) -> Iterator[Finding]:
    """Yield a finding on clocks that differ from most; this machine's breaks a tie."""
    off = _off(facts)
    if not off:
        return
    differences = ", ".join(f"that of {node} is {_offset(by)}" for node, by in off.items())
    agreeing = len(facts.clocks) - len(off)
    agreement = f"{agreeing} others agree" if agreeing > 1 else "by the clock of this machine"
    evidence = [f"asked over the connections to all nodes; {agreement}"]
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
        f"clocks differ: {differences}",
        tuple(off),
        evidence=tuple(evidence),
        next_steps=(Command("", _CLOCKS, f"see whether NTP runs on {first}"),),
    )


def clocks(facts: Facts) -> str:
    """Return in one line how far the clocks of nodes differ."""
    ahead = [clock.ahead for clock in facts.clocks.values()]
    within = max(clock.within for clock in facts.clocks.values())
    apart = max(ahead) - min(ahead)
    off = node_sets.fold(_off(facts))
    if off:
        return f"{duration(apart)} apart: {off}"
    return f"those of {len(ahead)} nodes are the same within {max(apart, within) * 1000:.0f} ms"


def _off(facts: Facts) -> dict[str, float]:
    """Return the nodes whose clock differs from most, and by how many seconds it is ahead."""
    if len(facts.clocks) < 2:
        return {}
    ahead = [clock.ahead for clock in facts.clocks.values()]
    usual = statistics.median(ahead if len(ahead) % 2 else [*ahead, 0.0])
    return {
        node: by
        for node, clock in facts.clocks.items()
        if abs(by := clock.ahead - usual) > NOTICED_S + clock.within
    }


def _offset(by: float) -> str:
    return f"{duration(abs(by))} {'ahead' if by > 0 else 'behind'}"
