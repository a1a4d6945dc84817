"""Find the loops and conditions around a line of Python by the indentation of its file.

Two ranks in one function may be in different loops, or under a condition on the rank, which line
numbers alone do not show. `ast` is not used: up to Python 3.10 it crashes on some files, and no
file of a user may end the probe.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    Block = Tuple[int, int, Optional[int]]
    """First and last line of the head of a loop or condition, and its kind.

    0: the line is in its block, 1: in the `else` of it, 2: past a condition whose block leaves
    (`if x: return`), 3: a decorator of the function. None: the head of a `with`, `except` or
    `finally`, or the first statement of an earlier `try`.
    """

MAX_FILE = 512 << 10
"""Bytes of a file that are read: some 15,000 lines."""
MAX_BLOCKS = 16

_TEXT = re.compile(
    rb"#[^\n]*"
    rb'|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:""")?'
    rb"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:''')?"
    rb'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?'
    rb"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'?",
    re.DOTALL,
)
"""Comments and strings, which hold no code. Each matches even without an end, so that no file takes
long."""
_BRACKETS = re.compile(rb"([\[\](){}])")
_OPENING = b"[({"
_FIRST = re.compile(rb"\s*(?:async\s+)?(@?\w*)")
_LOOPS = (b"for", b"while")
_BRANCHES = (b"if", b"elif")
_HEADS: Dict[bytes, Optional[int]] = {
    **dict.fromkeys(_BRANCHES + _LOOPS, 0),
    **dict.fromkeys((b"with", b"except", b"finally"), None),
}
"""First words of reported block heads, with the kind in `Block`."""
_LEAVES = (b"return", b"continue", b"break")


class Statement(NamedTuple):
    """A statement, or the head of a block: all lines of it, how far it is indented, first word."""

    first: int
    last: int
    indent: int
    word: bytes
    whole: bytes
    """First word after its colon, for a block in one line."""


def statements(source: bytes) -> List[Statement]:
    """Return the statements of a file, in order."""
    code = _TEXT.sub(_blank, source[:MAX_FILE])
    parsed: List[Statement] = []
    first, depth, held, whole = 0, 0, b"", b""
    for number, line in enumerate(code.split(b"\n"), 1):
        if not held:
            if not line.strip():
                continue
            first, held, whole = number, line, b""
        for at, piece in enumerate(_BRACKETS.split(line)):
            if at % 2:
                depth = depth + 1 if piece in _OPENING else max(depth - 1, 0)
            elif not depth:
                whole = whole or _goes_on(piece)
        if depth or line.endswith(b"\\"):
            continue
        word = _FIRST.match(held)
        held = held.expandtabs()
        indent = len(held) - len(held.lstrip())
        parsed.append(Statement(first, number, indent, word[1] if word else b"", whole))
        held = b""
    return parsed


def around(lines: List[Statement], number: int) -> List[Block]:
    """Return the blocks around line ``number`` inside its function, outermost first."""
    at = next(
        (i for i, statement in enumerate(lines) if statement.first <= number <= statement.last),
        None,
    )
    if at is None:
        return []
    own = lines[at]
    blocks: List[Block] = []
    inside = own.word in _LOOPS or bool(own.whole and own.word in (b"else", *_BRANCHES))
    indent, sought = own.indent + inside, own.word == b"elif" and not inside
    end = at + inside
    for i in reversed(range(end)):
        statement = lines[i]
        if statement.indent == indent:
            blocks += _before(lines, i, end, sought)
            sought = sought and statement.word in (b"try", b"elif")
        elif statement.indent < indent:
            indent, sought = statement.indent, statement.word in (b"else", b"elif")
            if statement.word in (b"def", b"class"):
                blocks += _decorators(lines, i)
                break
            if statement.word in _HEADS:
                blocks.append((statement.first, statement.last, _HEADS[statement.word]))
        if statement.indent <= indent:
            end = i
    return blocks[::-1][-MAX_BLOCKS:]


def _before(lines: List[Statement], i: int, end: int, sought: bool) -> List[Block]:
    """Return the block that statement ``i`` begins for the statements after it, up to ``end``.

    ``sought``: an `elif` or `else` follows, whose first branch is wanted.
    """
    statement = lines[i]
    if statement.word == b"try":
        return [(lines[i + 1].first, lines[i + 1].last, None)]
    if statement.word in _BRANCHES:
        if sought:
            return [(statement.first, statement.last, 1)]
        if _leaves(lines[i:end]):
            return [(statement.first, lines[end - 1 if end < i + 3 else i].last, 2)]
    return []


def _decorators(lines: List[Statement], i: int) -> Iterator[Block]:
    while i and lines[i - 1].word[:1] == b"@":
        i -= 1
        yield lines[i].first, lines[i].last, 3


def _leaves(block: List[Statement]) -> bool:
    """Whether the block of a condition leaves, so that execution does not continue after it."""
    head, *body = block
    if not body:
        return head.whole in _LEAVES
    return body[-1].word in _LEAVES and body[-1].indent == body[0].indent


def _blank(match: "re.Match[bytes]") -> bytes:
    """Return brackets in place of a string, so that its lines belong to one statement."""
    text = match[0]
    return b"" if text[:1] == b"#" else b"(" + b"\n" * text.count(b"\n") + b")"


def _goes_on(part: bytes) -> bytes:
    """Return the first word after the colon of a block's head."""
    before, _, after = part.partition(b":")
    if b"lambda" in before or after[:1] == b"=":
        return b""
    return (after.split() or [b""])[0]
