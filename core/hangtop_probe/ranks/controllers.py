"""Controllers of a job: Python programs above and beside those that started its ranks.

An API server is above the engine that started the ranks, a detokenizer beside them. Of Ray the
raylet starts them, and the driver, a program of its own, asks them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, NamedTuple, Sequence

from . import commands
from .launchers import MULTIPROCESSING, RAY, SPAWN

if TYPE_CHECKING:
    from .candidates import Candidate

NAMED = (MULTIPROCESSING, RAY)
"""Launchers that are programs with a name of their own."""
STARTERS = (SPAWN, *NAMED)
"""Launchers that are programs with something to do of their own."""
_MOST_BESIDE = 16
"""Other children of one of them that are taken for controllers: a pool may have hundreds."""
_MOST_ABOVE = 16
_RAYLET = "raylet"
RAY_THREAD = "worker.io"
"""What drivers and workers of Ray have (2.60, src/ray/core_worker/core_worker_process.cc)."""


class Tree(NamedTuple):
    """Processes, those below each, and the Python programs among them that are no ranks."""

    table: Mapping[int, Candidate]
    children: Mapping[int, Sequence[int]]
    may: Collection[int]


def above(tree: Tree, starters: Sequence[int], of_ray: Sequence[int]) -> Dict[int, str]:
    """Return launchers by pid: what is above ``starters``, and above ranks ``of_ray``."""
    found: Dict[int, str] = {}
    for pid in starters:
        found.update((c.pid, MULTIPROCESSING) for c in _programs_above(tree, pid))
    raylets = {c.pid for pid in of_ray for c in _ancestors(tree, pid) if c.comm == _RAYLET}
    for pid in raylets:
        found[pid] = RAY
        found.update((c.pid, RAY) for c in _programs_above(tree, pid))
    return found


def beside(tree: Tree, launchers: Mapping[int, str]) -> Dict[int, int]:
    """Return by pid the launcher of other programs that it started, and of drivers of Ray."""
    found: Dict[int, int] = {}
    for pid, kind in launchers.items():
        if kind not in STARTERS:
            continue
        below = tree.children.get(pid, ())
        if tree.table[pid].comm == _RAYLET:
            below = [c.pid for c in tree.table.values() if RAY_THREAD in c.threads]
            below = [one for one in below if not _is_below_raylet(tree, one)]
        some = [one for one in below if one in tree.may and one not in launchers]
        found.update((one, pid) for one in some[:_MOST_BESIDE])
    return found


def title(cmdline: Sequence[str]) -> str:
    """Return what a process calls itself (setproctitle), else the script or module that it runs."""
    kind, name = commands.python_target(cmdline) or ("", "")
    if kind in ("script", "module"):
        return os.path.basename(name)
    own = [word for word in cmdline if word.strip()]
    return own[0].strip() if not kind and len(own) == 1 else ""


def _is_below_raylet(tree: Tree, pid: int) -> bool:
    return any(c.comm == _RAYLET for c in _ancestors(tree, pid))


def _programs_above(tree: Tree, pid: int) -> List[Candidate]:
    found = []
    for c in _ancestors(tree, pid):
        if c.pid not in tree.may:
            break
        found.append(c)
    return found


def _ancestors(tree: Tree, pid: int) -> Iterator[Candidate]:
    for _ in range(_MOST_ABOVE):
        parent = tree.table.get(tree.table[pid].ppid)
        if parent is None:
            return
        yield parent
        pid = parent.pid
