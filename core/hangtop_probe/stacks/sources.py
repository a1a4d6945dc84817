"""Read the line of code of a frame, only where reading cannot hang.

A file on a network file system with a dead server would hang the probe as it hangs the rank, so
lines are read from local file systems only (`localpath`).
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..files import localpath
from ..proc import procfs
from ..secrets import mask
from . import blocks, rankflags, worklists

if TYPE_CHECKING:
    _Parsed = Tuple[List[blocks.Statement], List[bytes], Dict[str, str]]

MAX_FILE = 2 << 20
MAX_LINE = 200
NEWER = "  (as it is now: this file is newer than the process)"
"""Suffix of a line whose file may have been edited since the process read it."""
_MAX_READ = 2000
"""Bytes of a line that are searched for secrets, before it is cut."""
_CACHED_LINES = 2000
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python")
_cache: Dict[Tuple[str, int, int, int], Optional[str]] = {}
_MAX_OWN = 8
"""Innermost own frames whose surrounding blocks are reported."""
_MAX_HEAD = 120
_INLINE = ("comp>", "<genexpr>")
"""Endings of the names of functions that are loops in one line."""
_OF_RANK = re.compile("rank|main|master|leader|chief|primary|process|procid|zero|root", re.I)
_HANDLER = re.compile(
    r"def \w+\((?:self, |cls, )?_*(?:s|n|_|code|sig\w*|num\w*)\b[^,]*, _*(?:f|frame|frm|stack)\b"
)
"""The head of a signal handler, by the usual names of its arguments: `(signum, frame)`."""
_HOW = ("", "else: ", "past: ", "", "at: ")
_COMMENT = re.compile(rb"\s#[^'\"]*$")
_STARTS = re.compile(rb"^[^#\n]*\b(?:batch_)?i(?:send|recv)(?:_irecv)?\s*[(,]", re.M)
"""Sends and receives that return handles, which `x.wait()` waits on."""
_LATER = re.compile(rb"async_op\s*=\s*True")
_SHORT = re.compile(r"\b(and|or|if)\b")
_CACHED_FILES = 16
_files: Dict[Tuple[str, int, int], _Parsed] = {}
"""Statements, lines and rank flags of own files; a program has few of them on its stacks."""
_reading = threading.Lock()
"""Held while a file is read: stacks of several processes mostly have the same files."""


def shorten(path: str) -> str:
    """Return ``path`` relative to its package root, as py-spy shortens it."""
    for mark in ("/site-packages/", "/dist-packages/"):
        at = path.rfind(mark)
        if at >= 0:
            return path[at + len(mark) :]
    return os.path.basename(path) if path.startswith("/") else path


def is_library(file: str) -> bool:
    """Whether a frame's file is an installed package, the standard library or frozen."""
    return file.startswith("<") or any(mark in file for mark in _LIBRARY)


def add(pid: int, rows: Sequence[List[Any]]) -> None:
    """Put source lines into the innermost Python frame, the innermost own one and comprehensions.

    The next two own frames get theirs where it has a call within a call. Own frames also get the
    loops and conditions around their line.
    """
    own = [row for row in rows if not row[4] and not is_library(row[1])][:_MAX_OWN]
    mounts = lru_cache(1)(procfs.mounts)
    for row, is_caller in _chosen(rows, own):
        if row[5] is None and row[1].startswith("/"):
            row[5] = line(pid, row[1], row[3], mounts(str(pid)))
            if is_caller and str(row[5]).count("(") < 2:
                row[5] = None
    for row in own:
        if row[1].startswith("/"):
            row[6:] = around(pid, row[1], row[3], mounts(str(pid))) or (None, None)


def _chosen(rows: Sequence[List[Any]], own: List[List[Any]]) -> List[Tuple[List[Any], bool]]:
    """Return the frames whose line is wanted, each with whether it is only a caller."""
    chosen = [row for row in rows if not row[4]][:1] + own[:1]
    chosen += [row for row in own if row[0].endswith(_INLINE)]
    callers = [(row, True) for row in own[1:3] if row not in chosen]
    return [(row, False) for row in chosen] + callers


def around(
    pid: int, path: str, number: int, mounts: Sequence[procfs.Mount]
) -> Optional[Tuple[List[Tuple[int, str]], List[Tuple[int, str]]]]:
    """Return line and text of the blocks around line ``number`` of ``path``, outermost first.

    The first list has loops and conditions: `for x in y:`, `if x:`, `else: if x:` in its `else`,
    `past: if x: return`. If they may depend on the rank, also `@x`, and `at: x and y()` for the
    line itself; the head of a signal handler before them; `made: x = isend(y)` where such handles
    are waited on; `while x:  # ends` where the loop terminates (`worklists`). The second list has
    `with x:`, `except x:`, `finally:`, and the first statement of each earlier `try`. None where
    the file cannot be read, or is newer than the process.
    """
    path_here = localpath.of(pid, path, mounts) if number > 0 else None
    found = _of_file(path_here, blocks.MAX_FILE, _files, (), _statements) if path_here else None
    if found is None or found[1] > _began(pid, found[1]) + 1.0:
        return None
    return _around(found[0], number)


