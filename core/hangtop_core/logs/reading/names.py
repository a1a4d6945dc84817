"""The rank of a log file by its name, as launchers and people name the files of ranks."""

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
"""slurm-%j_%t.out: the number of the task."""
_RANK = re.compile(
    r"(?i)(?:^|[^a-z])(?:global[_-]?)?(?:rank|task|worker|proc)[_.-]?(\d{1,7})(?!\d)"
)
_NUMBER = re.compile(r"(\d{1,7})(?=(?:\.(?:out|err|log|txt|gz))*$)")


def places(paths: Iterable[str]) -> dict[str, Place]:
    """Return the place of every file, as far as names show it.

    A bare number at the end, as in `train_3.log`, is a rank if several files differ in nothing else
    and their numbers begin at 0.
    """
    paths = list(paths)
    place_of = {path: _place(path) for path in paths}
    if len({place.node for place in place_of.values() if place.attempt is not None}) == 1:
        place_of = {
            path: msgspec.structs.replace(entry, node=None) for path, entry in place_of.items()
        }
    alike: dict[str, dict[str, int]] = defaultdict(dict)
    for path in paths:
        number = _NUMBER.search(path)
        if number is not None and place_of[path] == Place():
            alike[path[: number.start()] + "*" + path[number.end() :]][path] = int(number[1])
    for numbered in alike.values():
        if _are_ranks(numbered):
            place_of.update({path: Place(rank=rank, guess=True) for path, rank in numbered.items()})
    return place_of


def _are_ranks(numbered: Mapping[str, int]) -> bool:
    numbers = sorted(numbered.values())
    return len(numbers) > 1 and numbers[0] == 0 and numbers[-1] < 4 * len(numbers)


def _place(path: str) -> Place:
    match = _TORCHRUN.search(path)
    if match:
        return Place(local=int(match[3]), node=match[1], std=match[4], attempt=int(match[2]))
    match = _OPENMPI.search(path)
    if match:
        return Place(rank=int(match[1]), std=match[2])
    name = path.rpartition("/")[2]
    match = _SLURM.search(path) or _RANK.search(name)
    if match:
        std = "stderr" if re.search(r"(?i)err", name) else None
        return Place(rank=int(match[1]), std=std, guess=True)
    return Place()
