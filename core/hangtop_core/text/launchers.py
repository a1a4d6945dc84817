"""What launchers were told, and tell their ranks: command lines and variables of training."""

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
"""What torchrun takes for `--master-port` and in `--rdzv-endpoint` where none is given: torch 2.13,
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
"""Variables in which launchers tell a rank its number, that on its node, how many ranks there are
of all nodes and there, and the number of its node."""
ELASTIC = frozenset(one.name for one in launchers.TABLE if one.starts == "agent")
"""Launchers that run torch's agent, which hosts a store."""
NUMBERING = tuple(
    (one.worlds[0], number, one.name)
    for one in launchers.TABLE
    for number in (*one.ranks, *one.pmi_ranks, *one.tasks)[:1]
    if number != "RANK" and one.worlds
)
"""World size, rank and name of launchers that number every rank by variables of their own."""
LOOKED_FOR = f"{', '.join(RANKS[:-1])} or {RANKS[-1]}"
"""Variables of ranks, for sentences."""


def number_in(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Return the first of some variables that is a number, of eight digits at most."""
    for name in names:
        text = environ.get(name)
        if text and text.isdecimal() and len(text) < 9:
            return int(text)
    return None


def starts_together(launcher: str | None, environs: Iterable[Mapping[str, str]]) -> bool:
    """Whether who started ranks starts all of a node at once, so that one that lacks was there.

    A program of the user's own may start one after another; in a Slurm job it is below srun, and
    hands its own SLURM_LOCALID down to all.
    """
    known = launchers.named(launcher or "")
    if known is None or not known.tasks:
        return known is not None and known.starts != "one by one"
    told = (number_in(env, known.local_ranks) for env in environs)
    given = [one for one in told if one is not None]
    return len(given) == len(set(given))


def most_specific(names: Iterable[str | None]) -> str | None:
    """Return the launcher that the table has first, of those that ranks of one job are told by.

    Frames of Lightning name a rank only while it is in them.
    """
    known = set(names)
    found = (one.name for one in launchers.TABLE if one.name in known)
    return next(found, None) or max(filter(None, known), default=None)


def launch_options(cmdline: Sequence[str]) -> Mapping[str, str]:
    """Return torchrun's own options, those before the script, dashes as underscores.

    Source: torch 2.13 torch/distributed/run.py; ``--rdzv-id 7`` and ``--rdzv-id=7`` both count.
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
    """Whether a torchrun was told that there are others on other nodes."""
    return launch_options(cmdline).get("nnodes", "1") not in ("1", "1:1")


def endpoint(cmdline: Sequence[str]) -> tuple[str, str] | None:
    """Return host and port at which a torchrun meets those on other nodes, where it was told."""
    options = launch_options(cmdline)
    told = options.get("rdzv_endpoint", "")
    if not told and "master_addr" in options:
        told = f"{options['master_addr']}:{options.get('master_port', MASTER_PORT)}"
    host, colon, port = told.rpartition(":")
    if not colon:
        host, port = told, RENDEZVOUS_PORT
    host = host.strip("[]")
    return (host, port) if host and port.isdecimal() and port != "0" else None


def announced_world_size(cmdline: Sequence[str]) -> int | None:
    """Return how many ranks a torchrun will start, where it was told plain numbers."""
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
    """Return the script with its arguments: the same for all ranks of a job; None without one.

    The local rank that old launchers append is left out.
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
