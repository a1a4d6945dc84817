"""One rank's flight recorder as columns: the form in which all analysis reads it.

A recorder holds up to thousands of entries whose texts repeat. A `Trace` keeps every text once and
numbers in columns, about 35 bytes per entry, so that a thousand ranks fit in memory and travel
cheaply. `hangtop_probe.recorder.columns` makes the columns, on the node of a running rank, or here
from files; `hangtop_core.model.recorder.columns` makes traces from them.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import defaultdict
from functools import cached_property, lru_cache
from heapq import merge
from itertools import compress, count
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from hangtop_core.model.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEDULED, STARTED, COMPLETED, STATE = 0, 1, 2, 3
"""Values of the lowest two bits of a flag, and their mask."""
RETIRED, P2P, DONE, PART = 4, 8, 16, 32
"""Bits of a flag: no longer watched; send or recv; considered over; part of a coalesced block."""
STATES = ("scheduled", "started", "completed", "unknown")

_OPEN = bytes(not flag & (DONE | P2P) for flag in range(256))
"""Table that turns flags into marks: 1 for collectives that are not over."""
_OPEN_P2P = bytes(bool(flag & P2P) and not flag & DONE for flag in range(256))
"""Table that turns flags into marks: 1 for sends and recvs that are not over."""
_COLLECTIVE = bytes(not flag & P2P for flag in range(256))
"""Table that turns flags into marks: 1 for collectives."""

FEW_GROUPS = 16
"""Groups of one rank up to which its columns are searched; above, an index is built."""

Kind = Literal["collective", "send", "recv"]

_P2P = re.compile(r"(send|recv)\s+(\d{1,9})\s*(?:->|<-)\s*(\d{1,9}|\?)?")


class Call(Struct, frozen=True):
    """An operation without its time: equal in all iterations of a training loop."""

    name: str
    """Name as recorded: `nccl:all_reduce`, `nccl:send 0->1`."""
    inputs: str
    """Sizes of all inputs, `[[8, 4]]`."""
    outputs: str
    input_types: str = ""
    output_types: str = ""

    @property
    def backend(self) -> str:
        """Return `nccl` or `gloo`; empty where the name has none."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def op(self) -> str:
        """Return the operation, such as `all_reduce`, without backend and peers."""
        return self.name.rpartition(":")[2].split(" ", 1)[0]

    @property
    def kind(self) -> Kind:
        """Return whether all ranks of a group take part, or two ranks."""
        return peers(self.name)[0]

    @property
    def peer(self) -> int | None:
        """Return the peer of a send or recv, as rank within the group; None where not recorded."""
        return peers(self.name)[1]

    @property
    def text(self) -> str:
        """Return `all_reduce [[8, 4]] Float`, for people."""
        types = self.input_types.strip("[]").replace("'", "").replace('"', "")
        inputs = "" if self.inputs in ("", "[]") else self.inputs
        return " ".join(part for part in (self.op, inputs, types) if part)


@lru_cache(maxsize=65536)
def peers(name: str) -> tuple[Kind, int | None]:
    """Return kind of operation and peer, from a recorded name such as `nccl:recv 1<-0`."""
    match = _P2P.match(name.rpartition(":")[2])
    if match is None:
        return "collective", None
    kind: Kind = "send" if match[1] == "send" else "recv"
    return kind, int(match[3]) if match[3] and match[3] != "?" else None


class GroupInfo(Struct, frozen=True):
    """A process group as one rank's recorder knows it."""

    uid: str
    """Name that all its ranks share (`process_group[0]`)."""
    desc: str
    members: str | None = None
    """Its ranks as recorded, runs joined: `[0-2, 8]`; None when not recorded."""
    enqueued: int | None = None
    """Last sequence number enqueued, from pg_status, of collectives and sends alike. 0: none."""
    completed: int | None = None
    timeout_ms: int = 0
    """Timeout of its last entry; 0: unknown."""


class Status(Struct, frozen=True):
    """Counters of a group for which only its number within this rank's process is known."""

    pg_id: int
    enqueued: int
    completed: int


