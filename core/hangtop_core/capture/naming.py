"""How a capture is called that nobody has given a name, and what it says it is of."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from hangtop_core.capture.form import SUFFIX
from hangtop_core.text import node_sets

if TYPE_CHECKING:
    from pathlib import Path

    from hangtop_core.model.snapshot import Job
    from hangtop_core.model.updates import Update

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A run id that nobody has chosen: `torchrun --standalone` draws a UUID."""


def default_name(update: Update, job: Job | None) -> str:
    """`hangtop-JOB-20260101T000000Z.hangtop`, from the job and the time of the newest picture."""
    told = "nodes"
    if job is not None:
        chosen = job.id if job.id and not _DRAWN.fullmatch(job.id) else ""
        told = chosen or job.name or job.key
    name = _ODD.sub("-", told).strip("-.")[:60] or "job"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(update.snapshot.at))
    return f"hangtop-{name}-{stamp}{SUFFIX}"


def unused(path: Path) -> Path:
    """The path, or with a number before its suffix when there is such a file already."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def target_names(update: Update) -> str:
    """The nodes that were observed, folded."""
    return node_sets.fold(node.name for node in update.snapshot.nodes)
