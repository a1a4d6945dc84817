"""Whose a record is: the global rank and the node, from all that the files of a job tell together.

Who has the file open, or whose it is by its name, comes first; then the label of a launcher; then
what the text says: any rank can print `[rank0]: `, as one that quotes the error of another does.
`[default1]:` is a local rank: with one node it is the global one, with several the rank is known
where lines of that node say it (`[rank9]:`), torchrun's report, or a file does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.parsing.first_ranks import FirstRanks
from hangtop_core.logs.parsing.hosts import Hosts
from hangtop_core.logs.parsing.own_words import in_own_words
from hangtop_core.model.file_log import MAX_DIGITS, FileLog, Origin, Record, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ABOUT = frozenset({"T16", "MPI", "SLURM", "SPAWN", "N7", "GPU"})
"""Lines that tell of another rank than the one that prints them."""
_INIT = frozenset({"N8", "N8C"})
_OF_GROUP = frozenset({"T1", "T2", "T5"})
"""Lines whose number is a rank of their group: it counts where nothing else tells."""
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


class Whose:
    """Knows which rank an origin is."""

    def __init__(
        self, files: Sequence[FileLog], known: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        """Learn from what files say; ``known`` are ranks by node and process id."""
        self._files = files
        self._locals = [dict(one.locals) for one in files]
        self._pids: dict[tuple[str, str], int] = dict(known or {})
        """Rank by host (empty where not told) and process id."""
        self._launched = [any(o.origin.local is not None for o in one.streams) for one in files]
        self._hosts = Hosts(files)
        self.first = FirstRanks(files, self._hosts)
        self._sure = self._confirmed()
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
        elif host and (owner := self.rank(record.file, record.origin)) is not None:
            self._pids.setdefault((host, pid), owner)
        elif record.code in _INIT and int(fields["nranks"]) == world:
            # In the communicator of all, its rank is the global one.
            self._pids.setdefault((host, pid), int(fields["comm_rank"]))

    def _confirmed(self) -> frozenset[str]:
        """Which numbers of names, tasks and labels are ranks, as lines of their own say."""
        found = set()
        for number, one in enumerate(self._files):
            for stream in one.streams:
                kind, guess = self._guess(number, stream.origin)
                # On the first node numbers of nodes and ranks are equal.
                if guess and stream.origin.own and guess == stream.origin.rank:
                    found.add(kind)
        return frozenset(found)

    def _guess(self, file: int, origin: Origin) -> tuple[str, int | None]:
        """The number that is the rank of who prints, unless each such number is a node."""
        place = self._files[file].place
        if origin.local is not None:
            return "", None
        if place.rank is not None:
            return "name", place.rank
        label = label_of(origin)
        if label is not None:
            return "label", label
        # Where torchrun is inside, srun's label is a node.
        return "task", None if self._launched[file] else origin.task

    def _owner(self, file: int, origin: Origin) -> int | None:
        """The global rank of who prints, by anything but what it prints."""
        place, local = self._files[file].place, self.local(file, origin)
        kind, guess = self._guess(file, origin)
        if guess is not None:
            text = origin.rank if origin.own else guess
            if text in self._files[file].absent:
                return None
            certain = kind in self._sure or (kind == "name" and not place.guess)
            # No node has ranks that are smaller than its own number.
            return guess if certain or text is None or text <= guess else None
        if local is None:
            return None
        label = label_of(origin)
        if label is not None:
            return label
        if self._locals[file]:
            return self._locals[file].get(local)
        return self.first.rank(origin.node or place.node, origin.task, local)

    def rank(self, file: int, origin: Origin) -> int | None:
        """The global rank of who prints; None for launchers, and where nothing tells it."""
        owner = self._owner(file, origin)
        if owner is not None:
            return owner
        if origin.own and self.quoted(file, origin) is None:
            return origin.rank
        return self._hosts.only(origin) if origin.own and origin.local is None else origin.said

    def quoted(self, file: int, origin: Origin) -> int | None:
        """The rank that torch's prefix names, where another one prints it."""
        if not origin.own:
            return None
        owner, local = self._owner(file, origin), self.local(file, origin)
        if owner is None and origin.rank is not None:
            away = self._hosts.is_foreign(origin)
            if local is not None and not away:
                node = origin.node or self._files[file].place.node
                away = self.first.is_elsewhere(node, origin.task, origin.rank)
            return origin.rank if away else None
        return origin.rank if owner not in (None, origin.rank) else None

    def local(self, file: int, origin: Origin) -> int | None:
        """The rank on its node of who prints, where told."""
        return origin.local if origin.local is not None else self._files[file].place.local

    def node(self, file: int, origin: Origin) -> str | None:
        """The node of who prints, where told."""
        return origin.node or self._files[file].place.node

    def settle(self, record: Record) -> Record:
        """The record with the rank and the node that it is about."""
        quoted = self.quoted(record.file, record.origin)
        if quoted is not None:
            record = quotation(record, quoted)
        node = record.fields.get("node") or self.node(record.file, record.origin)
        rank = self._subject(record, node)
        if node is None:
            node = record.fields.get("host") if record.code != "T16" else None
        return msgspec.structs.replace(record, rank=rank, node=node)

    def _subject(self, record: Record, node: str | None) -> int | None:
        """Return the rank that a record on a node is about."""
        fields, told = record.fields, record.fields.get("rank")
        if record.code in _ABOUT or record.how == "spawn":
            return int(told[:MAX_DIGITS]) if told else self._launched_rank(record)
        if record.code in _KERNEL:
            return self._pids.get((node or "", fields.get("pid", "")))
        rank = self.rank(record.file, record.origin)
        if rank is not None:
            return rank
        if told and record.code in _OF_GROUP:
            return int(told[:MAX_DIGITS])
        if "pid" in fields and record.code != "T15":
            pid = fields["pid"]
            return self._pids.get((fields.get("host", ""), pid), self._pids.get(("", pid)))
        return None

    def _launched_rank(self, record: Record) -> int | None:
        """Return the rank that a launcher's line is about, by its process or its local rank."""
        fields = record.fields
        # Whom a launcher ends is no matter; whom it saw end is.
        rank = self._pids.get(("", fields.get("pid", ""))) if "exit" in fields else None
        local = fields.get("local")
        if rank is not None or local is None:
            return rank
        return self.rank(record.file, record.origin._replace(local=int(local)))

    def ranks(self) -> set[int]:
        """All ranks of which there is a line."""
        some = (
            self.rank(number, stream.origin)
            for number, one in enumerate(self._files)
            for stream in one.streams
        )
        return {rank for rank in some if rank is not None}

    def last(self) -> dict[int, tuple[str, float | None]]:
        """The last line of every rank, and the newest time that it tells.

        Within a file the order of lines tells which is the last; of several files, times in the
        lines, or else when the files were written to.
        """
        found: dict[int, list[tuple[Stream, float | None]]] = {}
        for number, one in enumerate(self._files):
            newest: dict[int, Stream] = {}
            for stream in one.streams:
                rank = self.rank(number, stream.origin)
                if rank is not None and (rank not in newest or stream.order >= newest[rank].order):
                    newest[rank] = self._as_quoted(number, stream)
            end = max((stream.order for stream in one.streams), default=0)
            for rank, stream in newest.items():
                written = one.changed if stream.order == end else None
                found.setdefault(rank, []).append((stream, written))
        return {rank: _newest(some) for rank, some in found.items()}

    def _as_quoted(self, file: int, stream: Stream) -> Stream:
        """A stream, with what its last line quotes told as a quotation."""
        quoted = self.quoted(file, stream.origin)
        if quoted is None:
            return stream
        return msgspec.structs.replace(stream, last=f"[rank{quoted}]: {stream.last}")


