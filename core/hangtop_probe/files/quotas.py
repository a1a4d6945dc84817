"""Find exhausted quotas of users and groups on local file systems with quotactl(2).

Formats: struct if_dqblk of linux/quota.h; XFS answers Q_GETQUOTA, too. Quotas of network
file systems are on the server, which is not asked.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .filesystems import NOTHING, is_network

if TYPE_CHECKING:
    from ..proc import procfs

_GET = 0x800007 << 8
_USER, _GROUP = 0, 1
_ENFORCED = (("usrquota", "quota", "usrjquota"), ("grpquota", "grpjquota"))
"""Options of mounts by type, as the kernel writes them. XFS's `uqnoenforce` only counts."""
_ANSWER = struct.Struct("=8Q2I")


class Place(NamedTuple):
    """A file system with quotas of one type."""

    point: str
    device: str
    type: int


def places(mounts: Iterable[procfs.Mount]) -> List[Place]:
    """Return the places with enforced quotas, one mount point per file system."""
    found: Dict[Tuple[str, int], Place] = {}
    for mount in mounts:
        asked = not is_network(mount.fstype) and mount.source.startswith("/")
        options = {word.partition("=")[0] for word in mount.options.split(",")}
        for kind, names in enumerate(_ENFORCED):
            # Of mounts on one point the last covers the others.
            found.pop((mount.point, kind), None)
            if asked and not options.isdisjoint(names):
                found[mount.point, kind] = Place(mount.point, mount.source, kind)
    return list(found.values())


def used_up(some: Iterable[Place], pids: Iterable[int]) -> List[Dict[str, Any]]:
    """Return the quotas with nothing left for the users and groups of processes."""
    owners: Set[Tuple[int, int]] = set()
    for pid in pids:
        try:
            status = os.stat("/proc/%d" % pid)
        except OSError:
            continue
        owners.add((status.st_uid, status.st_gid))
    rows = []
    for place in some:
        for uid, gid in sorted(owners):
            data = _ask(place, gid if place.type == _GROUP else uid)
            told = lacking(data, time.time()) if data else None
            if told:
                row = {"mount": place.point, "uid": uid, "what": told[0], "limit": told[1]}
                rows.append(dict(row, late=told[2], gid=gid if place.type == _GROUP else None))
    return rows


def lacking(data: bytes, now: float) -> Optional[Tuple[str, int, bool]]:
    """Return the exhausted resource of a quota, its limit, and whether that is the soft one."""
    hard, soft, used, most, many, count, until, till = _ANSWER.unpack(data)[:8]
    blocks = ("space", hard << 10, soft << 10, used, NOTHING, until)
    for what, limit, warned, has, needs, over in (blocks, ("inodes", most, many, count, 1, till)):
        if limit and has + needs > limit:
            return what, limit, False
        if warned and has > warned and 0 < over <= now:
            return what, warned, True
    return None


def _ask(place: Place, ident: int) -> Optional[bytes]:
    """Return what the kernel knows of a quota; None where there is none or it is not readable."""
    try:
        import ctypes  # takes memory that few nodes need

        quotactl = ctypes.CDLL(None).quotactl
    except (ImportError, OSError, AttributeError):
        return None
    answer = ctypes.create_string_buffer(_ANSWER.size)
    failed = quotactl(_GET | place.type, os.fsencode(place.device), ident, answer)
    return None if failed else answer.raw
