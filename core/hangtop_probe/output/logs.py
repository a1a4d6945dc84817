"""Read bounded windows of the files that ranks and launchers print to.

These are: targets of descriptor 1 or 2 of a process, through /proc/PID/fd; files that a program
like tee writes behind them; such files that were renamed since the last reading; outputs of
processes of the table that have exited; and names that differ from one of these in numbers only, as
those of other ranks. Only regular files are opened for reading, nothing is ever written, and a file
system that does not respond blocks only a helper thread.
"""

from __future__ import annotations

import os
import re
import stat as stat_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..files import pipelines
from ..proc import procfs
from ..secrets import mask
from ..wire.guard import Guard, Hanging
from ..wire.requests import Message, Request, clock, failure, pids_of

if TYPE_CHECKING:
    from ..node import permission
    from ..table.table import Table

    _Output = Tuple[int, Optional[int], int]
    """Pid, start time and descriptor."""

WINDOW, MAX_WINDOW = 1 << 16, 1 << 20
"""Bytes sent from the end of a file: default and maximum."""
MAX_FILES = 64
"""Most files of one request."""
MAX_GIVEN = 4096
"""Most files and descriptors whose last answer is remembered."""
MAX_NAMES = 10_000
"""Most names of a directory that are searched for a renamed file."""
MARK = 256
"""Bytes before the end of the last window that are compared the next time: they differ in a file
that was truncated and has grown beyond its old size since, unless all its lines are alike."""
_NUMBER = re.compile(r"\d+")
SECONDS = 3.0
"""Time limit for reading a file."""


class Window(NamedTuple):
    """A part of a file."""

    inode: str
    size: int
    changed: float
    start: int
    data: Optional[bytes]
    """None where nothing is new."""
    cut: bool
    """Whether the file was truncated below the size read before, even if it has grown again."""
    mark: bytes = b""
    """The last bytes of the file, `MARK` at most."""


