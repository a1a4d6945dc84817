"""The `numerics` request: what the files of ranks say that look for inf and nan.

Ranks of `hangtop run --detect-overflow` write them, as docs/numerics.md says. The file is read by
way of the rank's descriptor, so that it is the right one also inside a container.
"""

from __future__ import annotations

import functools
import json
import os
import stat as stat_module
from typing import Any, Dict, List, Optional, Tuple

from ..node import permission
from ..proc import procfs
from ..wire.guard import Guard, Hanging
from ..wire.requests import Message, Request, clock, failure, pids_of

SCHEMA = "hangtop.numerics/1"
MAX_READ = 64 << 20
"""Bytes of one file: batches that are traced are long, and not what is looked for."""
SECONDS = 10.0
"""Time in which a file must be read: a file system may not answer."""
MAX_LINE = 4 << 20
MAX_LINES = 16
MAX_LINES_READ = 1 << 20
MAX_FRAMES = 64
MAX_TEXT = 400
"""Characters of one text: names of modules and files."""
_WANTED = (b'{"type":"first"', b'{"type":"note"')
_GUARD = Guard(4)
_SEEN = b'{"type":"seen"'
_NEVER = "it has no file for that: no batch is over yet, or the rank was not started with "
_NEVER += "`hangtop run --detect-overflow`"


def handle(request: Request, rights: permission.Rights) -> Message:
    """Answer `numerics`: a piece per process."""
    pids = pids_of(request.message)
    for pid in pids:
        request.check()
        request.give(piece(pid, rights))
    return {"pids": len(pids)}


def piece(pid: int, rights: permission.Rights) -> Message:
    """Return what one process has written, or why there is nothing."""
    stat = procfs.read_stat(pid)
    found: Message = {"pid": pid, "at": clock(), "start": getattr(stat, "start", None)}
    try:
        fds = os.listdir("/proc/%d/fd" % pid)
    except PermissionError:
        return dict(found, failure=failure("denied", *permission.why_denied(pid, rights)))
    except OSError:
        return dict(found, failure=failure("gone", "the process is gone"))
    status = procfs.parse_pairs(procfs.read("/proc/%d/status" % pid) or b"")
    # Its name has the pid by which the process knows itself: the innermost of a container.
    name = "-%s.jsonl" % (status.get("NSpid") or str(pid)).split()[-1]
    for fd in fds:
        link = "/proc/%d/fd/%s" % (pid, fd)
        path = procfs.link(link) or ""
        if path.endswith(name) and "/numerics/" in path:
            found["path"] = path
            try:
                return dict(found, **_GUARD.call(functools.partial(_read, link), SECONDS))
            except Hanging as error:
                return dict(found, failure=failure("timeout", "its file system: %s" % error))
            except (OSError, ValueError) as error:
                return dict(found, failure=failure("error", str(error)[:200]))
    return dict(found, failure=failure("missing", _NEVER))


def _read(link: str) -> Dict[str, Any]:
    # Not blocking, and looked at first: what has that name may be a pipe.
    handle = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat_module.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("the file is none of this version")
        return _told(file)


def _told(file: Any) -> Dict[str, Any]:
    """Return header, lines and the last batch of a file; raise ValueError for another one."""
    header = _loads(file.readline(MAX_LINE))
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise ValueError("the file is none of this version")
    lines: List[Any] = []
    seen: Optional[bytes] = None
    cut = False
    for _ in range(MAX_LINES_READ):
        cut = file.tell() >= MAX_READ
        line = b"" if cut else file.readline(MAX_LINE)
        if not line.endswith(b"\n"):  # the end, or a line that is being written
            break
        if line.startswith(_SEEN):
            seen = line
        elif line.startswith(_WANTED) and len(lines) < MAX_LINES:
            lines.append(bounded(_loads(line)))
    else:
        cut = True
    found = {"header": bounded(header), "lines": lines, "cut": cut}
    if seen is not None:
        found["seen"] = bounded(_loads(seen))
    return found


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line, parse_int=_whole)
    except RecursionError:
        raise ValueError("a line is nested too deeply") from None


def _whole(digits: str) -> Optional[int]:
    """Return a number; to read one of a million digits would take minutes."""
    return int(digits) if len(digits) < 20 else None


def bounded(value: Any, depth: int = 6) -> Any:
    """Return a value with what is too long cut: of frames the last ones."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, (list, dict)) and not depth:
        return None
    if isinstance(value, list):
        return [bounded(one, depth - 1) for one in value[-MAX_FRAMES:]]
    if isinstance(value, dict):
        pairs: List[Tuple[str, Any]] = list(value.items())[:MAX_FRAMES]
        return {key[:MAX_TEXT]: bounded(one, depth - 1) for key, one in pairs}
    return value
