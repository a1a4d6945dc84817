"""Logs of missing ranks, by the names of the logs of present ranks: pure.

Where each rank prints to a file of its own, `logs/rank0.log`, the log of a rank that died early
lies beside them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job

MOST = 32
"""Maximum number of missing ranks whose logs are searched, and of ranks whose names are
compared."""
_NUMBER = re.compile(r"\d+")


def siblings(job: Job) -> dict[tuple[str, str], int]:
    """Return the missing rank by node and path of its probable log."""
    present = {owner.rank for owner in job.ranks}
    if (job.world_size or 0) <= len(present):
        return {}
    missing = [rank for rank in range(min(job.world_size or 0, 1 << 16)) if rank not in present]
    rank_of: dict[tuple[str, str], int] = {}
    for owner in job.ranks[:MOST]:
        for path in owner.process.outputs:
            folder, slash, name = path.rpartition("/")
            places = [at for at in _NUMBER.finditer(name) if int(at[0]) == owner.rank]
            if not folder or len(places) != 1:
                continue
            at = places[0]
            for rank in missing[:MOST]:
                number = str(rank).zfill(len(at[0]))
                beside = f"{folder}{slash}{name[: at.start()]}{number}{name[at.end() :]}"
                rank_of.setdefault((owner.node, beside), rank)
    return rank_of
