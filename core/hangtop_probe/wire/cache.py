"""What hangtop keeps on a node: how much it is, and removing it.

The cache of a user is one directory, see `cachedir`, with one directory per hash in it. Only what
has that layout, belongs to this user and is no symbolic link is ever removed. The same holds for
the `rooms` of a relay, which a step that was killed may have left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import cachedir, rooms

OLD = 7 * 86400
"""Seconds after its last use from which on the cache of another version is removed."""
OLD_ROOM = 600
"""Seconds after which a room is abandoned: it is only needed for a moment."""
_DAY = 86400.0
_ROOM = re.compile(os.path.basename(rooms.ROOM) + "[0-9a-f]{32}")
_ENTRY = re.compile(r"[0-9a-f]{64}|\.(?:new|old)-[A-Za-z0-9_]+")
_PLACE = (
    r"(?:(?:\.(?:new|old)-[A-Za-z0-9_]+/|hangtop_probe/)"  # the first of a boot that was killed
    r"(?:[A-Za-z0-9_]+/)?)?"
)
_FOLDER = re.compile(_PLACE + "(?:__pycache__/)?")
_FILE = re.compile(
    _PLACE + r"(?:py-spy|[A-Za-z0-9_]+\.py|__pycache__/[A-Za-z0-9_.-]+\.pyc(?:\.\d+)?)"
)
_COPIED = "copied.txt"
"""The clipboard file of the terminal app on its own machine, beside the directories."""
_MAX_TOLD = 10  # paths, of those that were left


class Entry(NamedTuple):
    """One directory of the cache that is ours, or one file."""

    path: str
    files: Tuple[str, ...]
    """Relative paths; none for a file."""
    size: int
    """Bytes."""
    used: float
    """When a probe last started from it, seconds since the epoch."""


def booted() -> Dict[str, Any]:
    """Return what the boot did on this node, `{}` where the probe was there without one."""
    try:
        told = json.loads(os.environ.get("HANGTOP_BOOT") or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _safe(base: str) -> Optional[str]:
    """Return why nothing may be done in ``base``, or None."""
    try:
        found = os.lstat(base)
    except OSError as error:
        return "%s: %s" % (base, error.strerror)
    if not stat.S_ISDIR(found.st_mode):
        return "%s is no directory" % base
    if found.st_uid != os.geteuid():
        return "%s belongs to user id %d" % (base, found.st_uid)
    return None


def look(base: str) -> Tuple[List[Entry], List[str]]:
    """Return what is ours in a cache, and the paths that are not."""
    ours, foreign = [], []
    for name in sorted(_names(base)):
        path = os.path.join(base, name)
        entry = _entry(path) if _ENTRY.fullmatch(name) or name == _COPIED else None
        if entry is not None:
            ours.append(entry)
        elif os.path.lexists(path):
            foreign.append(path)
    return ours, foreign


def _names(base: str) -> List[str]:
    try:
        return os.listdir(base)
    except OSError:
        return []


def _entry(path: str) -> Optional[Entry]:
    """Return a directory with nothing but our files in it, or the one file; else None."""
    files, size = [], 0
    copied = os.path.basename(path) == _COPIED
    try:
        top = os.lstat(path)
        usual = stat.S_ISREG(top.st_mode) if copied else stat.S_ISDIR(top.st_mode)
        if not usual or top.st_uid != os.geteuid():
            return None
        if copied:
            return Entry(path, (), top.st_blocks * 512, top.st_mtime)
        for name, found in _walk(path):
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if not own or not _FILE.fullmatch(name):
                return None
            files.append(name)
            size += found.st_blocks * 512
    except OSError:
        return None
    return Entry(path, tuple(files), size, top.st_mtime)


def _walk(path: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield the relative path and status of all below, links as links."""
    for folder, folders, names in os.walk(path):
        for name in names + [one for one in folders if os.path.islink(os.path.join(folder, one))]:
            full = os.path.join(folder, name)
            yield os.path.relpath(full, path), os.lstat(full)


