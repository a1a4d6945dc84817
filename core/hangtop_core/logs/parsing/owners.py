"""The global rank and the node of each record, from all files of a job together.

The process that has the file open, or the name of the file, comes first; then a launcher's label;
then the text: any rank can print `[rank0]: `, for instance in a quotation of another rank's error.
`[default1]:` is a local rank: on a single node it is the global rank; on several nodes the rank is
known if lines of that node (`[rank9]:`), torchrun's report, or a file give it.
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
"""Lines about another rank than the one that prints them."""
_INIT = frozenset({"N8", "N8C"})
_OF_GROUP = frozenset({"T1", "T2", "T5"})
"""Lines whose number is a rank of their group: it counts only without other evidence."""
_KERNEL = frozenset({"K1", "K2", "K3", "K4", "K5"})
"""Lines of a kernel, printed by any process, name processes by pid."""
_OTHERS = _ABOUT | _OF_GROUP | _KERNEL


def by_own_words(record: Record, ranks: Iterable[int]) -> Record:
    """Return a record of a shared file with the rank that its text names as its printer."""
    origin = record.origin
    if record.code in _OTHERS or record.code in LAUNCHERS or origin != Origin(std=origin.std):
        return record
    number = in_own_words(record.text)
    if number is None or number not in ranks:
        return record
    return msgspec.structs.replace(record, origin=origin._replace(rank=number))


class Owners:
    """The rank of every origin."""

    def __init__(
        self, files: Sequence[FileLog], pid_ranks: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        """Learn from the files; ``pid_ranks`` are ranks by node and process id."""
        self._files = files
        self._locals = [dict(file.locals) for file in files]
        self._pids: dict[tuple[str, str], int] = dict(pid_ranks or {})
        """Rank by host (empty where unknown) and process id."""
        self._launched = [any(o.origin.local is not None for o in file.streams) for file in files]
        self._hosts = Hosts(files)
        self.first = FirstRanks(files, self._hosts)
        self._sure = self._confirmed()
        records = [record for file in files for record in file.records]
        world = max((int(r.fields["nranks"]) for r in records if r.code in _INIT), default=0)
        for record in records:
            self._learn(record, world)

    def _learn(self, record: Record, world: int) -> None:
        """Note the rank of a process, if a line gives both."""
        fields = record.fields
        pid, host, rank = fields.get("pid"), fields.get("host", ""), fields.get("rank")
        if pid is None:
            return
        if record.code in ("T16", "MPI") and rank is not None:
            self._pids.setdefault(("", pid), int(rank[:MAX_DIGITS]))
        elif host and (owner := self.rank(record.file, record.origin)) is not None:
            self._pids.setdefault((host, pid), owner)
        elif record.code in _INIT and int(fields["nranks"]) == world:
            # In the communicator of all ranks, the rank is the global one.
            self._pids.setdefault((host, pid), int(fields["comm_rank"]))

    def _confirmed(self) -> frozenset[str]:
        """Return the kinds of numbers that are ranks, as lines of their own confirm."""
        kinds = set()
        for number, file in enumerate(self._files):
            for stream in file.streams:
                kind, guess = self._guess(number, stream.origin)
                # On the first node, numbers of nodes and ranks coincide.
                if guess and stream.origin.own and guess == stream.origin.rank:
                    kinds.add(kind)
        return frozenset(kinds)

    def _guess(self, file: int, origin: Origin) -> tuple[str, int | None]:
        """Return kind and number of the origin's probable rank; it may be a node instead."""
        place = self._files[file].place
        if origin.local is not None:
            return "", None
        if place.rank is not None:
            return "name", place.rank
        label = label_of(origin)
        if label is not None:
            return "label", label
        # If torchrun runs inside, srun's label is a node.
        return "task", None if self._launched[file] else origin.task

    def _owner(self, file: int, origin: Origin) -> int | None:
        """Return the global rank of an origin, by anything but its text."""
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
        """Return the global rank of an origin; None for launchers, and if unknown."""
        owner = self._owner(file, origin)
        if owner is not None:
            return owner
        if origin.own and self.quoted(file, origin) is None:
            return origin.rank
        return self._hosts.only(origin) if origin.own and origin.local is None else origin.said

    def quoted(self, file: int, origin: Origin) -> int | None:
        """Return the rank in torch's prefix if another rank prints it."""
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
        """Return the local rank of an origin, None if unknown."""
        return origin.local if origin.local is not None else self._files[file].place.local

    def node(self, file: int, origin: Origin) -> str | None:
        """Return the node of an origin, None if unknown."""
        return origin.node or self._files[file].place.node

    def settle(self, record: Record) -> Record:
        """Return the record with the rank and the node that it is about."""
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
        fields, number = record.fields, record.fields.get("rank")
        if record.code in _ABOUT or record.how == "spawn":
            return int(number[:MAX_DIGITS]) if number else self._launched_rank(record)
        if record.code in _KERNEL:
            return self._pids.get((node or "", fields.get("pid", "")))
        rank = self.rank(record.file, record.origin)
        if rank is not None:
            return rank
        if number and record.code in _OF_GROUP:
            return int(number[:MAX_DIGITS])
        if "pid" in fields and record.code != "T15":
            pid = fields["pid"]
            return self._pids.get((fields.get("host", ""), pid), self._pids.get(("", pid)))
        return None

    def _launched_rank(self, record: Record) -> int | None:
        """Return the rank that a launcher's line is about, by its process or its local rank."""
        fields = record.fields
        # A rank that a launcher ends does not matter; one that it saw end does.
        rank = self._pids.get(("", fields.get("pid", ""))) if "exit" in fields else None
        local = fields.get("local")
        if rank is not None or local is None:
            return rank
        return self.rank(record.file, record.origin._replace(local=int(local)))

    def ranks(self) -> set[int]:
        """Return all ranks with a line."""
        ranks = (
            self.rank(number, stream.origin)
            for number, file in enumerate(self._files)
            for stream in file.streams
        )
        return {rank for rank in ranks if rank is not None}

    def last(self) -> dict[int, tuple[str, float | None]]:
        """Return the last line of every rank, and its newest time.

        Within a file, the last line is the last by order; over several files, by the times in the
        lines, or by the files' times of change.
        """
        lines_of: dict[int, list[tuple[Stream, float | None]]] = {}
        for number, file in enumerate(self._files):
            newest: dict[int, Stream] = {}
            for stream in file.streams:
                rank = self.rank(number, stream.origin)
                if rank is not None and (rank not in newest or stream.order >= newest[rank].order):
                    newest[rank] = self._as_quoted(number, stream)
            end = max((stream.order for stream in file.streams), default=0)
            for rank, stream in newest.items():
                written = file.changed if stream.order == end else None
                lines_of.setdefault(rank, []).append((stream, written))
        return {rank: _newest(lines) for rank, lines in lines_of.items()}

    def _as_quoted(self, file: int, stream: Stream) -> Stream:
        """Return a stream whose last line is marked as a quotation if it is one."""
        quoted = self.quoted(file, stream.origin)
        if quoted is None:
            return stream
        return msgspec.structs.replace(stream, last=f"[rank{quoted}]: {stream.last}")


def _newest(lines: Sequence[tuple[Stream, float | None]]) -> tuple[str, float | None]:
    """Return the last line of one rank over several files with their times of change."""
    timed = all(stream.at is not None for stream, _ in lines)

    def clock(line: tuple[Stream, float | None]) -> float:
        stream, written = line
        return (None if timed else written) or stream.at or stream.since or 0.0

    last, _ = max(reversed(lines), key=clock)
    times = [at for stream, _ in lines for at in (stream.at, stream.since) if at is not None]
    return last.last, max(times, default=None)


def label_of(origin: Origin) -> int | None:
    """Return the global rank in a launcher's label."""
    return origin.label if origin.own else origin.rank


def quotation(record: Record, rank: int) -> Record:
    """Return the record of a quotation of another rank: it says nothing of its printer."""
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
    files: Sequence[FileLog], pid_ranks: Mapping[tuple[str, str], int] | None = None
) -> tuple[Owners, Iterable[Record]]:
    """Return the owners, and all records with the rank that they are about."""
    owners = Owners(files, pid_ranks)
    return owners, [owners.settle(record) for file in files for record in file.records]