class Logs:
    """Answers `log`."""

    def __init__(self, processes: Table, rights: permission.Rights) -> None:
        self._table = processes
        self._rights = rights
        self._guard = Guard(4)
        self._given: Dict[Tuple[Any, ...], Message] = {}
        """The last answer for a file and descriptor, without its text."""
        self._marks: Dict[str, Tuple[int, bytes]] = {}
        """Size of a file at the last reading, and the bytes before that end, by inode."""
        self._led: Dict[_Output, Dict[str, str]] = {}
        """Files that a descriptor led to: path by inode."""

    def handle(self, request: Request) -> Message:
        """Send a piece for every file, and for every further descriptor that leads to it.

        With ``news``, pieces that would repeat the last answer are left out.
        """
        message = request.message
        size = message.get("window")
        window = min(size, MAX_WINDOW) if isinstance(size, int) and size > 0 else WINDOW
        since = message.get("since")
        since = since if isinstance(since, dict) else {}
        told: Set[str] = set()
        for pid in pids_of(message):
            stat = procfs.read_stat(pid)
            start = stat.start if stat else None
            for fd in (2, 1):
                self._handle_output(request, (pid, start, fd), window, since, told)
        self._handle_paths(request, window, since, told)
        return {"files": len(told)}

    def _handle_output(
        self, request: Request, key: _Output, window: int, since: Dict[str, Any], told: Set[str]
    ) -> None:
        """Send the file a descriptor leads to, and before it the renamed file it led to before."""
        pid, start, fd = key
        pieces = [
            (self._piece(one.link, one.path, window, since, told, True), one.path)
            for one in _files(pid, fd)
        ]
        for inode, path in self._left(pieces, key):
            if inode in since and inode not in told:
                rest = self._renamed(pid, inode, path, window, since, told)
                self._give(request, rest, pid, fd, start)
        for piece, _ in pieces:
            self._give(request, piece, pid, fd, start)

    def _handle_paths(
        self, request: Request, window: int, since: Dict[str, Any], told: Set[str]
    ) -> None:
        """Send the requested files that are, except for numbers, outputs of known processes."""
        paths = request.message.get("paths") or []
        # An immediate copy: the table changes meanwhile.
        known = tuple(self._table.outputs.items()) if paths else ()
        owners = {_NUMBER.sub("", one): uid for one, uid in known}
        for path in paths:
            uid = owners.get(_NUMBER.sub("", path)) if isinstance(path, str) else None
            if uid is not None and self._rights.uid in (0, uid):
                piece = self._piece(path, path, window, since, told, False, uid)
                self._give(request, piece, None, None, None)

    def _left(
        self, some: List[Tuple[Optional[Message], str]], key: _Output
    ) -> List[Tuple[str, str]]:
        """Return inode and path of the files that a descriptor led to before and no longer does."""
        led = {piece["inode"]: path for piece, path in some if piece and "inode" in piece}
        before = self._led.get(key, {})
        if led:
            if len(self._led) > MAX_GIVEN:
                self._led.clear()
            self._led[key] = led
        return [one for one in before.items() if led and one[0] not in led]

    def _renamed(
        self,
        pid: int,
        inode: str,
        path: str,
        window: int,
        since: Dict[str, Any],
        told: Set[str],
    ) -> Optional[Message]:
        """Read the end of a file that log rotation has renamed within its directory.

        Root only reads files of the user who runs the program, since the inode of a deleted file
        may be reused.
        """
        folder = os.path.dirname(path)
        number = int(inode.partition(":")[2])

        def find() -> Tuple[Optional[str], int]:
            with os.scandir("/proc/%d/root%s" % (pid, folder)) as names:
                some = islice(names, MAX_NAMES)
                name = next((one.name for one in some if one.inode() == number), None)
            return name, os.stat("/proc/%d" % pid).st_uid

        try:
            name, uid = self._guard.call(find, SECONDS)
        except (Hanging, OSError):
            return None
        if name is None:
            return None
        path = os.path.join(folder, name)
        here, own = "/proc/%d/root%s" % (pid, path), None if self._rights.uid else uid
        piece = self._piece(here, path, window, since, told, False, own)
        return piece if piece is not None and piece.get("inode") == inode else None

    def _give(
        self,
        request: Request,
        piece: Optional[Message],
        pid: Optional[int],
        fd: Optional[int],
        start: Optional[int],
    ) -> None:
        if piece is not None:
            piece.update(pid=pid, fd=fd)
            if not self._is_known(request, piece, start):
                request.give(piece)

    def _is_known(self, request: Request, piece: Message, start: Optional[int]) -> bool:
        """Whether the head has this file, and the piece repeats the last answer."""
        inode, since = piece.get("inode"), request.message.get("since")
        if inode is None:
            return False
        if len(self._given) > MAX_GIVEN:
            self._given.clear()
        said = {key: value for key, value in piece.items() if key not in ("at", "text", "start")}
        key = (inode, piece["pid"], start, piece["fd"])
        before, self._given[key] = self._given.get(key), said
        news = "text" in piece or not isinstance(since, dict) or inode not in since
        return bool(request.message.get("news")) and before == said and not news

    def _piece(
        self,
        path: str,
        target: str,
        window: int,
        since: Dict[str, Any],
        told: Set[str],
        linked: bool,
        uid: Optional[int] = None,
    ) -> Optional[Message]:
        piece: Message = {"at": clock(), "path": mask.mask_path(target)}
        try:
            found = self._guard.call(
                lambda: read(path, window, since, told, linked, uid, self._marks), SECONDS
            )
        except Hanging as error:
            return dict(piece, failure=failure("timeout", "its file system: %s" % error))
        except OSError as error:
            text = os.strerror(error.errno or 0)
            return dict(piece, failure=failure("denied", "%s: %s" % (piece["path"], text)))
        if found is None:
            return None
        if found.mark:
            if len(self._marks) > MAX_GIVEN:
                self._marks.clear()
            self._marks[found.inode] = (found.size, found.mark)
        piece.update(inode=found.inode, size=found.size, changed=found.changed, cut=found.cut)
        piece["start"] = found.start
        if found.data is not None:
            text = found.data.decode("utf-8", "replace")
            piece["text"] = mask.mask_text(text)
        return piece


