"""Findings in logs as plain text and as a document: the first error, its consequences, verdicts.

No colour codes. Everything that came from a log has been through `hangtop_core.text.clean.clean`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from hangtop_core.logs.judging.wording import event, subject
from hangtop_core.logs.meaning.known import LAUNCHERS
from hangtop_core.logs.parsing.drawn import look_of
from hangtop_core.report.diagnosis import verdict_lines, wrap
from hangtop_core.text.clean import clean, plural, shorten, shorten_path, size
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.diagnosis import Verdict
    from hangtop_core.logs.judging.judged import Fold, Judged
    from hangtop_core.model.file_log import FileLog, Record

SCHEMA = "hangtop.logs/1"
MIN_WIDTH = 60
SHOWN_LINES = 16
SHOWN_FOLDS = 12
SHOWN_FILES = 8


def logs_text(
    judged: Judged,
    verdicts: Sequence[Verdict],
    files: Sequence[FileLog],
    width: int,
    more: str = "--all reads it",
) -> str:
    """Return the whole report, wrapped to a width; ``more`` says how to read skipped parts."""
    width = max(width, MIN_WIDTH)
    lines = [*wrap(shorten(_head(judged), 2 * width), width)]
    if judged.first is not None:
        lines += _first(judged.first, files, width)
    for number, verdict in enumerate(verdicts, 1):
        lines += ["", *verdict_lines(verdict, number, len(verdicts), width)]
    for title, folds in (
        ("Other errors", judged.others),
        ("Errors after which it went on", judged.survived),
        ("Follows from it", judged.follows),
        ("Also found", judged.notes),
    ):
        if folds:
            lines += ["", title, *_folds(folds, width)]
    if judged.ambiguities:
        lines += ["", "Who printed it cannot be told", *_ambiguities(judged, width)]
    if judged.positions:
        lines += ["", "How far ranks had come, by their watchdogs", *_positions(judged, width)]
    lines += ["", *_files(judged, files, width, more)]
    return "\n".join(lines) + "\n"


def _head(judged: Judged) -> str:
    first = judged.first
    if first is None:
        return "NO ERROR FOUND"
    ranks = names(first.ranks) if first.ranks else subject(first)
    if first.record.part == "survived":
        return f"NO ERROR ENDED A RANK. The first: {subject(first)} {event(first)}"
    word = {"timeout": "waited in vain", "cascade": "only consequences here"}
    text = word.get(first.record.part, "")
    return f"FIRST ERROR: {ranks}{f' ({text})' if text else ''}: {event(first)}"


def _first(first: Fold, files: Sequence[FileLog], width: int) -> Iterator[str]:
    record = first.record
    yield shorten(f"  {when(record)}{_place(record, files)}", width)
    shown = record.lines
    if record.calls and look_of(shown[0]) == "box":
        # A box shows some lines of code for each frame: too many for a report.
        frames = (f"{call.file}:{call.line} in {call.name}" for call in record.calls)
        shown = (*frames, record.text)
    if len(shown) > SHOWN_LINES:
        half = SHOWN_LINES // 2
        left = len(shown) - 2 * half
        shown = (*shown[:half], f"... {left} more lines", *shown[-half:])
    yield from (f"  | {shorten(line, width - 4)}" for line in shown)


def when(record: Record) -> str:
    """Return `2026-11-21 11:17:50`, and `or later` if the time is that of a line before."""
    if record.at is None:
        return "at an unknown time"
    text = f"{datetime.fromtimestamp(record.at):%Y-%m-%d %H:%M:%S}"
    return text if record.exact else f"{text} or later"


def _place(record: Record, files: Sequence[FileLog]) -> str:
    file = files[record.file]
    whole = file.whole and not file.left and file.problem is None
    line = f", line {record.order}" if whole and file.size else ""
    return f", {shorten_path(clean(file.path, 400), 60)}{line}"


def _folds(folds: Sequence[Fold], width: int) -> Iterator[str]:
    for fold in folds[:SHOWN_FOLDS]:
        ranks = names(fold.ranks) if fold.ranks else _nobody(fold)
        again = fold.count > max(len(fold.ranks), 1) and fold.record.code not in LAUNCHERS
        times = f" ({fold.count} times)" if again else ""
        at = f"{datetime.fromtimestamp(fold.record.at):%H:%M:%S}" if fold.record.at else ""
        start = f"  {at:<8}  {shorten(ranks, 16):<16}  "
        text = shorten(f"{event(fold)}{times}", 2 * (width - len(start)))
        yield from wrap(text, width, start, " " * len(start))
    if len(folds) > SHOWN_FOLDS:
        yield f"  {len(folds) - SHOWN_FOLDS} more (--json has all)"


def _ambiguities(judged: Judged, width: int) -> Iterator[str]:
    for ambiguity in judged.ambiguities:
        yield from wrap(ambiguity.text, width, "  ", "  ")
        for step in ambiguity.steps:
            yield from wrap(step, width, "    - ", "      ")


def _nobody(fold: Fold) -> str:
    """Return a label for lines without a rank."""
    if fold.record.code in LAUNCHERS:
        return "launcher"
    local = fold.record.origin.local
    return "-" if local is None else ":".join([*fold.nodes[:1], f"local {local}"])


def _positions(judged: Judged, width: int) -> Iterator[str]:
    rows: dict[tuple[str, int, int], list[int]] = {}
    for position in judged.positions:
        rows.setdefault((position.group, position.enqueued, position.completed), []).append(
            position.rank
        )
    for (group, enqueued, completed), ranks in sorted(rows.items())[:SHOWN_FOLDS]:
        of = "" if group == "?" else f"group {group}: "
        text = f"  {of}begun #{enqueued}, completed #{completed}: {names(ranks)}"
        yield shorten(clean(text, 400), width)


def _files(judged: Judged, files: Sequence[FileLog], width: int, more: str) -> Iterator[str]:
    lines = sum(file.lines for file in files)
    total = sum(file.size for file in files)
    ranks = f" of {names(judged.ranks)}" if judged.ranks else ""
    yield shorten(
        f"Read {plural(lines, 'line')}{ranks} from {plural(len(files), 'file')} ({size(total)}).",
        width,
    )
    for line in (*_gaps(files, more), *_problems(files), *_left_out(files)):
        yield shorten(line, width)
    if judged.earlier:
        yield f"  {plural(judged.earlier, 'line')} of note of earlier attempts left out"


def _gaps(files: Sequence[FileLog], more: str) -> Iterator[str]:
    for file in [file for file in files if file.left][:SHOWN_FILES]:
        path = shorten_path(clean(file.path, 400), 50)
        for start, end in file.left:
            yield f"  not read: {path} from {size(start)} to {size(end)} ({more})"


def _problems(files: Sequence[FileLog]) -> Iterator[str]:
    for file in [file for file in files if file.problem][:SHOWN_FILES]:
        path = shorten_path(clean(file.path, 400), 60)
        what = "not read to its end" if file.lines else "not read"
        yield f"  {what}: {path}: {clean(file.problem or '', 200)}"


def _left_out(files: Sequence[FileLog]) -> Iterator[str]:
    for file in [file for file in files if file.left_out][:SHOWN_FILES]:
        path = shorten_path(clean(file.path, 400), 50)
        yield f"  not told apart: {plural(file.left_out, 'more line')} of note in {path}"


def document(
    judged: Judged, verdicts: Sequence[Verdict], files: Sequence[FileLog]
) -> dict[str, Any]:
    """Return the report as builtins, schema `hangtop.logs/1`."""
    return {
        "schema": SCHEMA,
        "ranks": list(judged.ranks),
        "first": _fold_document(judged.first, files) if judged.first is not None else None,
        "verdicts": verdicts,
        "others": [_fold_document(fold, files) for fold in judged.others],
        "survived": [_fold_document(fold, files) for fold in judged.survived],
        "follows": [_fold_document(fold, files) for fold in judged.follows],
        "notes": [_fold_document(fold, files) for fold in judged.notes],
        "positions": judged.positions,
        "ambiguities": judged.ambiguities,
        "files": [
            {
                "path": file.path,
                "rank": file.place.rank,
                "size": file.size,
                "lines": file.lines,
                "not_read": [list(span) for span in file.left],
                "problem": file.problem,
            }
            for file in files
        ],
    }


def _fold_document(fold: Fold, files: Sequence[FileLog]) -> dict[str, Any]:
    record = fold.record
    return {
        "code": record.code,
        "part": record.part,
        "ranks": list(fold.ranks),
        "nodes": list(fold.nodes),
        "at": record.at,
        "exact": record.exact,
        "text": record.text,
        "means": record.means,
        "cause": record.cause,
        "where": record.where.text if record.where is not None else None,
        "fields": dict(record.fields),
        "lines": list(record.lines),
        "count": fold.count,
        "file": files[record.file].path,
        "line": record.order,
    }
