"""Ranks whose watchdogs timed out in different operations with one sequence number. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.logs.judging.judge import POINT_TO_POINT
from hangtop_core.logs.judging.wording import verdict
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judging.judged import Judged
    from hangtop_core.model.file_log import Record

UNNAMED = "?"
"""The group of watchdogs before torch 2.2, which name none: there may be several groups."""


SAME_SIZE = frozenset(
    {"ALLREDUCE", "REDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLTOALL_BASE"}
)
"""Operations that take equally many elements from every rank, unless sizes are given separately."""

Key = tuple[str, str]
"""A group, and the sequence number of an operation."""
Waits = dict[str, list[int]]
"""Ranks by the operation that they waited in."""


def of_mismatch(judged: Judged) -> list[Verdict]:
    """Return verdicts where ranks waited in different operations or sizes under one number.

    The smaller part is the culprit, unless it is half of the ranks.
    """
    ops: dict[Key, Waits] = defaultdict(lambda: defaultdict(list))
    sizes: dict[Key, Waits] = defaultdict(lambda: defaultdict(list))
    for group, rank, fields in _waits(judged):
        key, op = (group, fields["seq"]), f"{fields['op']} #{fields['seq']}"
        ops[key][op].append(rank)
        if fields["op"] in SAME_SIZE and "numel" in fields:
            sizes[key][f"{op} of {fields['numel']} elements"].append(rank)
    verdicts = [_of_ops(group, waits) for (group, _), waits in ops.items() if len(waits) > 1]
    return verdicts or [
        _of_sizes(group, waits) for (group, _), waits in sizes.items() if _differ(group, waits)
    ]


def _waits(judged: Judged) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    """Yield the group, the rank, and the fields of the operation that it waited in."""
    records = [record for fold in judged.folds() for record in fold.members]
    groups = {
        (r.rank, r.fields.get("seq")): r.fields.get("desc") or r.fields.get("pg")
        for r in records
        if r.code == "T2"
    }
    for rank, fields in _first_of_each(records).items():
        yield groups.get((rank, fields["seq"])) or UNNAMED, rank, fields


def _first_of_each(records: Iterable[Record]) -> dict[int, Mapping[str, str]]:
    """Return the first wait of each rank in an operation of all ranks of a group."""
    waits: dict[int, Mapping[str, str]] = {}
    for record in records:
        is_wait = record.code == "T1" and record.fields.keys() >= {"seq", "op"}
        if is_wait and record.rank is not None and record.fields["op"] not in POINT_TO_POINT:
            waits.setdefault(record.rank, record.fields)
    return waits


def _differ(group: str, sizes: Waits) -> bool:
    """Whether sizes differ within one group."""
    return len(sizes) > 1 if group != UNNAMED else len(sizes) == 2 and bool(_fewest(sizes))


def _of_ops(group: str, ops: Waits) -> Verdict:
    sure = 0.5 if group == UNNAMED else 0.75
    what = "ranks waited in different operations"
    return _verdict("mismatched-collective", sure, group, what, ops)


def _of_sizes(group: str, sizes: Waits) -> Verdict:
    sure = 0.45 if group == UNNAMED else 0.7
    what = "ranks gave different numbers of elements"
    return _verdict("mismatched-size", sure, group, what, sizes)


def _fewest(waits: Waits) -> list[int]:
    """Return the ranks of the rarest wait, none if these are half of all."""
    fewest = min(waits.values(), key=len)
    return sorted(fewest) if len(fewest) * 2 < sum(map(len, waits.values())) else []


def _verdict(cause: str, sure: float, group: str, what: str, waits: Waits) -> Verdict:
    ordered = sorted(waits.items(), key=lambda item: -len(item[1]))
    parts = [f"{names(sorted(ranks))} in {op}" for op, ranks in ordered]
    text = f"{what}{f' of group {group}' if group != UNNAMED else ''}: {', '.join(parts)}"
    if group == UNNAMED:
        text += ". Or these are of different groups, which such a watchdog does not name"
    facts = [Evidence("log", None, part) for part in parts]
    every = [rank for ranks in waits.values() for rank in ranks]
    return verdict(cause, sure, _fewest(waits), every, text, facts)
