"""Ranks whose watchdogs gave up waiting in different operations under one number. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hangtop_core.diagnosis import Evidence
from hangtop_core.logs.telling import verdict
from hangtop_core.rankset import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judge import Judged
    from hangtop_core.logs.record import Record

UNNAMED = "?"
"""The group of watchdogs before torch 2.2, which name none: there may be several."""


def of_mismatch(judged: Judged) -> list[Verdict]:
    """Return the verdicts where ranks waited in different operations of a group.

    The fewest of them are to blame, unless these are half.
    """
    return [_verdict(*key, ops) for key, ops in _waits(judged).items() if len(ops) > 1]


def _waits(judged: Judged) -> dict[tuple[str, str], dict[str, list[int]]]:
    """Return who waited in which operation, by group and number."""
    records = [record for fold in judged.folds() for record in fold.members]
    groups = {
        (r.rank, r.fields.get("seq")): r.fields.get("desc") or r.fields.get("pg")
        for r in records
        if r.code == "T2"
    }
    waits: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, fields in _first_of_each(records).items():
        group = groups.get((rank, fields["seq"])) or UNNAMED
        waits[group, fields["seq"]][fields["op"]].append(rank)
    return waits


def _first_of_each(records: Iterable[Record]) -> dict[int, Mapping[str, str]]:
    """Return what each rank's watchdog has said first of an operation."""
    waits: dict[int, Mapping[str, str]] = {}
    for record in records:
        is_wait = record.code == "T1" and record.fields.keys() >= {"seq", "op"}
        if is_wait and record.rank is not None:
            waits.setdefault(record.rank, record.fields)
    return waits


def _verdict(group: str, seq: str, ops: dict[str, list[int]]) -> Verdict:
    ordered = sorted(ops.items(), key=lambda item: len(item[1]))
    every = [rank for ranks in ops.values() for rank in ranks]
    guilty = sorted(ordered[0][1]) if len(ordered[0][1]) * 2 < len(every) else []
    of = f" of group {group}" if group != UNNAMED else ""
    parts = [f"{names(sorted(ranks))} in {op} #{seq}" for op, ranks in reversed(ordered)]
    text = f"ranks waited in different operations{of}: {', '.join(parts)}"
    if group == UNNAMED:
        text += ". Or these are of different groups, which such a watchdog does not name"
    facts = [Evidence("log", None, part) for part in parts]
    sure = 0.75 if group != UNNAMED else 0.5
    return verdict("mismatched-collective", sure, guilty, every, text, facts)
