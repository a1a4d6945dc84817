"""The rung about cores: whether a rank that crashes leaves one, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.ladder.rung import Rung, ok, skipped, warning
from hangtop_core.model.node.core_pattern import PATTERN_FIX, understand
from hangtop_core.text.clean import clean, plural

if TYPE_CHECKING:
    from hangtop_core.model.node.check import Check
    from hangtop_core.model.snapshot import Fact

NAME = "cores"
LIMIT_FIX = "start the job with `ulimit -c unlimited` (Slurm: srun --propagate=CORE)"
_SHARED_FIX = "sudo sysctl -w kernel.core_uses_pid=1"


def rung(check: Check, fact: Fact | None) -> Rung:
    """Return the rung: core_pattern of the node, and the limits of its ranks."""
    if fact is None or not fact.ok or fact.path is None:
        why = fact.why if fact is not None else None
        return skipped(NAME, clean(why or "core_pattern is not known"))
    place = understand(fact.path, uses_pid=fact.version == "pid")
    where = clean(f"cores go {place.text}", 300)
    if place.off:
        return warning(NAME, "nobody leaves a core: core_pattern is empty", PATTERN_FIX)
    limited = [r for r in check.ranks if r.core_size == 0] if place.limited else []
    if limited:
        count = plural(len(check.ranks), "rank")
        text = f"{len(limited)} of {count} would leave no core: ulimit -c is 0"
        return warning(NAME, text, LIMIT_FIX, where)
    cut = [r for r in check.ranks if r.core_size]
    if cut and place.limited:
        text = f"the cores of {plural(len(cut), 'rank')} would be cut: ulimit -c is too small"
        return warning(NAME, text, LIMIT_FIX, where)
    alone = place.handler or place.uses_pid or "%p" in fact.path or "%P" in fact.path
    if not alone and len(check.ranks) > 1:
        text = f"{where}: ranks in one directory overwrite each other's"
        return warning(NAME, text, _SHARED_FIX)
    return ok(NAME, where)
