"""The content of the Logs screen: streams, the first error and consequences, one rank's lines."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hangtop.source.lookup import rank_key
from hangtop.terminal.columns import Column
from hangtop.terminal.items import Item
from hangtop.terminal.patience import within
from hangtop.terminal.spans import EMPTY, Line, cells, line, plain
from hangtop.views.common import ago, clock
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.judging.wording import event
from hangtop_core.logs.meaning.lacking import lacking
from hangtop_core.logs.parsing.record import lines_at
from hangtop_core.logs.parsing.stamp import without_time
from hangtop_core.logs.reading.lines import Choice, Kept
from hangtop_core.logs.reading.of_jobs import alive_of, lines_of, of_job, outputs_of
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import plural, shorten, shorten_path, size
from hangtop_core.text.rank_sets import names, rank_label, rank_name

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from hangtop_core.logs.judging.judged import Fold, Judged
    from hangtop_core.logs.parsing.ambiguous import Ambiguity
    from hangtop_core.model.file_log import FileLog, Record
    from hangtop_core.model.output import Output
    from hangtop_core.model.snapshot import Job, Rank, Snapshot

ROLES = {"root": "bad", "timeout": "warn", "survived": "warn", "cascade": "dim", "exit": "dim",
         "error": "warn"}  # fmt: skip
MARKS = {"root": "✖ error", "timeout": "▲ waited", "survived": "▲ went on", "cascade": "· follows",
         "exit": "· left", "error": "▲ logged"}  # fmt: skip
FIRST = "▶ first"
PATH_CELLS = 60
"""Longest path in cells; the end, with the file's name, is kept."""
_QUIET = re.compile(r"\[?(?:INFO|DEBUG)\b[\]\s:|-]+(?=\S)")
SAME_CLOCK_S = 60.0
"""Largest difference in seconds between the time in a file's last line and the file's own time for
both to be the same clock.
"""
SEARCHED = 2000
"""Longest part of a line, in characters, in which a pattern is searched."""
PATTERN_S = 0.3
"""Processor seconds that matching a pattern may take over all lines."""
_ORDER = ("root", "timeout", "survived", "error", "cascade", "exit")


@dataclass(frozen=True)
class Stream:
    """One row: a rank, or a file with the lines that belong to no known rank."""

    key: str
    rank: int | None
    node: str
    path: str
    part: str
    """The worst that it has printed; empty for nothing."""
    first: bool
    """Whether it printed the first error of the job."""
    size: int
    changed: float | None
    last: str
    unread: str = ""
    """Why there is nothing to show."""
    shared: int = 0
    """Number of ranks that print to its file, where no name and no prefix distinguishes them."""


@dataclass(frozen=True)
class Shown:
    """One line of a rank's log."""

    line: Line
    error: bool = False
    """Whether an error begins here."""


class _Outputs(NamedTuple):
    """The outputs of a job, by their only rank, or else by node."""

    owned: dict[int, list[Output]]
    shared: dict[str, list[Output]]

    def newest(self, rank: Rank) -> Output | None:
        """Return the output that a rank printed to last: the content matters, not the file."""
        outputs = self.owned.get(rank.rank) or self.shared.get(rank.node, [])
        return max(outputs, key=lambda output: (output.size > 0, output.changed), default=None)

    def shared_streams(self) -> Iterator[Stream]:
        """Yield a row for each shared file that is not empty."""
        shared = (output for outputs in self.shared.values() for output in outputs)
        for file in (output for output in shared if output.size):
            key = f"file {file.node} {file.inode}"
            yield Stream(key, None, file.node, file.path, "", False, file.size, file.changed, "")


