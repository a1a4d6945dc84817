"""The first error, and the errors that follow from it. Pure: from the records of all files."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from hangtop_core.logs.judging.ended import LATER, weigh
from hangtop_core.logs.judging.finished import not_reported
from hangtop_core.logs.judging.judged import Fold, Judged, Position
from hangtop_core.logs.meaning.aborts import demoted
from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.parsing.ambiguous import ambiguities
from hangtop_core.logs.parsing.owners import settled
from hangtop_core.logs.reading.copies import is_own
from hangtop_core.model.file_log import MAX_DIGITS, FileLog, Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hangtop_core.logs.parsing.owners import Owners
    from hangtop_core.model.file_log import Part

HEADING = 20
"""Maximum number of lines, also of other ranks, between a logger's message and its traceback."""
NEAR = 5
"""Maximum number of such lines where no logger is known to have printed the traceback."""
POINT_TO_POINT = frozenset({"SEND", "RECV", "RECVANYSOURCE"})
"""Operations of two ranks, which every pair counts separately."""
_WEIGHT = {"root": 0, "timeout": 1, "cascade": 2, "exit": 3}


def judge(
    files: Sequence[FileLog],
    pid_ranks: Mapping[tuple[str, str], int] | None = None,
    alive: Collection[int | None] = (),
    finished: Collection[int] = (),
) -> Judged:
    """Sort the records of all files by cause and consequence.

    Args:
        files: the parsed files.
        known: ranks by node and process id, where processes are observed.
        alive: ranks with a live process, which no error has ended; None if all ranks are alive.
        finished: ranks that exited without an error.
    """
    owners, records = settled(files, pid_ranks)
    current, earlier = _of_last_attempt(_joined(records), files)
    locals_of = {n: file.place.local for n, file in enumerate(files) if is_own(file.place)}
    folds = _fold(demoted(weigh(current, owners, files, alive)), locals_of)
    first = _first_of(folds)
    remaining = [fold for fold in folds if fold is not first]
    ranks = tuple(sorted(owners.ranks() | {r.rank for r in current if r.rank is not None}))
    return Judged(
        first=first,
        others=tuple(f for f in remaining if f.record.part == "root" and not _same(first, f)),
        survived=_of_parts(remaining, "survived"),
        follows=tuple(sorted((f for f in remaining if _follows(first, f)), key=_by_launcher)),
        notes=_of_parts(remaining, "info", "error"),
        positions=_positions(current),
        ranks=ranks,
        last=owners.last(),
        unheard=_unheard(files, owners, current, ranks),
        ambiguities=ambiguities(current, owners.first.shared, files),
        finished=not_reported(files, owners, current) | frozenset(finished),
        earlier=earlier,
    )


def _of_last_attempt(
    records: Sequence[Record], files: Sequence[FileLog]
) -> tuple[list[Record], int]:
    """Return the records of each node's last attempt, and how many are of earlier ones."""
    newest: dict[str | None, int] = {}
    for file in files:
        node, attempt = file.place.node, file.place.attempt
        newest[node] = max(newest.get(node, 0), attempt or 0)
    headings = _headings(records)
    current, earlier = [], 0
    for record in records:
        if (record.file, record.order) in headings:
            continue
        place = files[record.file].place
        if place.attempt is not None and place.attempt < newest[place.node]:
            earlier += 1
        else:
            current.append(record)
    return current, earlier


def _first_of(folds: Sequence[Fold]) -> Fold | None:
    """Return the first error; without any, the first survived or unclear one."""
    first = _first(_of_parts(folds, "root", "timeout", "cascade", "exit"))
    if first is not None:
        return first
    return next(iter((*_of_parts(folds, "survived"), *_of_parts(folds, "error"))), None)


def _of_parts(folds: Sequence[Fold], *parts: Part) -> tuple[Fold, ...]:
    return tuple(fold for fold in folds if fold.record.part in parts)