class Trace(Struct, dict=True):
    """The recorder of one rank. Columns have one item per entry, oldest first."""

    rank: int
    source: str
    version: str = ""
    library: str = ""
    groups: tuple[GroupInfo, ...] = ()
    calls: tuple[Call, ...] = ()
    sites: tuple[tuple[Frame, ...], ...] = ()
    """Distinct stacks, innermost frame first; empty where the recorder has none."""
    statuses: tuple[Status, ...] = ()
    group_ids: dict[int, str] = {}
    """Names of groups by their number within this process."""
    configured: bool = False
    """Whether the members of groups are recorded and reliable."""
    length: int = 0
    dropped: int = 0
    """Entries that could not be read."""
    wrapped: bool = False
    """Whether older entries were overwritten, or left out when dumping."""
    newest_ns: int = 0
    """The newest time in it; the dump was written at this time or later."""
    timeout_ms: int = 0
    """The longest timeout of an entry."""
    ended: str = ""
    """How the rank ended, if this was written at its end; see
    `hangtop_probe.recorder.columns.ENDS`."""
    why_ended: str = ""
    """The exception at the end."""
    raw_group: bytes = b""
    raw_call: bytes = b""
    raw_site: bytes = b""
    raw_flag: bytes = b""
    raw_seq: bytes = b""
    raw_record: bytes = b""
    raw_created: bytes = b""

    @property
    def group(self) -> memoryview:
        """Return the index into `groups` per entry."""
        return memoryview(self.raw_group).cast("H")

    @property
    def call(self) -> memoryview:
        """Return the index into `calls` per entry."""
        return memoryview(self.raw_call).cast("I")

    @property
    def site(self) -> memoryview:
        """Return the index into `sites` per entry."""
        return memoryview(self.raw_site).cast("I")

    @property
    def flag(self) -> memoryview:
        """Return state and bits per entry."""
        return memoryview(self.raw_flag)

    @property
    def seq(self) -> memoryview:
        """Return the sequence numbers within the group: of collectives, or of sends and recvs."""
        return memoryview(self.raw_seq).cast("q")

    @property
    def record(self) -> memoryview:
        """Return the number of each entry within the process."""
        return memoryview(self.raw_record).cast("q")

    @property
    def created(self) -> memoryview:
        """Return when each entry was enqueued, ns since the epoch; 0 when unknown.

        Times are on the head's clock for a running rank, on the clock of its node in a dump.
        """
        return memoryview(self.raw_created).cast("q")

    def pending(self) -> bytes:
        """Return a mark per entry: 1 for a collective that is not over."""
        return self.raw_flag.translate(_OPEN)

    def pending_sends(self) -> Iterator[int]:
        """Yield the positions of sends and recvs that are not over, oldest first."""
        marks = self.raw_flag.translate(_OPEN_P2P)
        at = marks.find(1)
        while at >= 0:
            yield at
            at = marks.find(1, at + 1)

    def find(self, uid: str, seq: int) -> int | None:
        """Return the position of a group's newest collective with a sequence number, or None."""
        own = self.locals.get(uid, frozenset())
        if len(self.groups) > FEW_GROUPS:
            newest = max((self._newest.get((local, seq), -1) for local in own), default=-1)
            return newest if newest >= 0 else None
        wanted, end = seq.to_bytes(8, sys.byteorder, signed=True), len(self.raw_seq)
        group, flag = self.group, self.raw_flag
        while (byte := self.raw_seq.rfind(wanted, 0, end)) >= 0:
            at, remainder = divmod(byte, 8)
            if not remainder and group[at] in own and not flag[at] & P2P:
                return at
            end = byte + 7
        return None

    def places(self, uid: str) -> Sequence[int]:
        """Return the positions of a group's collectives, oldest first."""
        own = self.locals.get(uid, frozenset())
        several = [self._places[local] for local in own if local in self._places]
        return several[0] if len(several) == 1 else list(merge(*several))

    @cached_property
    def locals(self) -> dict[str, frozenset[int]]:
        """Map names of groups to indices into `groups`.

        A group has several indices where its process numbers it more than once.
        """
        indices: dict[str, list[int]] = defaultdict(list)
        for index, group in enumerate(self.groups):
            indices[group.uid].append(index)
        return {uid: frozenset(own) for uid, own in indices.items()}

    @cached_property
    def infos(self) -> dict[str, GroupInfo]:
        """Map each group name to its first entry with counters, else to its first entry."""
        by_uid = {group.uid: group for group in reversed(self.groups)}
        counted = [group for group in reversed(self.groups) if group.enqueued is not None]
        return {**by_uid, **{group.uid: group for group in counted}}

    @cached_property
    def counters(self) -> dict[int, Status]:
        """Map each number of a group within this process to its first counters."""
        return {status.pg_id: status for status in reversed(self.statuses)}

    @cached_property
    def sends(self) -> frozenset[str]:
        """Return the names of the groups that have sends or recvs."""
        return frozenset(
            self.groups[local].uid
            for local, flag in set(zip(self.group, self.flag, strict=True))
            if flag & P2P
        )

    @cached_property
    def _collective(self) -> bytes:
        """Return a mark per entry: 1 for a collective."""
        return self.raw_flag.translate(_COLLECTIVE)

    @cached_property
    def _places(self) -> dict[int, array[int]]:
        """Map indices into `groups` to the positions of their collectives."""
        groups = self.group
        positions: dict[int, array[int]] = defaultdict(lambda: array("I"))
        for at in compress(count(), self._collective):
            positions[groups[at]].append(at)
        return dict(positions)

    @cached_property
    def _newest(self) -> dict[tuple[int, int], int]:
        """Map index into `groups` and sequence number to the position of the newest collective."""
        keys = zip(zip(self.group, self.seq, strict=True), count())
        return dict(compress(keys, self._collective))
