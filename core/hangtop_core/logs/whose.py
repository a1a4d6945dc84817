"""Whose a record is: the global rank and the node, from all that the files of a job tell together.

`[default1]:` is a local rank: with one node it is the global one, with several the rank is known
where a line of the same stream says it (`[rank9]:`), or a file does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hangtop_core.logs.known import LAUNCHERS
from hangtop_core.logs.ownwords import in_own_words
from hangtop_core.logs.prefix import Origin
from hangtop_core.logs.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ABOUT = frozenset({"T16", "MPI", "SLURM", "SPAWN", "N7", "GPU"})
"""Lines that tell of another rank than the one that prints them."""
_INIT = frozenset({"N8", "N8C"})
_OF_GROUP = frozenset({"T1", "T2", "T5"})
"""Lines whose number is a rank of their group: it counts where nothing else tells."""
MAX_DIGITS = 9
"""Of the number of a rank: longer ones are made up, and no format for numbers takes them."""
_KERNEL = frozenset({"K1", "K2", "K3", "K4", "K5"})
"""Lines of a kernel tell of processes by pid, whoever has printed them."""
_OTHERS = _ABOUT | _OF_GROUP | _KERNEL


def by_own_words(record: Record, ranks: Iterable[int]) -> Record:
    """The record of a file of several ranks, with which of them it says has printed it."""
    origin = record.origin
    if record.code in _OTHERS or record.code in LAUNCHERS or origin != Origin(std=origin.std):
        return record
    number = in_own_words(record.text)
    if number is None or number not in ranks:
        return record
    return msgspec.structs.replace(record, origin=origin._replace(rank=number))


class Place(Struct, frozen=True):
    """Who has printed a whole file, as its name or its process tells."""

    rank: int | None = None
    local: int | None = None
    node: str | None = None
    std: str | None = None
    attempt: int | None = None
    """How often torchrun had started its ranks again."""


class Stream(Struct, frozen=True):
    """One of those who print to a file."""

    origin: Origin
    lines: int = 0
    last: str = ""
    """Its last line, safe to print."""
    at: float | None = None
    """When that was printed, where it says so."""


class FileLog(Struct, frozen=True):
    """What was read of one file."""

    path: str
    place: Place = Place()
    size: int = 0
    changed: float | None = None
    records: tuple[Record, ...] = ()
    streams: tuple[Stream, ...] = ()
    """Who has printed to it."""
    whose: tuple[tuple[tuple[str | None, int | None, int], int], ...] = ()
    """Global ranks by node, task and local rank, where lines told both."""
    lines: int = 0
    left: tuple[tuple[int, int], ...] = ()
    """Byte ranges that were neither read nor searched for errors."""
    problem: str | None = None
    """Why it could not be read, or not to its end."""
    left_out: int = 0
    """Lines of note beyond those of which a record is kept."""
    whole: bool = True
    """Whether every line was read: else numbers of lines are not those of the file."""


class Whose:
    """Knows which rank an origin is."""

    def __init__(
        self, files: Sequence[FileLog], known: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        """Learn from what files say; ``known`` are ranks by node and process id."""
        self._files = files
        self._known: dict[tuple[str | None, int | None, int], int] = {}
        self._pids: dict[tuple[str, str], int] = dict(known or {})
        """Rank by host (empty where not told) and process id."""
        self._launched = [any(o.origin.local is not None for o in one.streams) for one in files]
        nodes: set[tuple[str | None, int | None]] = set()
        for one in files:
            self._known.update(one.whose)
            origins = (stream.origin for stream in one.streams)
            nodes |= {(o.node or one.place.node, o.task) for o in origins if o.local is not None}
            if one.place.local is not None:
                nodes.add((one.place.node, None))
        self._one_node = len(nodes) <= 1
        records = [record for one in files for record in one.records]
        world = max((int(r.fields["nranks"]) for r in records if r.code in _INIT), default=0)
        for record in records:
            self._learn(record, world)

    def _learn(self, record: Record, world: int) -> None:
        """Note which process is which rank, where a line tells both."""
        fields = record.fields
        pid, host, rank = fields.get("pid"), fields.get("host", ""), fields.get("rank")
        if pid is None:
            return
        if record.code in ("T16", "MPI") and rank is not None:
            self._pids.setdefault(("", pid), int(rank[:MAX_DIGITS]))
        elif record.origin.rank is not None and host:
            self._pids.setdefault((host, pid), record.origin.rank)
        elif record.code in _INIT and int(fields["nranks"]) == world:
            # In the communicator of all, its rank is the global one.
            self._pids.setdefault((host, pid), int(fields["comm_rank"]))

    def rank(self, file: int, origin: Origin) -> int | None:
        """The global rank of who prints; None for launchers, and where nothing tells it."""
        place = self._files[file].place
        if origin.rank is not None:
            return origin.rank
        local = self.local(file, origin)
        if place.rank is not None and origin.local is None:
            return place.rank
        if local is not None:
            node = origin.node or place.node
            known = self._known.get((node, origin.task, local))
            return local if known is None and self._one_node else known
        # Where torchrun is inside, srun's label is a node.
        task = origin.task if not self._launched[file] else None
        return task if task is not None else origin.said

    def local(self, file: int, origin: Origin) -> int | None:
        """The rank on its node of who prints, where told."""
        return origin.local if origin.local is not None else self._files[file].place.local

    def node(self, file: int, origin: Origin) -> str | None:
        """The node of who prints, where told."""
        return origin.node or self._files[file].place.node

    def settle(self, record: Record) -> Record:
        """The record with the rank and the node that it is about."""
        rank = self.rank(record.file, record.origin)
        node = record.fields.get("node") or self.node(record.file, record.origin)
        told = record.fields.get("rank")
        if record.code in _ABOUT or record.how == "spawn":
            pid, local = record.fields.get("pid", ""), record.fields.get("local")
            # Whom a launcher ends is no matter; whom it saw end is.
            named = self._pids.get(("", pid)) if "exit" in record.fields else None
            rank = int(told[:MAX_DIGITS]) if told else named
            if rank is None and local is not None:
                beside = record.origin._replace(local=int(local))
                rank = self.rank(record.file, beside)
        elif record.code in _KERNEL:
            rank = self._pids.get((node or "", record.fields.get("pid", "")))
        elif rank is None and told and record.code in _OF_GROUP:
            rank = int(told[:MAX_DIGITS])
        elif rank is None and "pid" in record.fields and record.code != "T15":
            pid = record.fields["pid"]
            rank = self._pids.get((record.fields.get("host", ""), pid), self._pids.get(("", pid)))
        if node is None:
            node = record.fields.get("host") if record.code != "T16" else None
        return msgspec.structs.replace(record, rank=rank, node=node)

    def ranks(self) -> set[int]:
        """All ranks of which there is a line."""
        some = (
            self.rank(number, stream.origin)
            for number, one in enumerate(self._files)
            for stream in one.streams
        )
        return {rank for rank in some if rank is not None}

    def last(self) -> dict[int, tuple[str, float | None]]:
        """The last line of every rank and its time; of several files the one with the later."""
        found: dict[int, tuple[str, float | None]] = {}
        for number, one in enumerate(self._files):
            for stream in one.streams:
                rank, at = self.rank(number, stream.origin), stream.at
                if rank is not None and (rank not in found or (at or 0) >= (found[rank][1] or 0)):
                    found[rank] = (stream.last, at)
        return found


def settled(
    files: Sequence[FileLog], known: Mapping[tuple[str, str], int] | None = None
) -> tuple[Whose, Iterable[Record]]:
    """Who is who, and all records with the rank they are about."""
    whose = Whose(files, known)
    return whose, [whose.settle(record) for one in files for record in one.records]
