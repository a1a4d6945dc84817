"""Which error was first, and which only follow from it: pure, from the records of all files."""

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
from hangtop_core.logs.parsing.whose import settled
from hangtop_core.logs.reading.copies import is_own
from hangtop_core.model.file_log import MAX_DIGITS, FileLog, Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hangtop_core.logs.parsing.whose import Whose
    from hangtop_core.model.file_log import Part

HEADING = 20
"""Lines, of other ranks, too, that may be between what a logger says and the traceback after it."""
NEAR = 5
"""The same where the lines before a traceback do not tell that a logger has printed it."""
POINT_TO_POINT = frozenset({"SEND", "RECV", "RECVANYSOURCE"})
"""Operations of two ranks, which every pair counts for itself."""
_WEIGHT = {"root": 0, "timeout": 1, "cascade": 2, "exit": 3}


def judge(
    files: Sequence[FileLog],
    known: Mapping[tuple[str, str], int] | None = None,
    alive: Collection[int | None] = (),
    finished: Collection[int] = (),
) -> Judged:
    """Put the records of all files in order of cause and consequence.

    Args:
        files: what was read of each.
        known: ranks by node and process id, where processes are observed.
        alive: ranks whose processes are there, which no error has ended; None where all are.
        finished: ranks known to have left without an error.
    """
    whose, records = settled(files, known)
    current, earlier = _of_last_attempt(_joined(records), files)
    locals_of = {n: one.place.local for n, one in enumerate(files) if is_own(one.place)}
    folds = _fold(demoted(weigh(current, whose, files, alive)), locals_of)
    first = _first_of(folds)
    rest = [fold for fold in folds if fold is not first]
    ranks = tuple(sorted(whose.ranks() | {r.rank for r in current if r.rank is not None}))
    return Judged(
        first=first,
        others=tuple(f for f in rest if f.record.part == "root" and not _same(first, f)),
        survived=_of_parts(rest, "survived"),
        follows=tuple(sorted((f for f in rest if _follows(first, f)), key=_by_launcher)),
        notes=_of_parts(rest, "info", "error"),
        positions=_positions(current),
        ranks=ranks,
        last=whose.last(),
        unheard=_unheard(files, whose, current, ranks),
        ambiguities=ambiguities(current, whose.first.shared, files),
        finished=not_reported(files, whose, current) | frozenset(finished),
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
    """Return the first error; where none is, the first that ranks survived or that is unclear."""
    first = _first(_of_parts(folds, "root", "timeout", "cascade", "exit"))
    if first is not None:
        return first
    return next(iter((*_of_parts(folds, "survived"), *_of_parts(folds, "error"))), None)


def _of_parts(folds: Sequence[Fold], *parts: Part) -> tuple[Fold, ...]:
    return tuple(fold for fold in folds if fold.record.part in parts)


def _unheard(
    files: Sequence[FileLog], whose: Whose, records: Sequence[Record], ranks: Sequence[int]
) -> tuple[int, ...]:
    """Ranks that lack among those that print to one file; a file of one rank may just not be here.

    Of a rank above the highest that was printed nothing is known, unless NCCL tells how many ranks
    there are, or another node has more. Below the lowest, only rank 0 is taken to lack: else it is
    the log of one of several nodes.
    """
    here: dict[int, set[int | None]] = defaultdict(set)
    for number, one in enumerate(files):
        here[number] |= {whose.rank(number, stream.origin) for stream in one.streams}
    for record in records:
        here[record.file].add(record.rank)
    known = {*ranks, *(one.place.rank for one in files if one.place.rank is not None)}
    low, top = min(known, default=0), max((*ranks, _world(records) - 1, whose.first.top), default=0)
    low = low if low > 1 else 0
    together = any(len(some - {None}) > 1 for some in here.values())
    if not together or top - low > 2 * len(known):
        return ()
    return tuple(rank for rank in range(low, top + 1) if rank not in known)


def _world(records: Iterable[Record]) -> int:
    """How many ranks the biggest communicator has, as NCCL prints."""
    sizes = (r.fields["nranks"] for r in records if r.code in ("N8", "N8C"))
    return max((int(size[:MAX_DIGITS]) for size in sizes), default=0)


def _joined(records: Iterable[Record]) -> list[Record]:
    """Tracebacks with those that follow from them, where a message of many lines is between."""
    found: list[Record] = []
    last: dict[object, int] = {}
    for record in records:
        at = last.get((record.file, record.origin)) if record.code == "traceback" else None
        if record.how == "chained" and at is not None:
            old = found[at]
            known = old if old.means and not record.means else record
            found[at] = msgspec.structs.replace(
                record,
                part=known.part,
                means=known.means,
                cause=known.cause,
                order=old.order,
                at=old.at,
                exact=old.exact,
                fields={**known.fields, "first": old.fields.get("first", old.text)},
                calls=(*old.calls, *record.calls),
                how=old.how,
            )
            continue
        if record.code == "traceback":
            last[record.file, record.origin] = len(found)
        found.append(record)
    return found


def _headings(records: Sequence[Record]) -> set[tuple[int, int]]:
    """File and line of log lines that only say that there was the error whose traceback follows.

    A logger's message may have several lines, and the exception may be raised again after it.
    """
    tracebacks: dict[tuple[int, int | None], list[Record]] = defaultdict(list)
    for record in records:
        if record.code == "traceback":
            tracebacks[record.file, record.rank].append(record)
    return {
        (one.file, one.order)
        for one in records
        if one.code == "E"
        for other in tracebacks.get((one.file, one.rank), ())
        if one.count <= other.count
        and 0 < other.order - one.order <= (HEADING if other.how == "logged" else NEAR)
    }


def _key(record: Record) -> tuple[float, int, int]:
    return (record.at if record.at is not None else float("inf"), record.file, record.order)


def _fold(records: Iterable[Record], locals_of: Mapping[int, int | None]) -> list[Fold]:
    groups: dict[object, list[Record]] = defaultdict(list)
    for record in records:
        about = record.rank if record.code == "T16" and record.part in ("root", "exit") else None
        groups[record.part, record.shape, about].append(record)
    folds = []
    for some in groups.values():
        members = sorted(_once(some, locals_of), key=_key)
        ranks = sorted({record.rank for record in members if record.rank is not None})
        nodes = sorted({record.node for record in members if record.node is not None})
        count = sum(record.count for record in members)
        folds.append(Fold(members[0], tuple(ranks), tuple(nodes), count, tuple(members)))
    folds.sort(key=lambda fold: _key(fold.record))
    return folds


def _once(records: Sequence[Record], locals_of: Mapping[int, int | None]) -> Iterator[Record]:
    """Records without those that a launcher has copied from the file of a rank, as with --tee.

    Args:
        records: those of one thing that happened.
        locals_of: local ranks by the numbers of files that are one rank's.
    """
    seen: dict[object, int] = {}
    copied, known = _counts(records, locals_of)
    for record in records:
        local = locals_of.get(record.file)
        beside = copied if local is not None else known
        key = (record.origin.local if local is None else local, record.lines)
        if not record.lines:
            yield record
        elif record.rank is not None:
            if seen.setdefault((record.rank, record.lines), record.file) == record.file:
                yield record
        elif key[0] is not None and beside[key] >= record.count:
            beside[key] -= record.count
        else:
            yield record


def _counts(
    records: Sequence[Record], locals_of: Mapping[int, int | None]
) -> tuple[Counter[object], Counter[object]]:
    """How often launchers have printed what a local rank has, and files of known ranks."""
    copied: Counter[object] = Counter()
    known: Counter[object] = Counter()
    for record in records:
        local = locals_of.get(record.file)
        if local is not None and record.rank is not None:
            known[local, record.lines] += record.count
        elif record.file not in locals_of and record.origin.local is not None:
            copied[record.origin.local, record.lines] += record.count
    return copied, known


def _first(errors: Sequence[Fold]) -> Fold | None:
    """The error that explains the others.

    One of its own comes before all that follow from others, unless somebody had by their own
    clock given up waiting well before.
    """
    roots = [fold for fold in errors if fold.record.part == "root"]
    if not roots:
        return min(errors, key=lambda f: (_WEIGHT[f.record.part], _key(f.record)), default=None)
    root = min(roots, key=lambda fold: (fold.record.code in LAUNCHERS, _key(fold.record)))
    told = min(roots, key=lambda fold: _key(fold.record))
    if told is not root and (root.record.at or 0) - (told.record.at or 0) > LATER:
        root = told
    waits = [f for f in errors if f.record.part == "timeout" and f.record.exact]
    for wait in waits:
        if root.record.at is not None and (wait.record.at or 0) < root.record.at - LATER:
            return wait
    return root


def _follows(first: Fold | None, other: Fold) -> bool:
    if other.record.part == "root":
        return _same(first, other)
    return other.record.part in ("timeout", "cascade", "exit")


def _by_launcher(one: Fold) -> bool:
    """Launchers last: what ranks say themselves tells more."""
    return one.record.code in LAUNCHERS or not one.ranks


def _same(first: Fold | None, other: Fold) -> bool:
    """Whether another error is the same event told once more: a launcher says how its rank left."""
    if first is None or first is other:
        return False
    about = set(first.ranks) & set(other.ranks)
    return bool(about) and "T16" in (first.record.code, other.record.code)


def _is_collective_timeout(record: Record) -> bool:
    return record.code == "T1" and record.fields.get("op") not in POINT_TO_POINT


def _positions(records: Sequence[Record]) -> tuple[Position, ...]:
    """The newest position of every rank in every group: what a flight recorder would tell."""
    ops = {
        (record.rank, record.fields.get("seq")): record.fields.get("op", "")
        for record in records
        if record.code == "T1"
    }
    found: dict[tuple[int, str], Position] = {}
    for record in records:
        fields = record.fields
        if record.rank is None or "enqueued" not in fields:
            continue
        group = fields.get("desc") or fields.get("guid") or fields.get("pg") or "?"
        op = ops.get((record.rank, fields.get("seq")), "")
        found[record.rank, group] = Position(
            record.rank, group, int(fields["enqueued"]), int(fields["completed"]), op, record.at
        )
    known = {rank for rank, _ in found}
    for record in records:
        # Without a recorder's state (torch before 2.5) the number of what it waited for is all.
        seq = record.fields.get("seq")
        if _is_collective_timeout(record) and record.rank is not None and seq is not None:
            if record.rank in known:
                continue
            known.add(record.rank)
            found[record.rank, "?"] = Position(
                record.rank, "?", int(seq), int(seq) - 1, record.fields.get("op", ""), record.at
            )
    return tuple(sorted(found.values(), key=lambda one: (one.group, one.rank)))
