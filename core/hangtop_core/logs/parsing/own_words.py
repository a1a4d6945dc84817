"""Which rank has printed a line by the program's own words: `12:00:01 INFO [rank 3] step 40`.

A line in which a rank stands may as well be about another one. So one line alone counts only where
the rank is in brackets with nothing before it but a time and a level, if these; other words do
where nearly all lines of a file name one rank behind words of the same shape, and not all of them
the same rank.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.logs.parsing.prefix import Prefixes
    from hangtop_core.model.file_log import Origin

HEAD = 120
"""Characters at the beginning of a line in which a rank is looked for."""
SAMPLE_LINES = 4000
MAX_RANKS = 20_000
SHARE = 0.8
"""Part of a file's lines that must name a rank; those of tracebacks are further to the right."""

_AT, _LEVEL = (
    r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?",
    r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)",
)
_OWN_WORDS = re.compile(
    rf"(?:\[{_AT}\]|{_AT})?[ |,-]{{0,4}}"
    rf"(?:(?:\[{_LEVEL}\]|{_LEVEL})(?::[\w.]{{1,80}})?[ |:-]{{0,8}})?"
    r"[\[(]rank[ =:]?(\d{1,7})(?:/\d{1,7})?[\])](?!:)",
    re.IGNORECASE,
)


def in_own_words(text: str) -> int | None:
    """The rank in brackets that a program writes before its lines: `12:00:01 ERROR [rank 3] ...`.

    Only with nothing before it but these: `waits for [rank 3]` and `rank 3 timed out` may tell of
    another one, and so may `rank 3: no answer`; `[Rank 3]` after torch's own header counts within a
    group.
    """
    found = _OWN_WORDS.match(text)
    return int(found[1]) if found is not None else None


_NAMED = re.compile(r"\brank[\s:=#]{0,2}(\d{1,7})\b", re.IGNORECASE)
"""A rank in a line of a log, as most programs put it."""


def named_alone(text: str) -> int | None:
    """The only rank that a line names; None where it names several, or none."""
    found = {int(number) for number in _NAMED.findall(text)}
    return found.pop() if len(found) == 1 else None


_WORDS = re.compile(
    r"(?<![A-Za-z_])(?:global_)?rank[\s:='\"#_-]{0,3}(\d{1,7})(?![\d-])", re.IGNORECASE
)
_WORD = re.compile(r"\w+")


class OwnWords:
    """Tells the ranks of the lines of one file, if its lines name them."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Learn from the first lines of a file, without what launchers put before them."""
        lines = [line for line in lines[:SAMPLE_LINES] if not line[:1].isspace()]
        found = list(filter(None, map(_found, lines)))
        counts = Counter(shape for shape, _ in found)
        often = {shape for shape, count in counts.items() if count > 1}
        ranks = {rank for shape, rank in found if shape in often}
        some = sum(counts[shape] for shape in often)
        known = len(ranks) > 1 and some >= SHARE * len(lines)
        self.shapes = frozenset(often if known else ())
        """Of what stands before the rank; none where lines do not tell theirs."""
        self.ranks: dict[int, tuple[int, str, int]] = {}
        """Lines, the last line and its number of every rank."""

    def take(self, line: str, order: int = 0) -> int | None:
        """Take a line and its number; return the rank that has printed it, where that is told."""
        found = _found(line)
        if found is None or found[0] not in self.shapes:
            return None
        rank = found[1]
        if rank in self.ranks or len(self.ranks) < MAX_RANKS:
            self.ranks[rank] = (self.ranks.get(rank, (0, "", 0))[0] + 1, line, order)
        return rank


def _found(line: str) -> tuple[str, int] | None:
    """The first rank in a line, and the shape of what is before it."""
    found = _WORDS.search(line[:HEAD])
    if found is None:
        return None
    return _WORD.sub("w", line[: found.start()]), int(found[1])


def is_told(origin: Origin) -> bool:
    """Whether a prefix tells the rank, or will with what else is known."""
    return (origin.rank, origin.local, origin.task) != (None, None, None)


def words_of(sample: str, prefixes: Prefixes) -> OwnWords | None:
    """The words by which the lines of a sample tell their ranks, if they do."""
    if "rank" not in sample.lower():
        return None
    taken = (prefixes.take(row) for _, row in prefixes.split(sample) if row)
    words = OwnWords([line for origin, line in taken if line and not is_told(origin)])
    return words if words.shapes else None