def _newest(some: Sequence[tuple[Stream, float | None]]) -> tuple[str, float | None]:
    """The last line of one rank, of those of several files and when these were written to."""
    timed = all(stream.at is not None for stream, _ in some)

    def clock(one: tuple[Stream, float | None]) -> float:
        stream, written = one
        return (None if timed else written) or stream.at or stream.since or 0.0

    last, _ = max(reversed(some), key=clock)
    times = [at for one, _ in some for at in (one.at, one.since) if at is not None]
    return last.last, max(times, default=None)


def label_of(origin: Origin) -> int | None:
    """The global rank that a launcher's label tells."""
    return origin.label if origin.own else origin.rank


def quotation(record: Record, rank: int) -> Record:
    """What a rank has printed of another one: it tells nothing of who prints it."""
    return msgspec.structs.replace(
        record,
        code="quote",
        part="info",
        means=f"quotes rank {rank}: {record.means or record.text}",
        cause=None,
        fields={"quotes": str(rank)},
        how="",
        after=None,
    )


def settled(
    files: Sequence[FileLog], known: Mapping[tuple[str, str], int] | None = None
) -> tuple[Whose, Iterable[Record]]:
    """Who is who, and all records with the rank they are about."""
    whose = Whose(files, known)
    return whose, [whose.settle(record) for one in files for record in one.records]
