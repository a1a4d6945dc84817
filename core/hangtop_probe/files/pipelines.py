"""Find the files behind a pipe: `torchrun train.py 2>&1 | tee train.log` prints into train.log.

Readers of the pipe are searched among the processes of the same session, as a shell starts those of
one line. Their outputs show where lines continue; for tee, all files that it writes count.
"""

from __future__ import annotations

import os
import stat as stat_module
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..proc import procfs

ANCESTORS = 8
"""Most ancestors whose sessions count: torchrun starts its ranks in sessions of their own."""
PIPES = 4
"""Most pipes in a row, as in `train | ts | tee train.log`."""
DESCRIPTORS = 64
"""Most descriptors read of one process."""
AGAIN_S = 60.0
"""Seconds for which a result is kept."""
KEPT = 512
"""Most pipes whose result is kept."""


class Behind(NamedTuple):
    """A file that the reader of a pipe writes to."""

    path: str
    link: str
    """The link in /proc by which it is opened."""


_found: Dict[str, Tuple[float, Tuple[Behind, ...]]] = {}


def behind(pid: int, pipe: str) -> Tuple[Behind, ...]:
    """Return the files behind a pipe, `pipe:[4711]`, to which a process writes."""
    now = time.monotonic()
    known = _found.get(pipe)
    if known is None or now - known[0] > AGAIN_S:
        if len(_found) >= KEPT:
            _found.clear()
        known = _found[pipe] = now, tuple(_search(_line_of(pid), pipe))
    return known[1]


def _line_of(pid: int) -> List[int]:
    """Return a process and its ancestors, `ANCESTORS` in all."""
    found: List[int] = []
    for _ in range(ANCESTORS):
        stat = procfs.read_stat(pid)
        if stat is None or pid <= 1:
            break
        found.append(pid)
        pid = stat.ppid
    return found


def _session(pid: int) -> Optional[int]:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _search(above: List[int], pipe: str) -> Iterator[Behind]:
    sessions = {_session(pid) for pid in above} - {None}
    # A program that reads from its own child prints something else.
    near = set(procfs.numbers(procfs.PROC)) - set(above)
    tables = {pid: _links(pid) for pid in sorted(near) if _session(pid) in sessions}
    pipes: List[str] = [pipe]
    for target in pipes:
        for pid, links in tables.items():
            if any(link == target and _mode(pid, fd) == os.O_RDONLY for fd, link in links):
                for link, opened in _outputs(pid, links):
                    if link.startswith("pipe:") and link not in pipes and len(pipes) < PIPES:
                        pipes.append(link)
                    if link.startswith("/") and _is_file(opened):
                        yield Behind(link, opened)


def _outputs(pid: int, links: List[Tuple[int, str]]) -> Iterator[Behind]:
    """Yield the outputs of a process; for tee, all files that it has open for writing."""
    stat = procfs.read_stat(pid)
    tee = stat is not None and stat.comm == "tee"
    for fd, link in links:
        if fd > 0 and (fd <= 2 or tee) and _mode(pid, fd) != os.O_RDONLY:
            yield Behind(link, "/proc/%d/fd/%d" % (pid, fd))


def _links(pid: int) -> List[Tuple[int, str]]:
    base = "/proc/%d/fd" % pid
    found = []
    for fd in sorted(procfs.numbers(base))[:DESCRIPTORS]:
        link = procfs.link("%s/%d" % (base, fd))
        if link is not None:
            found.append((fd, link))
    return found


def _mode(pid: int, fd: int) -> Optional[int]:
    """Return the access mode of a descriptor: O_RDONLY, O_WRONLY or O_RDWR (/proc/PID/fdinfo)."""
    data = procfs.read("/proc/%d/fdinfo/%d" % (pid, fd)) or b""
    value = procfs.parse_pairs(data).get("flags", "")
    try:
        return int(value, 8) & os.O_ACCMODE
    except ValueError:
        return None


def _is_file(link: str) -> bool:
    """Whether a link leads to a regular file that has a name."""
    try:
        info = os.stat(link)
        return stat_module.S_ISREG(info.st_mode) and info.st_nlink > 0
    except OSError:
        return False