def _files(pid: int, fd: int) -> Sequence[pipelines.Behind]:
    """Return the file a descriptor leads to, or the files behind its pipe."""
    link = "/proc/%d/fd/%d" % (pid, fd)
    target = procfs.link(link) or ""
    if target.startswith("pipe:"):
        return pipelines.behind(pid, target)
    return [pipelines.Behind(target, link)] if target.startswith("/") else []


def read(
    path: str,
    window: int,
    since: Dict[str, Any],
    told: Set[str],
    linked: bool,
    uid: Optional[int],
    marks: Optional[Dict[str, Tuple[int, bytes]]] = None,
) -> Optional[Window]:
    """Return the end of a regular file; None for anything else, and beyond `MAX_FILES`.

    The type is checked before the file is opened: opening a FIFO or a device has side effects.

    Args:
        path: a link of /proc/PID/fd, or a path.
        window: bytes at most.
        since: bytes of a file that were read before, by inode.
        told: inodes that this request has read, which are not read twice.
        linked: whether the path is a link of /proc; other symbolic links are refused.
        uid: the required owner; None for any.
        marks: size of a file at its last reading, and the bytes before that end, by inode.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if linked else os.O_NOFOLLOW))
    try:
        info = os.fstat(handle)
        if not stat_module.S_ISREG(info.st_mode) or (uid is not None and info.st_uid != uid):
            return None
        if linked and not _is_opened(path.replace("/fd/", "/fdinfo/"), handle):
            return None
        inode = "%d:%d" % (info.st_dev, info.st_ino)
        first = inode not in told
        if first and len(told) >= MAX_FILES:
            return None
        told.add(inode)
        size, mark = (marks or {}).get(inode, (0, b""))
        start, cut = _news(handle, info.st_size, since.get(inode), (size, mark), window)
        data = _bytes(handle, start, info.st_size) if first else None
    finally:
        os.close(handle)
    goes_on = not cut and start == size
    mark = ((mark if goes_on else b"") + data)[-MARK:] if data is not None else b""
    return Window(inode, info.st_size, round(info.st_mtime, 2), start, data, cut, mark)


def _news(
    handle: int, end: int, before: object, known: Tuple[int, bytes], window: int
) -> Tuple[int, bool]:
    """Return the offset to read from in a file of which ``before`` bytes were read, and whether it
    was truncated."""
    read_to = before if isinstance(before, int) and before >= 0 else None
    size, mark = known
    cut = read_to is not None and end < read_to
    if mark and read_to == size < end:
        cut = _bytes(handle, size - len(mark), size) != mark
    return max(end - window, 0 if read_to is None or cut else read_to), cut


def _is_opened(path: str, handle: int) -> bool:
    """Whether a descriptor was opened for access, not with O_PATH, which needs no read permission.

    With O_PATH (open(2)) a program could make root read a file that it may not read. Mount id and
    inode (fdinfo, since Linux 5.14) show whether it is still the file opened here.
    """
    there = procfs.parse_pairs(procfs.read(path) or b"")
    here = procfs.parse_pairs(procfs.read("/proc/self/fdinfo/%d" % handle) or b"")
    same = all(there.get(key) == here.get(key) for key in ("mnt_id", "ino"))
    return same and not int(there.get("flags") or "0", 8) & os.O_PATH


def _bytes(handle: int, start: int, end: int) -> Optional[bytes]:
    if start >= end:
        return None
    fd = os.open("/proc/self/fd/%d" % handle, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts: List[bytes] = []
        at = start
        while at < end:
            part = os.pread(fd, end - at, at)
            if not part:
                break
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