class Logs:
    """The logs of a job at one moment, computed once."""

    def __init__(self, snapshot: Snapshot, job: Job) -> None:
        self.outputs: list[Output] = outputs_of(snapshot.outputs, job)
        self.files: list[FileLog] = of_job(snapshot.outputs, job)
        self.judged: Judged = judge(self.files, alive=alive_of(job))
        self.lacking = lacking(job, snapshot.outputs)
        self.streams = list(self._streams(job))
        self._lines: dict[str, list[Shown]] = {}

    def _streams(self, job: Job) -> Iterator[Stream]:
        outputs = self._outputs_by_owner()
        why = {rank: lack.why for lack in self.lacking for rank in lack.ranks}
        parts = self._parts()
        first = self.judged.first.record.rank if self.judged.first is not None else None
        counts, printed_at = self._sharing(job, outputs.owned)
        for rank in job.ranks:
            own = outputs.owned.get(rank.rank, [])
            newest = outputs.newest(rank)
            last, at = self.judged.last.get(rank.rank, ("", None))
            changed = newest.changed if newest is not None else None
            if not own and at is not None and changed is not None:
                changed = _line_or_file_time(at, changed, printed_at[rank.node])
            yield Stream(
                rank_key(rank),
                rank.rank,
                rank.node,
                newest.path if newest is not None else "",
                parts.get(rank.rank, ""),
                rank.rank == first,
                sum(file.size for file in own),
                changed,
                last,
                why.get(rank.rank, "") if newest is None else "",
                0 if own or newest is None or last else counts[rank.node],
            )
        yield from outputs.shared_streams()

    def _outputs_by_owner(self) -> _Outputs:
        outputs = _Outputs({}, {})
        for output, file in zip(self.outputs, self.files, strict=True):
            if file.place.rank is None:
                outputs.shared.setdefault(output.node, []).append(output)
            else:
                outputs.owned.setdefault(file.place.rank, []).append(output)
        return outputs

    def _sharing(self, job: Job, owned: Container[int]) -> tuple[Counter[str], dict[str, float]]:
        """Return by node how many ranks have no file of their own, and when they last printed."""
        ranks = [rank for rank in job.ranks if rank.rank not in owned]
        printed_at: dict[str, float] = {}
        for rank in ranks:
            at = self.judged.last.get(rank.rank, ("", None))[1]
            if at is not None:
                printed_at[rank.node] = max(at, printed_at.get(rank.node, 0.0))
        return Counter(rank.node for rank in ranks), printed_at

    def _parts(self) -> dict[int, str]:
        """Return the worst of every rank."""
        judged = self.judged
        folds = [*([judged.first] if judged.first else []), *judged.others, *judged.follows]
        folds += [*judged.survived, *(f for f in judged.notes if f.record.part == "error")]
        parts: dict[int, str] = {}
        for fold in folds:
            for record in fold.members:
                rank = record.rank
                if rank is not None and record.part in _ORDER:
                    old = parts.get(rank)
                    if old is None or _ORDER.index(record.part) < _ORDER.index(old):
                        parts[rank] = record.part
        return parts

    def lines(self, stream: Stream) -> list[Shown]:
        """Return the lines of a rank from all files, or the lines of a file that have no rank."""
        if stream.key not in self._lines:
            self._lines[stream.key] = list(self._marked(stream))
        return self._lines[stream.key]

    def _marked(self, stream: Stream) -> Iterator[Shown]:
        texts, records = self._texts(stream), self._records_by_first_line()
        at = 0
        while at < len(texts):
            fits = ((r, lines_at(r, texts, at)) for r in records.get(texts[at], ()))
            record, count = next((fit for fit in fits if fit[1]), (None, 1))
            if record is None:
                yield Shown(line((texts[at], "")))
            else:
                yield from self._explained(record, texts[at : at + count])
            at += count

    def _texts(self, stream: Stream) -> list[str]:
        """Return the lines of a stream; for a shared file without the lines of its ranks."""
        kept = Kept()
        for number in self._numbers(stream):
            lines_of(self.outputs[number], partial(kept.add, number))
        choice = Choice() if stream.rank is None else Choice(ranks=frozenset({stream.rank}))
        return [
            shown.text
            for shown in kept.shown(self.files, choice)
            if stream.rank is not None or shown.rank is None
        ]

    def _records_by_first_line(self) -> dict[str, list[Record]]:
        records: dict[str, list[Record]] = {}
        for file in self.files:
            for record in file.records:
                if record.lines:
                    records.setdefault(record.lines[0], []).append(record)
        return records

    def _explained(self, record: Record, texts: Sequence[str]) -> Iterator[Shown]:
        """Yield the lines of a record, and its meaning below them."""
        role = self._role(record)
        for index, text in enumerate(texts):
            yield Shown(line((text, role)), error=index == 0 and record.part != "info")
        if record.means:
            yield Shown(line(("   ↑ ", "dim"), (record.means, "info")))

    def _numbers(self, stream: Stream) -> list[int]:
        """Return the indices of a stream's files: its own, or those that several ranks print to."""
        if stream.rank is None:
            keys = (f"file {output.node} {output.inode}" for output in self.outputs)
            return [number for number, key in enumerate(keys) if key == stream.key]
        own = [n for n, file in enumerate(self.files) if file.place.rank == stream.rank]
        # A launcher may copy its ranks' files to its own output (torchrun --tee).
        return own or [n for n, file in enumerate(self.files) if file.place.rank is None]

    def _role(self, record: Record) -> str:
        first = self.judged.first
        if first is not None and any(m.lines == record.lines for m in first.members):
            return "culprit" if first.record.part == "root" else "warn"
        survived = (m for fold in self.judged.survived for m in fold.members)
        part = "survived" if any(m.lines == record.lines for m in survived) else record.part
        return ROLES.get(part, "")