def _around(parsed: _Parsed, number: int) -> Tuple[List[Tuple[int, str]], List[Tuple[int, str]]]:
    statements, lines, flags = parsed
    both: Tuple[List[Tuple[int, str]], List[Tuple[int, str]]] = [], []
    own = [one[:2] for one in statements if one.first <= number <= one.last]
    for first, last, how in blocks.around(statements, number) + [(*one, 4) for one in own[:1]]:
        text = _flagged(_head(lines[first - 1 : last]), how, flags)
        if text[:6] == "while " and worklists.ends(statements, lines, first):
            text += "  # ends"
        if (how or 0) < 3 or (_OF_RANK.search(text) and (how != 4 or _SHORT.search(text))):
            both[how is None].append((first, _HOW[how or 0] + text))
    if b".wait(" in b"".join(lines[number - 1 : number]):
        both[0].extend(_made(statements, lines, number))
    return _handler(statements, lines, number) + both[0], both[1]


def _handler(
    statements: List[blocks.Statement], lines: List[bytes], number: int
) -> List[Tuple[int, str]]:
    """Return the head of the function around a line if it is a signal handler."""
    head = _function(statements, number)
    text = _head(lines[head.first - 1 : head.last]) if head else ""
    return [(head.first, text)] if head and _HANDLER.search(text) else []


def _flagged(text: str, how: Optional[int], flags: Dict[str, str]) -> str:
    """Append to a condition on a name the statement that makes it depend on the rank."""
    if (text[:2] not in ("if", "el") and how != 4) or _OF_RANK.search(text):
        return text
    names = re.findall(r"[\w.]+", text)
    keys = (key for name in names for key in (rankflags.EXACT + name, name.rpartition(".")[2]))
    return text + next(("  # " + flags[key] for key in keys if key in flags), "")


def _made(
    statements: List[blocks.Statement], lines: List[bytes], number: int
) -> List[Tuple[int, str]]:
    """Return the last send or receive started in the same class, or else anywhere in the file.

    Empty where collectives are started asynchronously, too.
    """
    tops = [one.first for one in statements if not one.indent]
    first = max([1] + [one for one in tops if one <= number])
    last = min([len(lines) + 1] + [one for one in tops if one > number])
    for low, high in ((first, last), (1, len(lines) + 1)):
        text = b"\n".join(lines[low - 1 : high - 1])
        starts = list(_STARTS.finditer(text))
        if _LATER.search(text):
            break
        if starts:
            at = low + text.count(b"\n", 0, starts[-1].start())
            return [(at, "made: " + _head([lines[at - 1]]))]
    return []


def _function(lines: List[blocks.Statement], number: int) -> Optional[blocks.Statement]:
    """Return the head of the function around a line."""
    above = [statement for statement in lines if statement.first <= number]
    indent = above[-1].indent if above else 0
    for statement in reversed(above):
        if statement.indent < indent:
            if statement.word == b"def":
                return statement
            indent = statement.indent
    return None


def _statements(source: bytes) -> _Parsed:
    lines = source.split(b"\n")
    statements = blocks.statements(source)
    flags = rankflags.of(statements, lines)
    return statements, lines, {procfs.text(name): _head([flags[name]]) for name in flags}


def _head(lines: List[bytes]) -> str:
    pieces = (_COMMENT.sub(b"", line[:_MAX_READ]) for line in lines[:_MAX_HEAD])
    text = " ".join(procfs.text(line).strip() for line in pieces)
    return mask.mask_text(text)[:_MAX_HEAD]


def line(pid: int, path: str, number: int, mounts: Sequence[procfs.Mount]) -> Optional[str]:
    """Return line ``number`` of ``path`` as ``pid`` sees it, or None."""
    path_here = localpath.of(pid, path, mounts) if number > 0 else None
    found = _line(path_here, number) if path_here else None
    if found is None:
        return None
    text, changed = found
    return text + NEWER if changed > _began(pid, changed) + 1.0 else text


def _began(pid: int, unknown: float) -> float:
    about = procfs.read_stat(pid)
    return unknown if about is None else time.time() - procfs.age(about)


def _line(path: str, number: int) -> Optional[Tuple[str, float]]:
    """Return a line of a file, and the time of the file's last change."""

    def cut(data: bytes) -> Optional[str]:
        lines = data.split(b"\n", number)
        line = procfs.text(lines[number - 1][:_MAX_READ]) if number <= len(lines) else ""
        return mask.mask_text(line.strip())[:MAX_LINE] or None

    found = _of_file(path, MAX_FILE, _cache, (number,), cut)
    return found if found is not None and found[0] is not None else None


def _of_file(
    path: str, size: int, kept: Dict[Any, Any], more: Tuple[int, ...], make: Callable[[bytes], Any]
) -> Optional[Tuple[Any, float]]:
    """Return ``make`` of a file's bytes, cached until the file changes, and the time of change."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > size:
            return None
        key = (path, info.st_mtime_ns, info.st_size, *more)
        with _reading:
            if key not in kept:
                while len(kept) >= (_CACHED_LINES if more else _CACHED_FILES):
                    del kept[next(iter(kept))]
                with os.fdopen(os.dup(fd), "rb") as file:
                    kept[key] = make(file.read(size))
            return kept[key], info.st_mtime
    except OSError:
        return None
    finally:
        os.close(fd)
