"""File systems: which may stop answering because a server is gone, and which local ones are full.

A file system that may stop answering is never asked for anything.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional

from ..proc import procfs
from ..proc.procfs import words

NETWORK_FILE_SYSTEMS = frozenset(
    words("""
    nfs nfs4 lustre fuse fuseblk gpfs beegfs ceph cifs smb3 9p afs wekafs virtiofs panfs glusterfs
    ocfs2 gfs2
    """)
)
_PSEUDO = frozenset(
    words("""
    proc sysfs cgroup cgroup2 devpts devtmpfs securityfs debugfs tracefs pstore bpf mqueue
    configfs fusectl hugetlbfs autofs binfmt_misc rpc_pipefs nsfs efivarfs selinuxfs squashfs
    """)
)
MAX_MOUNTS = 64
_READ_ONLY = frozenset(words("iso9660 erofs cramfs udf"))
NOTHING = 64 << 10
"""A file system with less than this in bytes for users is full."""


def is_network(fstype: str) -> bool:
    """Whether a file system may stop answering because a server or a helper is gone."""
    return fstype in NETWORK_FILE_SYSTEMS or fstype.startswith(("fuse.", "nfs"))


def server_name(source: str) -> Optional[str]:
    """Return the server of a network mount: `filer` of `filer:/export`, `host` of `//host/s`."""
    if source.startswith("//"):
        return source[2:].split("/")[0] or None
    host, colon, _ = source.partition(":/")
    return host.split("@")[-1] if colon and "@tcp" not in host else host if colon else None


def mounts() -> List[Dict[str, str]]:
    """Return the mounts where files of a job may lie, network file systems first."""
    found = {
        mount.point: {"point": mount.point, "fstype": mount.fstype, "device": mount.source}
        for mount in procfs.mounts("self")
        if mount.fstype not in _PSEUDO
    }
    ordered = sorted(found.values(), key=lambda m: (not is_network(m["fstype"]), m["point"]))
    return ordered[:MAX_MOUNTS]


def full(path: str) -> Optional[str]:
    """Return what the local file system at ``path`` has none left of: `space`, `inodes`, None."""
    try:
        fs = os.statvfs(path)
    except OSError:
        return None
    if fs.f_flag & os.ST_RDONLY:
        return None
    if fs.f_blocks and fs.f_bavail * fs.f_frsize < NOTHING:
        return "space"
    return "inodes" if fs.f_files and not fs.f_favail else None


def full_mounts(found: List[Dict[str, str]]) -> Dict[str, str]:
    """Return where local file systems are full, and of what; those that may hang are not asked."""
    local = [m for m in found if not is_network(m["fstype"]) and m["fstype"] not in _READ_ONLY]
    told = ((m["point"], full(m["point"])) for m in local)
    return {point: what for point, what in sorted(told) if what}
