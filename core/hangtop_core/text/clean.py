"""Text for people: cleaning of untrusted text, and short forms of times and sizes.

Anything that comes from a node (names, command lines, banners, error texts) may hold escape
sequences that move a terminal's cursor, change its title or reorder the text. `clean` removes them;
command line and screens show nothing from a node that was not cleaned.
"""

from __future__ import annotations

import re
import signal
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Sequence

Code = Annotated[str, Meta(max_length=1000)]
"""A line of code from a node, some hundred characters long, bounded and untrusted like `Text`."""
Text = Annotated[str, Meta(max_length=4096)]
"""Text from a node: bounded, and untrusted until it has passed `clean`."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A non-negative number from a node: bytes, processes, events."""

SAID = "the node says: "
"""Prefix of a fix in a node's own words."""

SAYS = "the capture says: "
"""Prefix of advice and conclusions in a file's own words."""

AS_ROOT = "sudo hangtop"
"""A fix: run hangtop as root here; see `from_afar`."""

ELLIPSIS = "…"

_OWNS = {
    "its": "their",
    "it opens": "they open",
    "it calls": "they call",
    "it started": "they started",
    "it waits": "they wait",
    "traces it": "traces them",
}
_OWN = re.compile(rf"\b({'|'.join(_OWNS)})\b")

# ECMA-48: CSI, then OSC and the other string commands up to their terminator (or the end of the
# text), then the short escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
_PLAIN = re.compile(r"[ -~]*")
_BLANKS = re.compile(r"[ \t\r\n\v\f\x1c-\x1f\x85\u2028\u2029]+")
# Cc control, Cf format (bidirectional overrides, zero width), Cs lone surrogates, Co private use.
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co"})
_MAX_MARKS = 2
_HIDDEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
"""Letters and marks that look like nothing, or like a blank."""


def is_plain(text: str) -> bool:
    """Return whether a terminal shows every character of a text, in its order, on one line."""
    return text.isprintable() and (text.isascii() or _HIDDEN.search(text) is None)


def clean(text: str, limit: int = 400) -> str:
    """Return ``text`` as one harmless line of at most ``limit`` characters.

    Escape sequences, control and formatting characters (Unicode categories Cc, Cf, Cs, Co) are
    removed; line breaks and runs of blanks of any kind become one blank; combining marks beyond two
    on one character are removed, and characters unknown to this Python's Unicode become U+FFFD. An
    ellipsis at the end shows that text was cut off.
    """
    # Bounded before the work, because a node may send megabytes.
    text = text[: limit * 4 + 400]
    if not _PLAIN.fullmatch(text):
        text = _BLANKS.sub(" ", _HIDDEN.sub("", _ESCAPES.sub("", text)))
        text = _BLANKS.sub(" ", "".join(_visible(text)))  # blanks may have come together
    return shorten(text.strip(), limit)


def _visible(text: str) -> list[str]:
    kept: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        if category in _DROPPED:
            continue
        if category == "Zs":
            char = " "
        elif category == "Cn":
            char = "\ufffd"
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= _MAX_MARKS:
            kept.append(char)
    return kept


def shorten(text: str, limit: int) -> str:
    """Cut ``text`` at its end to at most ``limit`` characters, the last one an ellipsis."""
    if len(text) <= limit:
        return text
    return text[: max(limit - 1, 0)].rstrip() + ELLIPSIS if limit > 0 else ""


def shorten_middle(text: str, limit: int) -> str:
    """Cut ``text`` in its middle: for host names and keys, which differ at both ends."""
    if len(text) <= limit:
        return text
    if limit <= 1:
        return ELLIPSIS[:limit]
    tail = (limit - 1) // 2
    return text[: limit - 1 - tail] + ELLIPSIS + (text[-tail:] if tail else "")


def shorten_path(path: str, limit: int) -> str:
    """Cut folders from the left of ``path`` and keep the file name, which matters most."""
    if len(path) <= limit:
        return path
    parts = path.split("/")
    while len(parts) > 1:
        parts.pop(0)
        short = f"{ELLIPSIS}/{'/'.join(parts)}"
        if len(short) <= limit:
            return short
    return shorten_middle(parts[-1], limit)


def duration(seconds: float | None) -> str:
    """Write a time span for people.

    ``0.4 s`` and ``12 s`` below a minute, ``3:12`` below an hour, ``1 h 04 m`` below a day, then
    ``2 d 03 h``; ``?`` when unknown. Negative spans count as 0.
    """
    if seconds is None or not abs(seconds) < 1e15:
        return "?"
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s" if seconds >= 0.05 else "0 s"
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def size(count: float | None) -> str:
    """Write a number of bytes for people, in powers of 1024: ``17 B``, ``1.5 MiB``."""
    if count is None:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1023.5 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"


_VERBS = {"is": "are", "has": "have", "was": "were", "does": "do"}


def of_several(text: str) -> str:
    """Turn a singular predicate into plural: `has lost its GPU` becomes `have lost their GPU`."""
    verb, _, predicate = text.replace("and is a zombie", "and are zombies").partition(" ")
    verb = _VERBS.get(verb) or verb.removesuffix("s")
    return _OWN.sub(lambda match: _OWNS[match[0]], f"{verb} {predicate}".strip())


def from_afar(fix: str) -> str:
    """Rewrite a fix for another node: an option makes hangtop root there."""
    return fix.replace(AS_ROOT, "hangtop --sudo")


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Write ``1 rank``, ``4 ranks``; ``nouns`` where an s does not make the plural."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL` for 9; `signal 99` for an unknown one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(code: int) -> str:
    """Return `exited with status 1`; for a negative code `was killed by SIGKILL`."""
    return f"exited with status {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


def utc(at: float) -> str:
    """Return a time, in seconds since the epoch, as JSON has it: `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def name_pids(pids: Sequence[int]) -> str:
    """Return `pid 7` or `pids 7, 9`; for many only the first: `pids 7, 9, 11, 12 and 60 more`."""
    if len(pids) == 1:
        return f"pid {pids[0]}"
    shown = ", ".join(str(pid) for pid in pids[:8])
    return f"pids {shown}" + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
