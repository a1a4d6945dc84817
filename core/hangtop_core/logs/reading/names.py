"""Whose a log file is, from its name: how launchers and people name the files of ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.model.file_log import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TORCHRUN = re.compile(r"(?:^|/)([^/]+)/attempt_(\d{1,6})/(\d{1,6})/(stdout|stderr)\.log$")
"""LOG_DIR/RUN_RANDOM/attempt_N/LOCAL_RANK: torch/distributed/elastic/multiprocessing/api.py. The
folder of the run differs from node to node."""
_OPENMPI = re.compile(r"(?:^|/)rank\.(\d{1,7})/(stdout|stderr)$")
"""mpirun --output-filename DIR: DIR/JOB/rank.N/stdout."""
_SLURM = re.compile(r"(?:^|/)slurm-\d+(?:[_.]\d+)?_(\d{1,7})\.(?:out|err|log)$")
"""slurm-%j_%t.out: the task's number."""
_RANK = re.compile(
    r"(?i)(?:^|[^a-z])(?:global[_-]?)?(?:rank|task|worker|proc)[_.-]?(\d{1,7})(?!\d)"
)
_NUMBER = re.compile(r"(\d{1,7})(?=(?:\.(?:out|err|log|txt|gz))*$)")


def places(paths: Iterable[str]) -> dict[str, Place]:
    """The place of every file, as far as names tell.

    A bare number at the end, as in `train_3.log`, is a rank where several files differ in nothing
    else and their numbers begin at 0.
    """
    paths = list(paths)
    found = {path: _place(path) for path in paths}
    if len({place.node for place in found.values() if place.attempt is not None}) == 1:
        found = {path: msgspec.structs.replace(one, node=None) for path, one in found.items()}
    alike: dict[str, dict[str, int]] = defaultdict(dict)
    for path in paths:
        number = _NUMBER.search(path)
        if number is not None and found[path] == Place():
            alike[path[: number.start()] + "*" + path[number.end() :]][path] = int(number[1])
    for some in alike.values():
        if _are_ranks(some):
            found.update({path: Place(rank=rank, guess=True) for path, rank in some.items()})
    return found


def _are_ranks(some: Mapping[str, int]) -> bool:
    numbers = sorted(some.values())
    return len(numbers) > 1 and numbers[0] == 0 and numbers[-1] < 4 * len(numbers)


def _place(path: str) -> Place:
    found = _TORCHRUN.search(path)
    if found:
        return Place(local=int(found[3]), node=found[1], std=found[4], attempt=int(found[2]))
    found = _OPENMPI.search(path)
    if found:
        return Place(rank=int(found[1]), std=found[2])
    name = path.rpartition("/")[2]
    found = _SLURM.search(path) or _RANK.search(name)
    if found:
        std = "stderr" if re.search(r"(?i)err", name) else None
        return Place(rank=int(found[1]), std=std, guess=True)
    return Place()
