"""Changes to good input, such as a broken node, a broken file or a stranger would make.

JSON, alone or a line each, is changed within its structure; everything else as lines, words and
bytes. A change is three numbers, so that hypothesis can make the list of them smaller.
"""

from __future__ import annotations

import copy
import json
from typing import Any

Change = tuple[int, int, int]
"""Where, what, and with which of the odd things."""

WORDS = [
    b"", b"\0", b"\x1b[2J", b"\x1b]0;x\x07", b"\r", b"\xff\xfe", b"\xed\xa0\x80", b"\xc2\x9b1m",
    "\u202e\u2028\u200b".encode(), "²³".encode(), "٣".encode(), "é".encode(), b"-1", b"0", b"1e999",
    b"9" * 20, b"9" * 5000, b"0x" + b"f" * 40, b"NaN", b"-", b" ", b"\t", b"\n", b"\n\n", b":", b"|",
    b"[", b"]", b"{", b"}", b"(", b")", b"<", b">", b",", b"/", b"%", b"'", b'"', b"\\", b"..", b"../",
    b"[" * 3000, b'{"a":' * 3000, b"A" * 3000, b"1-999999999", b"[0-9999999]", b"@all", b"+0", b"_4",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, -(2**63), 0.5, -0.0,
    1e308, 1e11, "", "0", "-1", "1", "9" * 20, "9" * 5000, "²", "٣", "\ud800", "\0", "\x1b[2J", "\u202e",
    "x" * 5000, "/../../etc", "a\nb", "nan", [], {}, [[]], [None], [1, 2], {"": None}, {"1": {}},
    {"a": []}, [["a", "b", "c", 1]], "1,2", "[]", float("inf"), float("nan"), "0x1", "R", "Z",
]  # fmt: skip


def changed(data: bytes, changes: list[Change]) -> bytes:
    """Make the changes, one after the other."""
    for where, what, which in changes:
        data = (
            _within(data, where, what // 8, which) if what % 8 else _raw(data, where, what, which)
        )
    return data


def _within(data: bytes, where: int, what: int, which: int) -> bytes:
    """Change what is JSON as JSON: the whole, or one line of it."""
    start = data.lstrip()[:1]
    if start not in (b"{", b"["):
        return _raw(data, where, what, which)
    lines = data.split(b"\n")
    number = where % len(lines)
    try:
        if len(lines) == 1 or lines[1][:1] not in (start, b""):
            return _dumped(_value(json.loads(data), where, what, which))
        lines[number] = _dumped(_value(json.loads(lines[number]), where // 7, what, which))
    except (ValueError, RecursionError, UnicodeEncodeError):
        return _raw(data, where, what, which)
    return b"\n".join(lines)


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _value(whole: Any, where: int, what: int, which: int) -> Any:
    places: list[tuple[Any, Any]] = []
    left = [whole] if isinstance(whole, dict | list) else []
    while left and len(places) < 50_000:
        holder = left.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        places += [(holder, key) for key in keys]
        left += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    if not places:
        return VALUES[which % len(VALUES)]
    holder, key = places[where % len(places)]
    other_holder, other = places[which % len(places)]
    way = what % 6
    if way == 0:
        del holder[key]
    elif way == 1:
        holder[key] = copy.deepcopy(other_holder[other])
    elif way == 2 and isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[:200]))
    elif way == 3 and isinstance(holder, dict):
        holder[str(VALUES[which % len(VALUES)])] = holder.pop(key)
    else:
        holder[key] = VALUES[which % len(VALUES)]
    return whole


def _raw(data: bytes, where: int, what: int, which: int) -> bytes:
    at, word = where % (len(data) + 1), WORDS[which % len(WORDS)]
    way = what // 8 % 7
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + word + data[at:]
    if way == 2:
        return data[:at] + data[at + which % 64 :]
    if way == 3:
        return data[:at] + bytes([which % 256]) + data[at + 1 :]
    # Words and lines of text: put another in its place, or take some twice.
    parts = data.split(b"\n" if way == 4 else b" ")
    number = where % len(parts)
    if way == 6:
        return b" ".join([*parts[:number], *parts[number:] * 2][: 4 * len(parts)])
    parts[number] = word if which % 3 else parts[which % len(parts)]
    return (b"\n" if way == 4 else b" ").join(parts)