def _line_or_file_time(line_at: float, file_at: float, newest_line_at: float) -> float:
    """Return the time in a line of a shared file, or the file's if its lines have another clock."""
    return line_at if abs(file_at - newest_line_at) < SAME_CLOCK_S else file_at


def error_items(logs: Logs, now: float) -> list[Item]:
    """Return the first error, other errors, consequences, and known lines with their meanings."""
    judged = logs.judged
    items = []
    if judged.first is not None:
        role = "culprit" if judged.first.record.part != "survived" else "warn"
        items.append(_item("FIRST", judged.first, role, logs.files))
    items += [_item("also", fold, "bad", logs.files) for fold in judged.others]
    items += [_item("went on", fold, "warn", logs.files) for fold in judged.survived]
    items += [_item("follows", fold, "dim", logs.files) for fold in judged.follows]
    items += [_unclear(ambiguity) for ambiguity in judged.ambiguities]
    return [*items, *(_item("known", fold, "", logs.files) for fold in judged.notes)]


class ErrorPlace(NamedTuple):
    """The place of an error in the lines of a rank."""

    rank: int
    begin: str
    """Its first line."""


def _unclear(ambiguity: Ambiguity) -> Item:
    """Return why the origin of a line is ambiguous, and what helps in the next run."""
    lines = [line((f"{'whose?':<8}", "label"), (ambiguity.text, "warn"))]
    lines += [line((f"{'':8}", ""), (step, "dim")) for step in ambiguity.steps]
    return Item(f"known {ambiguity.text}", tuple(lines), 8)


def _item(word: str, fold: Fold, role: str, files: Sequence[FileLog]) -> Item:
    record = fold.record
    owner = names(fold.ranks) if fold.ranks else "some process"
    times = f" ({fold.count} times)" if fold.count > max(len(fold.ranks), 1) else ""
    lines = [line((f"{word:<8}", "label"), (f"{owner} ", role), (f"{event(fold)}{times}", role))]
    if word == "FIRST":
        when = "" if record.at is None else clock(record.at)
        when += " or later" if when and not record.exact else ""
        file = files[record.file]
        path = shorten_path(file.path, PATH_CELLS)
        # It may have printed errors before that, too.
        since = f"read from {size(file.left[-1][1])} on" if file.left else ""
        lines.append(line((f"{'':8}", ""), (", ".join(filter(None, (when, path, since))), "dim")))
    key = f"{word} {record.file} {record.order} {record.code} {fold.ranks[:1]}"
    begin = record.lines[0] if record.lines else record.text
    target = ErrorPlace(fold.ranks[0], plain(line(begin))) if fold.ranks else None
    return Item(key, tuple(lines), 8, target=target)


