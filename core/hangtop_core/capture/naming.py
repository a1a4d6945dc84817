"""The default name of a capture, and its targets."""

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

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A random run id: `torchrun --standalone` draws a UUID."""


def default_name(update: Update, job: Job | None) -> str:
    """Return `hangtop-JOB-20260101T000000Z.hangtop`, from the job and the snapshot's time."""
    label = "nodes"
    if job is not None:
        chosen = job.id if job.id and not _DRAWN.fullmatch(job.id) else ""
        label = chosen or job.name or job.key
    name = _UNSAFE.sub("-", label).strip("-.")[:60] or "job"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(update.snapshot.at))
    return f"hangtop-{name}-{stamp}{SUFFIX}"


def unused(path: Path) -> Path:
    """Return the path, with a number before its suffix if it exists already."""
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def target_names(update: Update) -> str:
    """Return the observed nodes, folded."""
    return node_sets.fold(node.name for node in update.snapshot.nodes)
