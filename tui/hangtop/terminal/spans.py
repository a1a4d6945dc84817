"""Styled text as plain data: what views produce and widgets paint.

A `Line` is a tuple of `Span`s, each a piece of text with the name of a role; the theme maps roles
to styles. There is no markup language, so text from a node cannot become markup, and `line`
sanitises every unprintable piece before it can reach a terminal.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from hangtop.terminal.theme import asciify
from hangtop_core.text.clean import ELLIPSIS, clean, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

TOGETHER = "\u00a0"
"""A blank at which no line is broken; `wrap` turns it into a plain blank."""
MAX_PLACES = 8
"""Largest number of starting places at which `holds` looks for a text on the screen."""
_WORD = re.compile(r"[^ ]+ *| +")


class Span(NamedTuple):
    """A piece of text in one role of the theme."""

    text: str
    role: str = ""


Line = tuple[Span, ...]
Part = str | tuple[str, str] | Line
"""A part of a `line`: bare text, text with a role, or a finished line."""

EMPTY: Line = ()
Word = TypeVar("Word", bound=str)


def line(*parts: Part) -> Line:
    """Join parts into one line; unprintable characters become visible or are removed."""
    spans: list[Span] = []
    for part in parts:
        if isinstance(part, str):
            if text := _printable(part):
                spans.append(Span(text))
        elif len(part) == 2 and isinstance(part[0], str):
            if text := _printable(part[0]):
                spans.append(Span(text, str(part[1])))
        else:
            spans += [span for span in part if isinstance(span, Span) and span.text]
    return tuple(spans)


def counted(words: Iterable[Word], role: Callable[[Word], str]) -> Line:
    """Return `6 spins 1 idle`: the number of each word, most frequent first, each in its role."""
    parts: list[Part] = []
    for word, count in Counter(words).most_common():
        parts += [("  ", ""), (f"{count} {word}", role(word))]
    return line(*parts[1:])


def unbroken(text: str, role: str = "") -> Line:
    """Return a line of trusted text that is never broken."""
    return (Span(text.replace(" ", TOGETHER), role),)


def _printable(text: str) -> str:
    if is_plain(text):
        return text
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    text = f"{' ' * before}{clean(text)}{' ' * after}"  # they set it apart from its neighbours
    # blanks that separate it from others
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def plain(spans: Line) -> str:
    """Return the text of a line without roles and without trailing blanks."""
    return "".join(span.text for span in spans).rstrip().replace(TOGETHER, " ")


def plain_lines(lines: Iterable[Line]) -> str:
    """Join several lines into one text, for copying, pagers and tests."""
    return "\n".join(plain(item) for item in lines)


def twin(spans: Line, *, flat: bool) -> Line:
    """Return the line as it is drawn: with ``flat`` every character in ASCII."""
    if not flat:
        return spans
    return tuple(Span(asciify(span.text), span.role) for span in spans)


def holds(shown: Sequence[str], text: str) -> bool:
    """Return whether lines of a screen show every character of a text, in order.

    A line may be broken anywhere where it is too wide, and columns are spaced wider; where the text
    has a line break, the screen has one.
    """
    screen, wanted = "\n".join(shown), "".join(text.split())
    bare = "".join(screen.split())
    if not wanted or wanted not in bare:
        return not wanted
    places = [at for at, char in enumerate(screen) if not char.isspace()]
    lines = [
        r"\s+".join(map(_breakable, paragraph.split())) for paragraph in text.strip().split("\n")
    ]
    pattern, at = re.compile(r"[ \xa0]*\n\s*".join(lines)), -1
    for _ in range(MAX_PLACES):
        at = bare.find(wanted, at + 1)
        if at < 0:
            return False
        if pattern.match(screen, places[at]):
            return True
    return False


def _breakable(word: str) -> str:
    """Return a pattern for a word that may be broken over several lines."""
    return r"(?: *\n *)?".join(map(re.escape, word))


def cells(spans: Line) -> int:
    """Return the width of a line in terminal cells."""
    return sum([_width(span.text) for span in spans])


def _width(text: str) -> int:
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def crop(spans: Line, width: int, *, keep_end: bool = False) -> Line:
    """Crop a line to at most `width` cells; an ellipsis marks the cut.

    With `keep_end` the beginning is cut instead: the end of a path says more than its root.
    """
    if cells(spans) <= width:
        return spans
    if width <= 1:
        return (Span(ELLIPSIS),) if width == 1 else EMPTY
    if keep_end:
        return (Span(ELLIPSIS, spans[0].role), *_tail(spans, width - 1))
    return (*_head(spans, width - 1), Span(ELLIPSIS, spans[-1].role))


def _head(spans: Line, width: int) -> Line:
    kept: list[Span] = []
    for span in spans:
        size = cell_len(span.text)
        if size >= width:
            kept.append(Span(set_cell_size(span.text, width), span.role))
            break
        kept.append(span)
        width -= size
    return tuple(kept)


def _tail(spans: Line, width: int) -> Line:
    kept: list[Span] = []
    for span in reversed(spans):
        text = span.text
        while text and cell_len(text) > width:
            text = text[max(1, cell_len(text) - width) // 2 or 1 :]
        kept.append(Span(text, span.role))
        width -= cell_len(text)
        if width <= 0 or text != span.text:
            break
    return (*(Span(" ") for _ in range(width)), *reversed(kept)) if width else tuple(kept[::-1])


def fit(spans: Line, width: int, *, align: str = "left", keep_end: bool = False) -> Line:
    """Crop or pad a line to exactly `width` cells."""
    if width <= 0:
        return EMPTY
    size = cells(spans)
    if size > width:
        spans = crop(spans, width, keep_end=keep_end)
        size = cells(spans)
    if size == width:
        return spans
    blank = Span(" " * (width - size))
    return (blank, *spans) if align == "right" else (*spans, blank)


def spread(left: Line, right: Line, width: int) -> Line:
    """Put left and right text on one line; the right one stays whole as long as possible."""
    right = crop(right, width)
    gap = 2 if left and right else 0
    left_width = width - cells(right) - gap
    if left_width <= 0:
        return fit(right, width)
    return (*fit(left, left_width), *((Span(" " * gap),) if gap else ()), *right)


def wrap(spans: Line, width: int, indent: int = 0) -> list[Line]:
    """Break a line at blanks into lines of at most `width` cells, indented from the second on."""
    width = max(width, 8)
    indent = min(indent, width // 2)
    if cells(spans) <= width:
        return [_apart(spans)]
    lines: list[Line] = []
    current: list[Span] = []
    used = 0
    for word in _words(spans):
        size = cell_len(word.text.rstrip(" "))
        if used > indent and used + size > width and (size <= width - indent or width - used < 12):
            lines.append(tuple(current))
            current = [Span(" " * indent)] if indent else []
            used = indent
        for piece in _pieces(word, width - used, width - indent):
            if used + cell_len(piece.text.rstrip(" ")) > width:
                lines.append(tuple(current))
                current = [Span(" " * indent)] if indent else []
                used = indent
            current.append(piece)
            used += cell_len(piece.text)
    lines.append(tuple(current))
    return [_apart(_without_tail(item)) for item in lines]


def _apart(spans: Line) -> Line:
    """Return a line with plain blanks only, once it has been broken."""
    if not any(TOGETHER in span.text for span in spans):
        return spans
    return tuple(Span(span.text.replace(TOGETHER, " "), span.role) for span in spans)


def _without_tail(spans: Line) -> Line:
    """Return a line without its trailing blanks, which are invisible but take up width."""
    kept = list(spans)
    while kept:
        text = kept[-1].text.rstrip(" ")
        if text:
            kept[-1] = Span(text, kept[-1].role)
            break
        kept.pop()
    return tuple(kept)


def _words(spans: Line) -> Iterable[Span]:
    """Yield each word with the blanks that follow it."""
    for span in spans:
        for word in _WORD.findall(span.text):
            yield Span(word, span.role)


def _pieces(word: Span, first: int, width: int) -> Iterable[Span]:
    """Yield a word that is wider than the line in parts; the first part fills the current line."""
    text = word.text
    available = max(first, 1)
    while cell_len(text.rstrip(" ")) > available:
        cut = min(len(text), available)
        while cut > 1 and cell_len(text[:cut]) > available:
            cut -= 1
        yield Span(text[:cut], word.role)
        text = text[cut:]
        available = max(width, 1)
    yield Span(text, word.role)


def wrap_all(lines: Sequence[Line], width: int, indent: int = 0) -> list[Line]:
    """Wrap every line of a text."""
    return [part for item in lines for part in wrap(item, width, indent)]


def labelled(label: str, value: Part, size: int = 8) -> Line:
    """Return a line of a dim label in a column of `size` cells, then its value."""
    return line((f"{label:<{size}} ", "label"), value)


def second_in_view(lines: list[Line], width: int, rows: int) -> list[Line]:
    """Shorten the first line, where needed, so that the second one begins within `rows` rows."""
    first, available = wrap(lines[0], width), max(rows - 1, 1)
    if len(lines) < 2 or len(first) <= available:
        return lines
    last = (*_head(first[available - 1], width - 2), Span(f" {ELLIPSIS}", first[0][-1].role))
    return [*first[: available - 1], last, *lines[1:]]
