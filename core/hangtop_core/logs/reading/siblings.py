"""Logs of ranks that are not there, by the names of those of ranks that are: pure.

Where each rank prints to a file of its own, `logs/rank0.log`, the one of a rank that died before
anybody looked lies beside them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job

MOST = 32
"""Missing ranks of which logs are looked for, and ranks whose logs tell their names."""
_NUMBER = re.compile(r"\d+")


def siblings(job: Job) -> dict[tuple[str, str], int]:
    """Return by node and path the rank whose log it would be, of ranks that are not there."""
    here = {one.rank for one in job.ranks}
    if (job.world_size or 0) <= len(here):
        return {}
    missing = [rank for rank in range(min(job.world_size or 0, 1 << 16)) if rank not in here]
    found: dict[tuple[str, str], int] = {}
    for one in job.ranks[:MOST]:
        for path in one.process.outputs:
            folder, slash, name = path.rpartition("/")
            places = [at for at in _NUMBER.finditer(name) if int(at[0]) == one.rank]
            if not folder or len(places) != 1:
                continue
            at = places[0]
            for rank in missing[:MOST]:
                number = str(rank).zfill(len(at[0]))
                beside = f"{folder}{slash}{name[: at.start()]}{number}{name[at.end() :]}"
                found.setdefault((one.node, beside), rank)
    return found
