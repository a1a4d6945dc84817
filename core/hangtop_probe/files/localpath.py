"""Find the path to open a file of a process here, if that cannot hang and the process may read it.

A file is on a network file system if the longest mount point above its path is one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional, Sequence, Set, Tuple

from ..proc import procfs
from . import filesystems

if TYPE_CHECKING:
    _Rights = Optional[Tuple[int, Set[int]]]
    """A user and their groups; None: our own, which the kernel checks."""


def of(pid: int, path: str, mounts: Sequence[procfs.Mount]) -> Optional[str]:
    """Return the path by which ``path`` of ``pid`` is opened here; None where that could hang."""
    mount = procfs.mount_of(path, mounts)
    root = "" if procfs.shares(pid, "mnt") else "/proc/%d/root" % pid
    if mount is None or filesystems.is_network(mount.fstype):
        return None
    return root + path if _plain(root, path, mounts, _rights(pid)) else None


def _rights(pid: int) -> _Rights:
    """Return the rights with which files are read for a process: root must not reveal other files.

    A program may give its code any file name: `compile(code, "/root/keys", "exec")`.
    """
    if os.geteuid() != 0:
        return None
    pairs = procfs.parse_pairs(procfs.read("/proc/%d/status" % pid) or b"")
    uids, gids = ([int(one) for one in pairs.get(key, "").split()] for key in ("Uid", "Gid"))
    if uids[1:2] == [0]:
        return None
    return uids[1] if uids else -1, {*gids[1:2], *map(int, pairs.get("Groups", "").split())}


def _may(path: str, rights: _Rights, bit: int) -> bool:
    """Whether a user may read (4) a file, or traverse (1) a directory."""
    if rights is None:
        return True
    try:
        info = os.lstat(path)
    except OSError:
        return False
    own = 6 if info.st_uid == rights[0] else 3 if info.st_gid in rights[1] else 0
    return bool(info.st_mode >> own & bit)


def _plain(
    root: str, path: str, mounts: Sequence[procfs.Mount], rights: _Rights, links: int = 8
) -> bool:
    """Whether no directory above leads by a symbolic link to a network file system.

    Or out of ``root``: by way of /proc/PID/root the kernel takes `/x` of a link for ours. Nor to
    what a program with those ``rights`` could not read.
    """
    current, parts = "", path.split("/")[1:]
    for number, part in enumerate(parts, 1):
        current += "/" + part
        mount = procfs.mount_of(current, mounts)
        if mount is None or filesystems.is_network(mount.fstype):
            return False
        try:
            target = os.readlink(root + current)
        except OSError:
            if not _may(root + current, rights, 4 if number == len(parts) else 1):
                return False
            continue
        if not links or (root and target.startswith("/")):
            return False
        whole = os.path.normpath(os.path.join(os.path.dirname(current), target))
        if not _plain(root, "/".join([whole, *parts[number:]]), mounts, rights, links - 1):
            return False
    return True
