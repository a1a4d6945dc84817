"""Command lines of launchers and the variables they set for ranks."""

from __future__ import annotations

import os.path
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hangtop_probe.ranks import launchers
from hangtop_probe.ranks.launchers import AGENT, MULTIPROCESSING, RAY, SPAWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_FLAGS = frozenset(
    {"module", "no_python", "run_path", "standalone", "use_env", "virtual_local_rank"}
)
"""Options that take no value: torch 2.13, torch/distributed/run.py and launch.py."""
_OWN_RANK = re.compile(r"--?local[-_]rank(?:=.*)?")
__all__ = [
    "AGENT",
    "ELASTIC",
    "LOCAL_RANKS",
    "LOCAL_SIZES",
    "LOOKED_FOR",
    "MULTIPROCESSING",
    "NODE_RANKS",
    "NUMBERING",
    "RANKS",
    "RAY",
    "SPAWN",
    "WORLD_SIZES",
]
MASTER_PORT, RENDEZVOUS_PORT = "29500", "29400"
"""Defaults of torchrun for `--master-port` and in `--rdzv-endpoint`: torch 2.13,
torch/distributed/run.py and elastic/rendezvous/c10d_rendezvous_backend.py."""
RANKS = (
    *launchers.every("ranks"),
    *launchers.every("pmi_ranks"),
    *launchers.every("tasks"),
)
LOCAL_RANKS = launchers.every("local_ranks")
WORLD_SIZES = launchers.every("worlds")
LOCAL_SIZES = launchers.every("local_sizes")
NODE_RANKS = launchers.every("nodes")
"""Variables in which launchers give a rank its number, local rank, world size, local world size and
node rank."""
ELASTIC = frozenset(launcher.name for launcher in launchers.TABLE if launcher.starts == "agent")
"""Launchers that run torch's agent, which hosts a store."""
NUMBERING = tuple(
    (launcher.worlds[0], number, launcher.name)
    for launcher in launchers.TABLE
    for number in (*launcher.ranks, *launcher.pmi_ranks, *launcher.tasks)[:1]
    if number != "RANK" and launcher.worlds
)
"""World size, rank and name of launchers that number every rank by variables of their own."""
LOOKED_FOR = f"{', '.join(RANKS[:-1])} or {RANKS[-1]}"
"""Variables of ranks, for sentences."""


def number_in(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Return the first of the variables that is a number, of eight digits at most."""
    for name in names:
        text = environ.get(name)
        if text and text.isdecimal() and len(text) < 9:
            return int(text)
    return None


def starts_together(launcher: str | None, environs: Iterable[Mapping[str, str]]) -> bool:
    """Return whether a launcher starts all ranks of a node at once.

    A program of the user's own may start ranks one after another; in a Slurm job it runs below
    srun, and passes its own SLURM_LOCALID on to all.
    """
    entry = launchers.named(launcher or "")
    if entry is None or not entry.tasks:
        return entry is not None and entry.starts != "one by one"
    numbers = (number_in(env, entry.local_ranks) for env in environs)
    given = [number for number in numbers if number is not None]
    return len(given) == len(set(given))


def most_specific(names: Iterable[str | None]) -> str | None:
    """Return the launcher that comes first in the table, among those named for one job.

    Frames of Lightning identify a rank only while it is in them.
    """
    candidates = set(names)
    matches = (launcher.name for launcher in launchers.TABLE if launcher.name in candidates)
    return next(matches, None) or max(filter(None, candidates), default=None)


def launch_options(cmdline: Sequence[str]) -> Mapping[str, str]:
    """Return torchrun's own options, those before the script, with dashes as underscores.

    Source: torch 2.13 torch/distributed/run.py; ``--rdzv-id 7`` and ``--rdzv-id=7`` are both valid.
    """
    return _launch_options(*cmdline)


@lru_cache(64)  # nearly all launchers of a job have the same
def _launch_options(*cmdline: str) -> Mapping[str, str]:
    options: dict[str, str] = {}
    words = iter(cmdline[1:])
    for word in words:
        if word.endswith(".py") and launchers.of_script(word) is None:
            break
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        options[name] = value if equals or name in _FLAGS else next(words, "")
    return options


def spans_nodes(cmdline: Sequence[str]) -> bool:
    """Return whether the options of a torchrun name other nodes."""
    return launch_options(cmdline).get("nnodes", "1") not in ("1", "1:1")


def endpoint(cmdline: Sequence[str]) -> tuple[str, str] | None:
    """Return host and port of a torchrun's rendezvous with other nodes, or None without one."""
    options = launch_options(cmdline)
    address = options.get("rdzv_endpoint", "")
    if not address and "master_addr" in options:
        address = f"{options['master_addr']}:{options.get('master_port', MASTER_PORT)}"
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, RENDEZVOUS_PORT
    host = host.strip("[]")
    return (host, port) if host and port.isdecimal() and port != "0" else None


def announced_world_size(cmdline: Sequence[str]) -> int | None:
    """Return how many ranks a torchrun will start, where its options are plain numbers."""
    options = launch_options(cmdline)
    per_node, nodes = options.get("nproc_per_node", "1"), options.get("nnodes", "1")
    if per_node.isdecimal() and nodes.isdecimal() and len(per_node + nodes) < 9:
        return int(per_node) * int(nodes)
    return None


def script(cmdline: Sequence[str]) -> str | None:
    """Return the name of the training script or module in a command line, or None."""
    at = _script_at(cmdline)
    return os.path.basename(cmdline[at]) if at is not None else None


def program(cmdline: Sequence[str]) -> tuple[str, ...] | None:
    """Return the script with its arguments, equal for all ranks of a job; None without one.

    The local rank that old launchers append is omitted.
    """
    at = _script_at(cmdline)
    if at is None:
        return None
    return tuple(word for word in cmdline[at:] if not _OWN_RANK.fullmatch(word))


def _script_at(cmdline: Sequence[str]) -> int | None:
    for at, word in enumerate(cmdline):
        if at == 0:
            continue
        if word == "-c":
            return None
        if word == "-m" and at + 1 < len(cmdline):
            if launchers.owner("modules", cmdline[at + 1]) is None:
                return at + 1
        elif word.endswith(".py") and launchers.of_script(word) is None:
            return at
    return None