def _unheard(
    files: Sequence[FileLog], owners: Owners, records: Sequence[Record], ranks: Sequence[int]
) -> tuple[int, ...]:
    """Return the missing ranks among those that print to one file.

    A file of a single rank may just be elsewhere. Ranks above the highest printed one are unknown,
    unless NCCL prints the world size or another node has more. Below the lowest, only rank 0 counts
    as missing: else it is the log of one of several nodes.
    """
    printed: dict[int, set[int | None]] = defaultdict(set)
    for number, file in enumerate(files):
        printed[number] |= {owners.rank(number, stream.origin) for stream in file.streams}
    for record in records:
        printed[record.file].add(record.rank)
    listed = {*ranks, *(file.place.rank for file in files if file.place.rank is not None)}
    low, top = (
        min(listed, default=0),
        max((*ranks, _world(records) - 1, owners.first.top), default=0),
    )
    low = low if low > 1 else 0
    together = any(len(ranks_of_file - {None}) > 1 for ranks_of_file in printed.values())
    if not together or top - low > 2 * len(listed):
        return ()
    return tuple(rank for rank in range(low, top + 1) if rank not in listed)


def _world(records: Iterable[Record]) -> int:
    """Return the size of the biggest communicator by NCCL's lines."""
    sizes = (r.fields["nranks"] for r in records if r.code in ("N8", "N8C"))
    return max((int(size[:MAX_DIGITS]) for size in sizes), default=0)


def _joined(records: Iterable[Record]) -> list[Record]:
    """Return records with chained tracebacks joined, where a long message lies between."""
    joined: list[Record] = []
    last: dict[object, int] = {}
    for record in records:
        at = last.get((record.file, record.origin)) if record.code == "traceback" else None
        if record.how == "chained" and at is not None:
            old = joined[at]
            kept = old if old.means and not record.means else record
            joined[at] = msgspec.structs.replace(
                record,
                part=kept.part,
                means=kept.means,
                cause=kept.cause,
                order=old.order,
                at=old.at,
                exact=old.exact,
                fields={**kept.fields, "first": old.fields.get("first", old.text)},
                calls=(*old.calls, *record.calls),
                how=old.how,
            )
            continue
        if record.code == "traceback":
            last[record.file, record.origin] = len(joined)
        joined.append(record)
    return joined


def _headings(records: Sequence[Record]) -> set[tuple[int, int]]:
    """Return file and line of log messages that only announce the traceback that follows.

    A logger's message may have several lines, and the exception may be raised again after it.
    """
    tracebacks: dict[tuple[int, int | None], list[Record]] = defaultdict(list)
    for record in records:
        if record.code == "traceback":
            tracebacks[record.file, record.rank].append(record)
    return {
        (heading.file, heading.order)
        for heading in records
        if heading.code == "E"
        for traceback in tracebacks.get((heading.file, heading.rank), ())
        if heading.count <= traceback.count
        and 0 < traceback.order - heading.order <= (HEADING if traceback.how == "logged" else NEAR)
    }


def _key(record: Record) -> tuple[float, int, int]:
    return (record.at if record.at is not None else float("inf"), record.file, record.order)


def _fold(records: Iterable[Record], locals_of: Mapping[int, int | None]) -> list[Fold]:
    groups: dict[object, list[Record]] = defaultdict(list)
    for record in records:
        about = record.rank if record.code == "T16" and record.part in ("root", "exit") else None
        groups[record.part, record.shape, about].append(record)
    folds = []
    for group in groups.values():
        members = sorted(_once(group, locals_of), key=_key)
        ranks = sorted({record.rank for record in members if record.rank is not None})
        nodes = sorted({record.node for record in members if record.node is not None})
        count = sum(record.count for record in members)
        folds.append(Fold(members[0], tuple(ranks), tuple(nodes), count, tuple(members)))
    folds.sort(key=lambda fold: _key(fold.record))
    return folds


