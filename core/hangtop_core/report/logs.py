"""What logs say, as plain text and as a document: the first error, what follows from it, findings.

No colour codes. Everything that came from a log has been through `hangtop_core.text.clean.clean`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from hangtop_core.logs.judging.telling import event, subject
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
    """The whole report, wrapped to a width in characters; ``more``: how to read what was not."""
    width = max(width, MIN_WIDTH)
    lines = [*wrap(shorten(_head(judged), 2 * width), width)]
    if judged.first is not None:
        lines += _first(judged.first, files, width)
    for number, verdict in enumerate(verdicts, 1):
        lines += ["", *verdict_lines(verdict, number, len(verdicts), width)]
    for title, some in (
        ("Other errors", judged.others),
        ("Errors after which it went on", judged.survived),
        ("Follows from it", judged.follows),
        ("Also found", judged.notes),
    ):
        if some:
            lines += ["", title, *_folds(some, width)]
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
    whose = names(first.ranks) if first.ranks else subject(first)
    if first.record.part == "survived":
        return f"NO ERROR ENDED A RANK. The first: {subject(first)} {event(first)}"
    word = {"timeout": "waited in vain", "cascade": "only consequences here"}
    text = word.get(first.record.part, "")
    return f"FIRST ERROR: {whose}{f' ({text})' if text else ''}: {event(first)}"


def _first(first: Fold, files: Sequence[FileLog], width: int) -> Iterator[str]:
    record = first.record
    yield shorten(f"  {when(record)}{_place(record, files)}", width)
    shown = record.lines
    if record.calls and look_of(shown[0]) == "box":
        # A box shows some lines of code for each frame: more than says where it was.
        frames = (f"{call.file}:{call.line} in {call.name}" for call in record.calls)
        shown = (*frames, record.text)
    if len(shown) > SHOWN_LINES:
        half = SHOWN_LINES // 2
        left = len(shown) - 2 * half
        shown = (*shown[:half], f"... {left} more lines", *shown[-half:])
    yield from (f"  | {shorten(line, width - 4)}" for line in shown)


def when(record: Record) -> str:
    """`2026-11-21 11:17:50`, with what is known of it where that is not its own time."""
    if record.at is None:
        return "at an unknown time"
    text = f"{datetime.fromtimestamp(record.at):%Y-%m-%d %H:%M:%S}"
    return text if record.exact else f"{text} or later"


def _place(record: Record, files: Sequence[FileLog]) -> str:
    one = files[record.file]
    whole = one.whole and not one.left and one.problem is None
    line = f", line {record.order}" if whole and one.size else ""
    return f", {shorten_path(clean(one.path, 400), 60)}{line}"


def _folds(some: Sequence[Fold], width: int) -> Iterator[str]:
    for one in some[:SHOWN_FOLDS]:
        whose = names(one.ranks) if one.ranks else _nobody(one)
        again = one.count > max(len(one.ranks), 1) and one.record.code not in LAUNCHERS
        times = f" ({one.count} times)" if again else ""
        at = f"{datetime.fromtimestamp(one.record.at):%H:%M:%S}" if one.record.at else ""
        start = f"  {at:<8}  {shorten(whose, 16):<16}  "
        text = shorten(f"{event(one)}{times}", 2 * (width - len(start)))
        yield from wrap(text, width, start, " " * len(start))
    if len(some) > SHOWN_FOLDS:
        yield f"  {len(some) - SHOWN_FOLDS} more (--json has all)"


def _ambiguities(judged: Judged, width: int) -> Iterator[str]:
    for one in judged.ambiguities:
        yield from wrap(one.text, width, "  ", "  ")
        for step in one.steps:
            yield from wrap(step, width, "    - ", "      ")


def _nobody(one: Fold) -> str:
    """Who printed what tells no rank."""
    if one.record.code in LAUNCHERS:
        return "launcher"
    local = one.record.origin.local
    return "-" if local is None else ":".join([*one.nodes[:1], f"local {local}"])


def _positions(judged: Judged, width: int) -> Iterator[str]:
    rows: dict[tuple[str, int, int], list[int]] = {}
    for one in judged.positions:
        rows.setdefault((one.group, one.enqueued, one.completed), []).append(one.rank)
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
    """The report as builtins, schema `hangtop.logs/1`."""
    return {
        "schema": SCHEMA,
        "ranks": list(judged.ranks),
        "first": _fold_document(judged.first, files) if judged.first is not None else None,
        "verdicts": verdicts,
        "others": [_fold_document(one, files) for one in judged.others],
        "survived": [_fold_document(one, files) for one in judged.survived],
        "follows": [_fold_document(one, files) for one in judged.follows],
        "notes": [_fold_document(one, files) for one in judged.notes],
        "positions": judged.positions,
        "ambiguities": judged.ambiguities,
        "files": [
            {
                "path": one.path,
                "rank": one.place.rank,
                "size": one.size,
                "lines": one.lines,
                "not_read": [list(span) for span in one.left],
                "problem": one.problem,
            }
            for one in files
        ],
    }


def _fold_document(one: Fold, files: Sequence[FileLog]) -> dict[str, Any]:
    record = one.record
    return {
        "code": record.code,
        "part": record.part,
        "ranks": list(one.ranks),
        "nodes": list(one.nodes),
        "at": record.at,
        "exact": record.exact,
        "text": record.text,
        "means": record.means,
        "cause": record.cause,
        "where": record.where.text if record.where is not None else None,
        "fields": dict(record.fields),
        "lines": list(record.lines),
        "count": one.count,
        "file": files[record.file].path,
        "line": record.order,
    }
