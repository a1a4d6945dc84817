"""Alignment of flight recorders by group and sequence number: who lacks what others wait for.

On gloo the recorder's entries never leave the state `scheduled` (torch 2.13), so the node sets
`completed` from the counters of the process group instead; send and recv are not recorded.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.model import Collective, Rank


class Pending(Struct, frozen=True):
    """The oldest operation of one group that some ranks have issued and none has completed."""

    group: str
    label: str
    """Description of the group, for people: `default_pg`."""
    seq: int
    ops: tuple[tuple[str, tuple[int, ...]], ...]
    """Operation and sizes, with the ranks that issued it; the most frequent first."""
    lacking: tuple[int, ...]
    """Ranks of the group whose newest operation comes before this one."""

    @property
    def op(self) -> str:
        """What most ranks issued, without its sizes and its backend (`gloo:all_reduce`)."""
        return self.ops[0][0].split(" ", 1)[0].rpartition(":")[2]

    @property
    def name(self) -> str:
        """`all_reduce #17`, as sentences name it."""
        return f"{self.op} #{self.seq}"

    @property
    def mismatched(self) -> tuple[int, ...]:
        """Ranks that issued something else than most."""
        return tuple(sorted(rank for _, ranks in self.ops[1:] for rank in ranks))


def read_ranks(ranks: Iterable[Rank]) -> tuple[int, ...]:
    """Ranks whose recorder said something."""
    return tuple(rank.rank for rank in ranks if rank.recorder is not None and rank.recorder.entries)


def pending(ranks: Iterable[Rank]) -> tuple[Pending, ...]:
    """What every group of ranks waits for, groups that lack ranks first.

    A group's members are the ranks that have recorded anything in it; in the default group (`0`)
    all ranks whose recorder was read.
    """
    readable = [rank for rank in ranks if rank.recorder is not None and rank.recorder.entries]
    groups: dict[str, dict[int, list[Collective]]] = defaultdict(dict)
    for rank in readable:
        assert rank.recorder is not None  # noqa: S101 - narrows the type, tested just above
        for entry in rank.recorder.entries:
            groups[entry.group].setdefault(rank.rank, []).append(entry)
    for rank in readable:
        if "0" in groups:
            groups["0"].setdefault(rank.rank, [])
    found = [_oldest(group, members) for group, members in groups.items()]
    return tuple(
        sorted((one for one in found if one), key=lambda one: (not one.lacking, one.group))
    )


def _oldest(group: str, members: dict[int, list[Collective]]) -> Pending | None:
    waiting = {
        rank: min((e.seq for e in entries if not e.completed), default=None)
        for rank, entries in members.items()
    }
    known = [seq for seq in waiting.values() if seq is not None]
    if not known:
        return None
    seq = max(known)
    ops: dict[str, list[int]] = defaultdict(list)
    label = group
    for rank, entries in members.items():
        for entry in entries:
            if entry.seq == seq:
                ops[f"{entry.op} {entry.sizes}".strip()].append(rank)
                label = entry.group_desc or group
    ordered = sorted(ops.items(), key=lambda item: (-len(item[1]), item[1]))
    return Pending(
        group=group,
        label=label,
        seq=seq,
        ops=tuple((op, tuple(sorted(issued))) for op, issued in ordered),
        lacking=tuple(
            sorted(
                rank
                for rank, entries in members.items()
                if max((e.seq for e in entries), default=0) < seq
            )
        ),
    )
