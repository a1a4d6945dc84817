"""Which software differs between the ranks of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.model.snapshot import Rank

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Job

NAMES = {
    "nccl": "NCCL",
    "torch": "torch",
    "torch_folder": "torch",
    "hip": "HIP",
    "cuda": "torch's CUDA",
    "python": "Python",
}
"""What people call them; those whose difference matters most come first."""

_NONE: Mapping[int, str] = {}


class Difference(Struct, frozen=True):
    """One piece of software that is not the same everywhere."""

    key: str
    ranks: Mapping[str, tuple[Rank, ...]]
    """By version, that of the most ranks first; among equals that of the lowest rank."""


def differences(job: Job, nccl: Mapping[int, str] = _NONE) -> tuple[Difference, ...]:
    """Return what differs, in the order of `NAMES`. What is not known of a rank does not count.

    ``nccl`` are versions by rank that logs tell, for ranks whose library does not.
    """
    found = []
    first = job.ranks[0].process.versions if job.ranks else None
    if not nccl and all(rank.process.versions == first for rank in job.ranks):
        return ()  # as nearly always
    for key in NAMES:
        by_version: dict[str, list[Rank]] = defaultdict(list)
        for rank in job.ranks:
            version = rank.process.versions.get(key)
            if version is None and key == "nccl":
                version = nccl.get(rank.rank)
            if version:
                by_version[version].append(rank)
        if len(by_version) > 1:
            ordered = sorted(by_version.items(), key=lambda one: (-len(one[1]), one[1][0].rank))
            found.append(Difference(key, {version: tuple(some) for version, some in ordered}))
    return tuple(found)
