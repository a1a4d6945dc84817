"""By what a rank's flight recorder could be read, and by what not and why: from facts alone.

Every answer is a way, a code, and what belongs to it; the head makes sentences of them. Names of
settings, defaults and conditions as in torch 2.4 to 2.15:

- ring size: TORCH_FR_BUFFER_SIZE (2.8 on), else TORCH_NCCL_TRACE_BUFFER_SIZE; 0, which is
  off, up to 2.10 and 2000 from 2.11.
- dump files: TORCH_FR_DUMP_TEMP_FILE (2.8 on), else TORCH_NCCL_DEBUG_INFO_TEMP_FILE; by default
  /tmp/nccl_trace_rank_ up to 2.8, ~/.cache/torch/comm_lib_trace_rank_ since, from 2.11 below
  XDG_CACHE_HOME.
- pipe: made by the heartbeat thread of the default NCCL group, where
  TORCH_NCCL_DEBUG_INFO_PIPE_FILE names its stem and the ring size is above 0,
  up to 2.10 by its old name only. None with TORCH_NCCL_BLOCKING_WAIT, nor in the engine nccl2,
  which is used from 2.15 on unless TORCH_DIST_USE_NCCL2=0, and in 2.14 with 1. gloo has none.
"""

from __future__ import annotations

import os
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from ..proc import procfs

NEW_SIZE, OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
NEW_FILE, OLD_FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
RUN_DIR, RUN_STEM = "HANGTOP_RUN_DIR", "/flight/rank_"
"""Of `hangtop run`: its hook names files and pipe within the rank, which environ does not show."""
NCCL_THREADS = frozenset({"pt_nccl_heartbt", "pt_nccl_watchdg"})
NCCL2_MONITOR = "pt_nccl2_heartbt"
GLOO_THREAD = "pt_gloo_runloop"
_NO = frozenset({"", "0", "false", "no", "n", "f", "off"})

Way = Dict[str, object]


class Facts(NamedTuple):
    """What is known of a rank."""

    pid: int
    rank: Optional[int]
    uid: int
    env: Dict[str, str]
    threads: FrozenSet[str]
    loaded: bool
    """Whether it has loaded torch."""
    torch: Optional[str] = None
    """`2.13.0+cpu`; None when not known."""
    nccl: bool = False
    """Whether it has loaded libnccl."""

    @property
    def version(self) -> Optional[Tuple[int, int]]:
        """(2, 13); None when not known."""
        parts = (self.torch or "").split(".")
        major, minor = (procfs.decimal(part) for part in [*parts, "", ""][:2])
        return None if major is None or minor is None else (major, minor)

    @property
    def gloo_only(self) -> bool:
        """Whether it has a gloo group and none of NCCL."""
        return GLOO_THREAD in self.threads and not self.threads & NCCL_THREADS and not self.nccl

    @property
    def nccl2(self) -> bool:
        """Whether NCCL groups are those of the engine nccl2."""
        if self.threads & NCCL_THREADS or not self.nccl or self.version is None:
            return False
        told = self.env.get("TORCH_DIST_USE_NCCL2")
        return told != "0" if self.version >= (2, 15) else self.version == (2, 14) and told == "1"


def way(name: str, code: str, **args: object) -> Way:
    """A way and how it stands."""
    return {"way": name, "code": code, "args": {k: str(v) for k, v in args.items()}}


def ring(facts: Facts) -> Way:
    """Whether the recorder itself is on."""
    if not facts.loaded:
        return way("recorder", "no-torch")
    version = facts.version
    new_names = version is None or version >= (2, 8)
    for name in (NEW_SIZE, OLD_SIZE) if new_names else (OLD_SIZE,):
        if facts.env.get(name):
            size = procfs.decimal(facts.env[name]) or 0
            return (
                way("recorder", "on", size=size) if size else way("recorder", "off", setting=name)
            )
    if version is None:
        return way("recorder", "unknown-version")
    if version >= (2, 11):
        return way("recorder", "on", size=2000)
    name = NEW_SIZE if new_names else OLD_SIZE
    if facts.env.get(NEW_SIZE):
        return way("recorder", "off-new-name", torch=facts.torch, setting=name)
    return way("recorder", "off-default", torch=facts.torch, setting=name)


def is_off(facts: Facts) -> bool:
    """Whether the recorder is known to hold nothing."""
    return str(ring(facts)["code"]).startswith(("off", "no-torch"))


def dump_files(facts: Facts) -> List[str]:
    """Where the rank writes dumps: one path, or several where its version is not known."""
    if facts.rank is None:
        return []
    version = facts.version
    names = (NEW_FILE, OLD_FILE) if version is None or version >= (2, 8) else (OLD_FILE,)
    for name in names:
        if facts.env.get(name):
            return ["%s%d" % (facts.env[name], facts.rank)]
    run = [facts.env[RUN_DIR] + RUN_STEM] if facts.env.get(RUN_DIR) else []
    home = os.path.join(facts.env.get("HOME", "/"), ".cache")
    cache = facts.env.get("XDG_CACHE_HOME") or home
    by_version = [
        ((0, 0), "/tmp/nccl_trace_rank_"),  # noqa: S108  # where torch writes
        ((2, 9), home + "/torch/comm_lib_trace_rank_"),
        ((2, 11), cache + "/torch/comm_lib_trace_rank_"),
    ]
    stems = [stem for since, stem in by_version if version is None or version >= since]
    stems = stems if version is None else stems[-1:]
    return ["%s%d" % (stem, facts.rank) for stem in dict.fromkeys([*run, *reversed(stems)])]


def pipe_path(facts: Facts) -> Optional[str]:
    """The pipe that a byte makes the rank dump by; None where none was asked for."""
    run = facts.env.get(RUN_DIR)
    stem = facts.env.get(PIPE) or (run + RUN_STEM if run else None)
    return "%s%d.pipe" % (stem, facts.rank) if stem and facts.rank is not None else None


def pipe(facts: Facts, there: bool) -> Way:
    """How the dump pipe stands."""
    path = pipe_path(facts)
    version = facts.version
    old_size = procfs.decimal(facts.env.get(OLD_SIZE, "")) or 0
    if there:
        rare = facts.env.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1").lower() in _NO
        return way("pipe", "rare" if rare else "there", path=path)
    if is_off(facts):
        return way("pipe", "off")
    if facts.gloo_only:
        return way("pipe", "gloo")
    if facts.nccl2 and NCCL2_MONITOR not in facts.threads:
        return way("pipe", "nccl2", torch=facts.torch)
    if path is None:
        return way("pipe", "not-set")
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        if facts.env.get(name, "").lower() not in _NO:
            return way("pipe", "blocking-wait", setting=name)
    if version is not None and version < (2, 11) and not old_size:
        return way("pipe", "old-name", torch=facts.torch, setting=OLD_SIZE)
    if not facts.threads & NCCL_THREADS:
        return way("pipe", "no-group", path=path)
    return way("pipe", "missing", path=path)


def no_server(facts: Facts) -> Way:
    """No thread has the name of a worker server's; torch 2.4 does not name them, 2.8 does."""
    if facts.version is not None and facts.version < (2, 8):
        return way("server", "unnamed", torch=facts.torch)
    return way("server", "no-thread")


def handlers(facts: Facts) -> List[str]:
    """What to ask a worker server for, in order; not all builds of torch know all of them."""
    if facts.nccl2:
        return ["fr_trace_json?backend=nccl", "fr_trace_json"]
    if facts.nccl or facts.threads & NCCL_THREADS:
        return ["dump_nccl_trace_json", "fr_trace_json"]
    return ["fr_trace_json"]
