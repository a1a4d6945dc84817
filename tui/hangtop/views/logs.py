"""What the Logs screen shows: streams, the first error and what follows, the lines of one rank."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hangtop.keys.items import Item
from hangtop.terminal.columns import Column
from hangtop.terminal.patience import within
from hangtop.terminal.spans import EMPTY, Line, cells, line, plain
from hangtop.views.common import ago, clock, rank_key
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
"""Of a path at most; the name of the file stands at its end."""
_QUIET = re.compile(r"\[?(?:INFO|DEBUG)\b[\]\s:|-]+(?=\S)")
SAME_CLOCK_S = 60.0
"""The time in a file's last line is at most so far from that at which it was written."""
SEARCHED = 2000
"""Characters of a line in which a pattern is searched."""
PATTERN_S = 0.3
"""Seconds of the processor that a pattern may take in all lines."""
_ORDER = ("root", "timeout", "survived", "error", "cascade", "exit")


@dataclass(frozen=True)
class Stream:
    """One row: a rank, or a file with what no rank can be told of."""

    key: str
    rank: int | None
    node: str
    path: str
    part: str
    """The worst that it has printed; empty for nothing."""
    first: bool
    """Whether the first error of the job is its."""
    size: int
    changed: float | None
    last: str
    unread: str = ""
    """Why there is nothing to show."""
    shared: int = 0
    """How many ranks print to its file, where no name and no prefix tells them apart."""


@dataclass(frozen=True)
class Shown:
    """One line of a rank's log."""

    line: Line
    error: bool = False
    """Whether an error begins here."""


class _Outputs(NamedTuple):
    """The outputs of a job, by the rank that alone prints there, or else by node."""

    owned: dict[int, list[Output]]
    shared: dict[str, list[Output]]

    def newest(self, rank: Rank) -> Output | None:
        """Return where a rank printed last: what it printed matters, not in which of its files."""
        outputs = self.owned.get(rank.rank) or self.shared.get(rank.node, [])
        return max(outputs, key=lambda output: (output.size > 0, output.changed), default=None)

    def shared_streams(self) -> Iterator[Stream]:
        """Yield a row for each shared file that is not empty."""
        shared = (output for outputs in self.shared.values() for output in outputs)
        for file in (output for output in shared if output.size):
            key = f"file {file.node} {file.inode}"
            yield Stream(key, None, file.node, file.path, "", False, file.size, file.changed, "")


class Logs:
    """The logs of a job at one moment, worked out once."""

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
        """Return how many ranks have no file of their own, and when they printed last, by node."""
        ranks = [rank for rank in job.ranks if rank.rank not in owned]
        printed_at: dict[str, float] = {}
        for rank in ranks:
            at = self.judged.last.get(rank.rank, ("", None))[1]
            if at is not None:
                printed_at[rank.node] = max(at, printed_at.get(rank.node, 0.0))
        return Counter(rank.node for rank in ranks), printed_at

    def _parts(self) -> dict[int, str]:
        """The worst of every rank."""
        judged = self.judged
        folds = [*([judged.first] if judged.first else []), *judged.others, *judged.follows]
        folds += [*judged.survived, *(f for f in judged.notes if f.record.part == "error")]
        found: dict[int, str] = {}
        for fold in folds:
            for record in fold.members:
                rank = record.rank
                if rank is not None and record.part in _ORDER:
                    old = found.get(rank)
                    if old is None or _ORDER.index(record.part) < _ORDER.index(old):
                        found[rank] = record.part
        return found

    def lines(self, stream: Stream) -> list[Shown]:
        """The lines of one rank from all files, or those of a file that are no rank's."""
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
        """Return the lines of a stream; those of a shared file without what ranks printed."""
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
        """Yield the lines of a record, and what it means below them."""
        role = self._role(record)
        for index, text in enumerate(texts):
            yield Shown(line((text, role)), error=index == 0 and record.part != "info")
        if record.means:
            yield Shown(line(("   ↑ ", "dim"), (record.means, "info")))

    def _numbers(self, stream: Stream) -> list[int]:
        """Which files hold the lines of a stream: its own, or those that several ranks print to."""
        if stream.rank is None:
            keys = (f"file {one.node} {one.inode}" for one in self.outputs)
            return [number for number, key in enumerate(keys) if key == stream.key]
        own = [n for n, one in enumerate(self.files) if one.place.rank == stream.rank]
        # A launcher may copy its ranks' files to its own output (torchrun --tee).
        return own or [n for n, one in enumerate(self.files) if one.place.rank is None]

    def _role(self, record: Record) -> str:
        first = self.judged.first
        if first is not None and any(one.lines == record.lines for one in first.members):
            return "culprit" if first.record.part == "root" else "warn"
        survived = (one for fold in self.judged.survived for one in fold.members)
        part = "survived" if any(one.lines == record.lines for one in survived) else record.part
        return ROLES.get(part, "")


def _line_or_file_time(line_at: float, file_at: float, newest_line_at: float) -> float:
    """Return the time in a line of a shared file, or the file's if its lines have another clock."""
    return line_at if abs(file_at - newest_line_at) < SAME_CLOCK_S else file_at


def error_items(logs: Logs, now: float) -> list[Item]:
    """The first error, other ones, what follows, and known lines with what they mean."""
    judged = logs.judged
    items = []
    if judged.first is not None:
        role = "culprit" if judged.first.record.part != "survived" else "warn"
        items.append(_item("FIRST", judged.first, role, logs.files))
    items += [_item("also", one, "bad", logs.files) for one in judged.others]
    items += [_item("went on", one, "warn", logs.files) for one in judged.survived]
    items += [_item("follows", one, "dim", logs.files) for one in judged.follows]
    items += [_unclear(one) for one in judged.ambiguities]
    items += [_item("known", one, "", logs.files) for one in judged.notes]
    return items


