"""Read from stacks what a process is: its mp.spawn rank, the group it joins, its framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..proc import procfs
from . import naming

if TYPE_CHECKING:
    from ..wire.wire import Message
    from .rows import Row, Sample

WRAP = ("_wrap", "torch/multiprocessing/spawn.py")
"""Function and file whose local `i` is the rank of an mp.spawn child (torch 1.13 to 2.15)."""
_C10D = "torch/distributed/distributed_c10d.py"
_RENDEZVOUS = "torch/distributed/rendezvous.py"
_TOLD = (("_create_c10d_store", _RENDEZVOUS), ("init_process_group", _C10D))
"""Frames whose `rank`, `world_size` and `port` say what a rank joins; the second only counts once
it waits."""
_RANK_NAMES = ("global_rank", "rank", "world_rank", "tp_rank", "local_rank")
"""Names that programs give their rank, the most reliable first."""
_WORKER = ("_worker_loop", "torch/utils/data/_utils/worker.py")
_MEETING = "torch/distributed/elastic/rendezvous/"
_DEBUG_SERVER = "torch/distributed/debug/_frontend.py"


_EXITS = (
    ("_exit_function", "multiprocessing/util.py"),
    ("destroy_process_group", _C10D),
)
"""A multiprocessing child waits for its queues here after its target; a rank leaves its group
here."""
_THREADS_END = ("_shutdown", "threading.py")
_TARGET = ("run", "multiprocessing/process.py")
"""The frame that calls the target function of a multiprocessing child."""
_CHILD = ("_bootstrap", "multiprocessing/process.py")
"""With `_THREADS_END` further in, a multiprocessing child waits for its threads before it exits."""


class Learned(NamedTuple):
    """What stack samples have shown about a process."""

    wrap_rank: Optional[int] = None
    is_worker: bool = False
    worker_id: Optional[int] = None
    is_debug_server: bool = False
    is_agent: bool = False
    told: Tuple[Optional[int], ...] = ()  # rank, world size and port it joins with; empty: unseen
    local_rank: Optional[int] = None
    """The rank in the outermost frame that has one of `_RANK_NAMES`."""
    first_argument: Optional[int] = None
    """The first argument of the target function of a multiprocessing child."""
    is_exiting: bool = False
    """Whether its multiprocessing target has ended, or the rank leaves its group."""
    framework: Optional[str] = None
    """The launcher whose frames are on its stacks."""

    @property
    def confirms(self) -> bool:
        """Whether the process is identified, which frames of a framework alone do not do."""
        return self._replace(framework=None, first_argument=None) != Learned()


def learn(result: Sample) -> Optional[Learned]:
    """Return what frames say about the process: mp.spawn rank, group it joins, framework."""
    learned = _learn(result)
    framework = naming.of_stack([row[1] for rows in result.stacks.values() for row in rows])
    return (learned or Learned())._replace(framework=framework) if framework else learned


def _learn(result: Sample) -> Optional[Learned]:
    """Return what frames say about the process, except for its framework.

    torch 2.13 torch/multiprocessing/spawn.py `_wrap(fn, i, args, ...)` and
    torch/utils/data/_utils/worker.py `_worker_loop(..., worker_id, ...)`.
    """
    told: Tuple[Optional[int], ...] = ()
    local_rank: Optional[int] = None
    first: Optional[int] = None
    inner: Sequence[Message] = ()
    for thread in result.threads:
        rows = result.stacks[thread["stack"]]
        for row, variables in zip(rows, thread["locals"]):
            values = {v["name"]: v["value"] for v in variables}
            if thread is result.threads[0] and "/torch/" not in row[1]:
                local_rank = _own_rank(values, local_rank)
            settled = _settled(row, rows, values)
            if settled is not None:
                return settled if settled.wrap_rank is None else settled._replace(told=told)
            if not told and variables and _is_any(row, _TOLD):
                names = ("rank", "world_size", "port")
                told = tuple(procfs.decimal(values.get(name, "")) for name in names)
            if first is None and _is(row, _TARGET):
                first = _first_argument(inner)
            inner = variables
    found = Learned(told=told, local_rank=local_rank, first_argument=first)
    return found if found != Learned() else None


def _own_rank(values: Mapping[str, str], outer: Optional[int]) -> Optional[int]:
    """Return the rank that the variables of a frame name, else ``outer``."""
    numbers = (procfs.decimal(values.get(name, "")) for name in _RANK_NAMES)
    return next((rank for rank in numbers if rank is not None), outer)


def _first_argument(variables: Sequence[Message]) -> Optional[int]:
    return next((procfs.decimal(v["value"]) for v in variables if v["argument"]), None)


def _settled(row: Row, rows: Sequence[Row], values: Mapping[str, str]) -> Optional[Learned]:
    """Return what the process is, if this frame alone identifies it."""
    index = procfs.decimal(values.get("i", "")) if _is(row, WRAP) else None
    if index is not None:
        return Learned(wrap_rank=index)
    if _is(row, _WORKER):
        return Learned(is_worker=True, worker_id=procfs.decimal(values.get("worker_id", "")))
    if row[0] == "main" and row[1].endswith(_DEBUG_SERVER):
        return Learned(is_debug_server=True)
    if _MEETING in row[1]:
        return Learned(is_agent=True)
    if _is_any(row, _EXITS) or _waits_for_threads(row, rows):
        return Learned(is_exiting=True)
    return None


def _waits_for_threads(row: Row, rows: Sequence[Row]) -> bool:
    return _is(row, _THREADS_END) and any(_is(one, _CHILD) for one in rows)


def joins(rows: Sequence[Row]) -> bool:
    """Whether a stack waits in init_process_group, whose arguments are in that frame."""
    inner = rows[0][1] if rows else ""
    return inner.endswith((_C10D, _RENDEZVOUS)) and any(_is(row, _TOLD[1]) for row in rows)


def _is_any(row: Row, frames: Sequence[Tuple[str, str]]) -> bool:
    return any(_is(row, frame) for frame in frames)


def _is(row: Row, frame: Tuple[str, str]) -> bool:
    # From Python 3.11 on py-spy names classes, too.
    return bool(row[0].rpartition(".")[2] == frame[0] and row[1].endswith(frame[1]))
