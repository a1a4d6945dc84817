"""The rank of a line by the program's own words: `12:00:01 INFO [rank 3] step 40`.

A rank in a line may as well be another rank than its printer. So a single line counts only if the
rank is in brackets with nothing but a time and a level before it; other words count if nearly all
lines of a file name exactly one rank behind words of the same shape, and not always the same rank.
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
"""Characters at the beginning of a line that are searched for a rank."""
SAMPLE_LINES = 4000
MAX_RANKS = 20_000
SHARE = 0.8
"""Share of a file's lines that must name a rank; lines of tracebacks are indented further."""

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
    """Return the rank in brackets before a program's line: `12:00:01 ERROR [rank 3] ...`.

    Nothing else may stand before it: `waits for [rank 3]`, `rank 3 timed out` and `rank 3: no
    answer` may refer to another rank; `[Rank 3]` after torch's own header is a rank of a group.
    """
    match = _OWN_WORDS.match(text)
    return int(match[1]) if match is not None else None


_NAMED = re.compile(r"\brank[\s:=#]{0,2}(\d{1,7})\b", re.IGNORECASE)
"""A rank in a log line, as most programs write it."""


def named_alone(text: str) -> int | None:
    """Return the only rank that a line names; None for several or none."""
    numbers = {int(number) for number in _NAMED.findall(text)}
    return numbers.pop() if len(numbers) == 1 else None


_WORDS = re.compile(
    r"(?<![A-Za-z_])(?:global_)?rank[\s:='\"#_-]{0,3}(\d{1,7})(?![\d-])", re.IGNORECASE
)
_WORD = re.compile(r"\w+")


class OwnWords:
    """The ranks of the lines of one file, if its lines name them."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Learn from the first lines of a file, without what launchers put before them."""
        lines = [line for line in lines[:SAMPLE_LINES] if not line[:1].isspace()]
        heads = list(filter(None, map(_head, lines)))
        counts = Counter(shape for shape, _ in heads)
        often = {shape for shape, count in counts.items() if count > 1}
        ranks = {rank for shape, rank in heads if shape in often}
        counted = sum(counts[shape] for shape in often)
        is_enough = len(ranks) > 1 and counted >= SHARE * len(lines)
        self.shapes = frozenset(often if is_enough else ())
        """Shapes of the text before the rank; empty if lines do not name theirs."""
        self.ranks: dict[int, tuple[int, str, int]] = {}
        """Number of lines, last line and its number for every rank."""

    def take(self, line: str, order: int = 0) -> int | None:
        """Take a line and its number; return the rank that printed it, None if unknown."""
        head = _head(line)
        if head is None or head[0] not in self.shapes:
            return None
        rank = head[1]
        if rank in self.ranks or len(self.ranks) < MAX_RANKS:
            self.ranks[rank] = (self.ranks.get(rank, (0, "", 0))[0] + 1, line, order)
        return rank


def _head(line: str) -> tuple[str, int] | None:
    """Return the shape of the text before the first rank in a line, and the rank."""
    match = _WORDS.search(line[:HEAD])
    if match is None:
        return None
    return _WORD.sub("w", line[: match.start()]), int(match[1])


def is_told(origin: Origin) -> bool:
    """Whether a prefix identifies the rank, alone or with other evidence."""
    return (origin.rank, origin.local, origin.task) != (None, None, None)


def words_of(sample: str, prefixes: Prefixes) -> OwnWords | None:
    """Return the words by which the lines of a sample name their ranks, if they do."""
    if "rank" not in sample.lower():
        return None
    taken = (prefixes.take(row) for _, row in prefixes.split(sample) if row)
    words = OwnWords([line for origin, line in taken if line and not is_told(origin)])
    return words if words.shapes else None