class ErrorPlace(NamedTuple):
    """Where an error is in the lines of a rank."""

    rank: int
    begin: str
    """Its first line."""


def _unclear(one: Ambiguity) -> Item:
    """Why it cannot be told who has printed something, and what helps the next time."""
    lines = [line((f"{'whose?':<8}", "label"), (one.text, "warn"))]
    lines += [line((f"{'':8}", ""), (step, "dim")) for step in one.steps]
    return Item(f"known {one.text}", tuple(lines), 8)


def _item(word: str, fold: Fold, role: str, files: Sequence[FileLog]) -> Item:
    record = fold.record
    whose = names(fold.ranks) if fold.ranks else "some process"
    times = f" ({fold.count} times)" if fold.count > max(len(fold.ranks), 1) else ""
    lines = [line((f"{word:<8}", "label"), (f"{whose} ", role), (f"{event(fold)}{times}", role))]
    if word == "FIRST":
        when = "" if record.at is None else clock(record.at)
        when += " or later" if when and not record.exact else ""
        file = files[record.file]
        path = shorten_path(file.path, PATH_CELLS)
        # What it has said before that may have been an error, too.
        since = f"read from {size(file.left[-1][1])} on" if file.left else ""
        lines.append(line((f"{'':8}", ""), (", ".join(filter(None, (when, path, since))), "dim")))
    key = f"{word} {record.file} {record.order} {record.code} {fold.ranks[:1]}"
    begin = record.lines[0] if record.lines else record.text
    target = ErrorPlace(fold.ranks[0], plain(line(begin))) if fold.ranks else None
    return Item(key, tuple(lines), 8, target=target)


def lack_lines(logs: Logs) -> list[Line]:
    """Which ranks have no log, and what to do about that."""
    found: list[Line] = []
    for one in logs.lacking:
        on = f" on {shorten(nodesets.fold(one.nodes), 40)}" if one.nodes else ""
        found.append(line(("no log ", "warn"), f"of {names(one.ranks)}{on}: {one.why}"))
        found.append(line((f"       {one.fix}", "code")))
    return found


def _mark(one: Stream) -> Line:
    if one.first and one.part != "survived":
        return line((FIRST, "culprit"))
    return line((MARKS[one.part], ROLES[one.part])) if one.part else EMPTY


def said(one: Stream) -> str:
    """The word in the column SAID, for the filter."""
    return plain(_mark(one)).partition(" ")[2]


def columns(now: float) -> tuple[Column[Stream], ...]:
    """Columns of the streams."""
    return (
        Column(
            "rank",
            "RANK",
            lambda one: line(rank_label(one.rank) if one.rank is not None else "-"),
            sort=lambda one: one.rank if one.rank is not None else 1 << 40,
            align="right",
        ),
        Column("state", "SAID", _mark, sort=lambda one: _severity(one), maximum=9),
        Column("node", "NODE", lambda one: line(one.node), sort=lambda one: one.node, drop=3),
        Column(
            "printed",
            "PRINTED",
            lambda one: line(ago(one.changed, now)) if one.changed else EMPTY,
            sort=lambda one: -(one.changed or 0),
            align="right",
            drop=2,
        ),
        Column(
            "size",
            "SIZE",
            lambda one: line(size(one.size)) if one.size else EMPTY,
            sort=lambda one: -one.size,
            align="right",
            drop=5,
        ),
        Column("last", "LAST LINE", _last, flex=True, minimum=10, maximum=400, drop=1),
    )


def searched(shown: Sequence[Shown], text: str) -> list[Shown]:
    """Lines that hold a text, whatever its case; where none does, those it fits as a pattern.

    Raises:
        TimeoutError: to try the pattern takes longer than `PATTERN_S`.
    """
    wanted = text.casefold()
    found = [one for one in shown if wanted in plain(one.line).casefold()]
    if found:
        return found
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):  # of `a{9999999999}`, of `((((`...
        return []
    with within(PATTERN_S):
        return [one for one in shown if pattern.search(plain(one.line)[:SEARCHED])]


def _last(one: Stream) -> Line:
    if one.unread:
        return line((one.unread, "warn"))
    if one.shared:
        return line((f"{one.path}, which {plural(one.shared, 'rank')} of its node share", "dim"))
    # When that was stands beside it, and that nothing is wrong is no news.
    text = " ".join(_QUIET.sub("", without_time(one.last)).split())
    return line(text or one.last or one.path)


def shared_lines(one: Stream) -> list[Line]:
    """Why nothing is shown of a rank that prints to one file with others."""
    return [
        line((f"{plural(one.shared, 'rank')} of {one.node} print to one file, ", "dim")),
        line((f"{one.path},", "")),
        line(("and no line of it tells which of them did.", "dim")),
        line(("The row ", "dim"), ("-", "key"), (" has all of its lines.", "dim")),
        line(("With torchrun --tee 3, srun --label or a rank", "dim")),
        line(("in nearly all lines they can be told apart.", "dim")),
    ]


def _severity(one: Stream) -> tuple[bool, int]:
    return not one.first, _ORDER.index(one.part) if one.part else len(_ORDER)


def title_of(stream: Stream, lines: int, room: int) -> tuple[Line, Line]:
    """Title of the pane with the lines, and the right end of its edge, in so many cells."""
    whose = rank_name(stream.rank) if stream.rank is not None else "no rank's"
    heading = line(("OUTPUT  ", "title"), whose, "  ")
    note = line((plural(lines, "line"), "dim"))
    left = max(min(room - cells(heading) - cells(note), PATH_CELLS), 12)
    return line(heading, (shorten_path(stream.path, left), "dim")), note