def remove(entry: Entry) -> bool:
    """Remove the files that were seen, and then directories that are empty; say if all went."""
    if os.path.basename(entry.path) == _COPIED:
        _try(os.unlink, entry.path)
        return not os.path.lexists(entry.path)
    for name in entry.files:
        _try(os.unlink, os.path.join(entry.path, name))
    for folder, _, _ in os.walk(entry.path, topdown=False):
        if folder == entry.path or _FOLDER.fullmatch(os.path.relpath(folder, entry.path) + "/"):
            _try(os.rmdir, folder)
    return not os.path.lexists(entry.path)


def _try(action: Any, path: str) -> None:
    # Gone already, or filled anew by a racing boot: what matters is looked at afterwards.
    with contextlib.suppress(OSError):
        action(path)


def remove_rooms(now: float) -> int:
    """Remove old rooms of this user; return how many. No link is followed."""
    folder, removed = os.path.dirname(rooms.ROOM), 0
    for name in _names(folder):
        path = os.path.join(folder, name)
        try:
            found = os.lstat(path)
        except OSError:
            continue
        ours = _ROOM.fullmatch(name) and found.st_uid == os.geteuid()
        if ours and stat.S_ISDIR(found.st_mode) and now - found.st_mtime > OLD_ROOM:
            removed += rooms.remove_room(path)
    return removed


def clean() -> Dict[str, Any]:
    """Remove what this user has here; return what was removed, its size, and what was left."""
    return dict(_clean(), rooms=remove_rooms(time.time()))


def _clean() -> Dict[str, Any]:
    try:
        base = cachedir.cache_path()
    except cachedir.Unusable as error:
        return {"path": None, "removed": 0, "bytes": 0, "left": [], "why": str(error)}
    if not os.path.lexists(base):
        return {"path": base, "removed": 0, "bytes": 0, "left": [], "why": None}
    why = _safe(base)
    if why is not None:
        return {"path": base, "removed": 0, "bytes": 0, "left": [base], "why": why}
    ours, left = look(base)
    gone = [entry for entry in ours if remove(entry)]
    left += [entry.path for entry in ours if entry not in gone]
    if not left:
        _try(os.rmdir, base)
    return {
        "path": base,
        "removed": len(gone),
        "bytes": sum(entry.size for entry in gone),
        "left": left[:_MAX_TOLD],
        "why": "it does not look like hangtop's, or is being filled" if left else None,
    }


def facts() -> Dict[str, Any]:
    """Return where the cache is, its size, and what is free there, sizes in bytes."""
    told = booted()
    try:
        base = cachedir.cache_path()
    except cachedir.Unusable as error:
        return {"path": None, "why": str(error)}
    known: Dict[str, Any] = {"path": base, "why": told.get("why"), "entries": 0, "bytes": 0}
    if _safe(base) is None:
        ours, _ = look(base)
        known.update(entries=len(ours), bytes=sum(entry.size for entry in ours))
    try:
        where = base if os.path.isdir(base) else os.path.dirname(os.path.dirname(base))
        fs = os.statvfs(where)
        known["free"] = fs.f_bavail * fs.f_frsize
    except OSError:
        known["free"] = None
    return known


class Keeper:
    """Removes caches that no version has used for a week, and keeps the present one young."""

    def __init__(self, ending: threading.Event) -> None:
        self.removed = 0
        """Directories removed since the probe started."""
        self.looked = threading.Event()
        """Set once the cache was gone through for the first time, or need not be."""
        self._ending = ending
        told = booted()
        base, own = told.get("base"), told.get("own")
        self._base = base if isinstance(base, str) else None
        self._own = frozenset(own) if isinstance(own, list) else frozenset()

    def start(self) -> None:
        """Begin, on a thread of its own: the cache may be on a slow file server."""
        if self._base is None:
            self.looked.set()
            return
        threading.Thread(target=self._run, name="cache", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.tend(time.time())
            finally:
                self.looked.set()
            if self._ending.wait(_DAY):
                return

    def tend(self, now: float) -> None:
        """Mark what this probe uses as used, and remove what is old."""
        base = self._base
        if base is None or _safe(base) is not None:
            return
        for name in self._own:
            _try(os.utime, os.path.join(base, str(name)))
        for entry in look(base)[0]:
            name = os.path.basename(entry.path)
            old = name not in self._own and name != _COPIED and now - entry.used > OLD
            if old and remove(entry):
                self.removed += 1
        remove_rooms(now)