def lack_lines(logs: Logs) -> list[Line]:
    """Return which ranks have no log, and how to change that."""
    lines: list[Line] = []
    for lack in logs.lacking:
        on = f" on {shorten(nodesets.fold(lack.nodes), 40)}" if lack.nodes else ""
        lines.append(line(("no log ", "warn"), f"of {names(lack.ranks)}{on}: {lack.why}"))
        lines.append(line((f"       {lack.fix}", "code")))
    return lines


def _mark(stream: Stream) -> Line:
    if stream.first and stream.part != "survived":
        return line((FIRST, "culprit"))
    return line((MARKS[stream.part], ROLES[stream.part])) if stream.part else EMPTY


def said(stream: Stream) -> str:
    """Return the word in the column SAID, for the filter."""
    return plain(_mark(stream)).partition(" ")[2]


def columns(now: float) -> tuple[Column[Stream], ...]:
    """Return the columns of the streams."""
    return (
        Column(
            "rank",
            "RANK",
            lambda row: line(rank_label(row.rank) if row.rank is not None else "-"),
            sort=lambda row: row.rank if row.rank is not None else 1 << 40,
            align="right",
        ),
        Column("state", "SAID", _mark, sort=lambda row: _severity(row), maximum=9),
        Column("node", "NODE", lambda row: line(row.node), sort=lambda row: row.node, drop=3),
        Column(
            "printed",
            "PRINTED",
            lambda row: line(ago(row.changed, now)) if row.changed else EMPTY,
            sort=lambda row: -(row.changed or 0),
            align="right",
            drop=2,
        ),
        Column(
            "size",
            "SIZE",
            lambda row: line(size(row.size)) if row.size else EMPTY,
            sort=lambda row: -row.size,
            align="right",
            drop=5,
        ),
        Column("last", "LAST LINE", _last, flex=True, minimum=10, maximum=400, drop=1),
    )


def searched(shown: Sequence[Shown], text: str) -> list[Shown]:
    """Return lines that contain a text, ignoring case; else those it matches as a pattern.

    Raises:
        TimeoutError: matching takes longer than `PATTERN_S`.
    """
    wanted = text.casefold()
    matching = [item for item in shown if wanted in plain(item.line).casefold()]
    if matching:
        return matching
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):  # for `a{9999999999}`, `((((`...
        return []
    with within(PATTERN_S):
        return [item for item in shown if pattern.search(plain(item.line)[:SEARCHED])]


def _last(stream: Stream) -> Line:
    if stream.unread:
        return line((stream.unread, "warn"))
    if stream.shared:
        return line(
            (f"{stream.path}, which {plural(stream.shared, 'rank')} of its node share", "dim")
        )
    # Its time has a column of its own, and a line without a problem is no news.
    text = " ".join(_QUIET.sub("", without_time(stream.last)).split())
    return line(text or stream.last or stream.path)


def shared_lines(stream: Stream) -> list[Line]:
    """Return why no lines are shown for a rank that shares its file with others."""
    return [
        line((f"{plural(stream.shared, 'rank')} of {stream.node} print to one file, ", "dim")),
        line((f"{stream.path},", "")),
        line(("and no line of it tells which of them did.", "dim")),
        line(("The row ", "dim"), ("-", "key"), (" has all of its lines.", "dim")),
        line(("With torchrun --tee 3, srun --label or a rank", "dim")),
        line(("in nearly all lines they can be told apart.", "dim")),
    ]


def _severity(stream: Stream) -> tuple[bool, int]:
    return not stream.first, _ORDER.index(stream.part) if stream.part else len(_ORDER)


def title_of(stream: Stream, lines: int, width: int) -> tuple[Line, Line]:
    """Return title and note, in so many cells, of the pane with the lines."""
    owner = rank_name(stream.rank) if stream.rank is not None else "no rank's"
    heading = line(("OUTPUT  ", "title"), owner, "  ")
    note = line((plural(lines, "line"), "dim"))
    left = max(min(width - cells(heading) - cells(note), PATH_CELLS), 12)
    return line(heading, (shorten_path(stream.path, left), "dim")), note