def _once(records: Sequence[Record], locals_of: Mapping[int, int | None]) -> Iterator[Record]:
    """Yield records without the copies that a launcher made from a rank's file, as with --tee.

    Args:
        records: records of one event.
        locals_of: local ranks by the numbers of files of a single rank.
    """
    sources: dict[object, int] = {}
    copied, counted = _counts(records, locals_of)
    for record in records:
        local = locals_of.get(record.file)
        beside = copied if local is not None else counted
        key = (record.origin.local if local is None else local, record.lines)
        if not record.lines:
            yield record
        elif record.rank is not None:
            if sources.setdefault((record.rank, record.lines), record.file) == record.file:
                yield record
        elif key[0] is not None and beside[key] >= record.count:
            beside[key] -= record.count
        else:
            yield record


def _counts(
    records: Sequence[Record], locals_of: Mapping[int, int | None]
) -> tuple[Counter[object], Counter[object]]:
    """Return how often launchers printed the lines of a local rank, and files of known ranks."""
    copied: Counter[object] = Counter()
    counted: Counter[object] = Counter()
    for record in records:
        local = locals_of.get(record.file)
        if local is not None and record.rank is not None:
            counted[local, record.lines] += record.count
        elif record.file not in locals_of and record.origin.local is not None:
            copied[record.origin.local, record.lines] += record.count
    return copied, counted


def _first(errors: Sequence[Fold]) -> Fold | None:
    """Return the error that explains the others.

    A root error comes before its consequences, unless a rank had by its own clock timed out well
    before.
    """
    roots = [fold for fold in errors if fold.record.part == "root"]
    if not roots:
        return min(errors, key=lambda f: (_WEIGHT[f.record.part], _key(f.record)), default=None)
    root = min(roots, key=lambda fold: (fold.record.code in LAUNCHERS, _key(fold.record)))
    earliest = min(roots, key=lambda fold: _key(fold.record))
    if earliest is not root and (root.record.at or 0) - (earliest.record.at or 0) > LATER:
        root = earliest
    waits = [f for f in errors if f.record.part == "timeout" and f.record.exact]
    for wait in waits:
        if root.record.at is not None and (wait.record.at or 0) < root.record.at - LATER:
            return wait
    return root


def _follows(first: Fold | None, fold: Fold) -> bool:
    if fold.record.part == "root":
        return _same(first, fold)
    return fold.record.part in ("timeout", "cascade", "exit")


def _by_launcher(fold: Fold) -> bool:
    """Sort key that puts launchers last: the ranks' own messages say more."""
    return fold.record.code in LAUNCHERS or not fold.ranks


def _same(first: Fold | None, fold: Fold) -> bool:
    """Whether another error is the same event, as when a launcher reports the exit of its rank."""
    if first is None or first is fold:
        return False
    about = set(first.ranks) & set(fold.ranks)
    return bool(about) and "T16" in (first.record.code, fold.record.code)


def _is_collective_timeout(record: Record) -> bool:
    return record.code == "T1" and record.fields.get("op") not in POINT_TO_POINT


def _positions(records: Sequence[Record]) -> tuple[Position, ...]:
    """Return the newest position of every rank in every group, as a flight recorder would show."""
    ops = {
        (record.rank, record.fields.get("seq")): record.fields.get("op", "")
        for record in records
        if record.code == "T1"
    }
    positions: dict[tuple[int, str], Position] = {}
    for record in records:
        fields = record.fields
        if record.rank is None or "enqueued" not in fields:
            continue
        group = fields.get("desc") or fields.get("guid") or fields.get("pg") or "?"
        op = ops.get((record.rank, fields.get("seq")), "")
        positions[record.rank, group] = Position(
            record.rank, group, int(fields["enqueued"]), int(fields["completed"]), op, record.at
        )
    placed = {rank for rank, _ in positions}
    for record in records:
        # Without a recorder's state (torch before 2.5) only the number of the wait is known.
        seq = record.fields.get("seq")
        if _is_collective_timeout(record) and record.rank is not None and seq is not None:
            if record.rank in placed:
                continue
            placed.add(record.rank)
            positions[record.rank, "?"] = Position(
                record.rank, "?", int(seq), int(seq) - 1, record.fields.get("op", ""), record.at
            )
    return tuple(sorted(positions.values(), key=lambda position: (position.group, position.rank)))
