"""What room a process has left on local file systems of its node: full ones, and quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.text.clean import clean, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.node.facts import FullQuota
    from hangtop_core.model.snapshot import Node, Process


def of(node: Node | None, process: Process) -> tuple[FullQuota, ...]:
    """Those that keep a process from writing."""
    some = node.full_quotas if node is not None else ()
    return tuple(one for one in some if one.uid == process.uid)


def used(mounts: Iterable[str], process: Process) -> tuple[str, ...]:
    """Those of some mounts on which its working directory is, or a path of its command line."""
    named = [process.cwd or "", *(one.rpartition("=")[2] for one in process.cmdline[1:])]
    return tuple(
        mount
        for mount in mounts
        if mount != "/" and any(one == mount or one.startswith(f"{mount}/") for one in named)
    )


def full_mounts(node: Node | None, process: Process) -> tuple[str, ...]:
    """The file systems of a node on which nothing is left for a process."""
    if node is None or not node.full_quotas:
        return node.full_mounts if node is not None else ()
    return tuple(dict.fromkeys((*node.full_mounts, *(one.mount for one in of(node, process)))))


def lacks(node: Node | None, process: Process, mounts: Sequence[str]) -> str:
    """`nothing is left on /a or /b`, or whose quota is used up there; empty for no mounts."""
    if node is None or not mounts:
        return ""
    some = [one for one in of(node, process) if one.mount in mounts]
    if some and set(node.full_mounts).isdisjoint(mounts):
        return describe(some[0], process.user)
    left = (
        "no inodes, for one more file, are" if set(mounts) <= set(node.no_inodes) else "nothing is"
    )
    return f"{left} left on {' or '.join(map(clean, mounts))}"


def describe(one: FullQuota, user: str) -> str:
    """`the quota of user ada on /home is used up (its limit is 20 GiB)`."""
    whose = f"user {clean(user, 60)}" if one.gid is None else f"group {one.gid}"
    most = size(one.limit) if one.what == "space" else f"{one.limit:,} inodes"
    how = f"its soft limit, {most}, is exceeded for longer than allowed"
    how = how if one.late else f"its limit is {most}"
    return f"the quota of {whose} on {clean(one.mount)} is used up ({how})"


def command(one: FullQuota) -> tuple[str, ...]:
    """What shows it by hand."""
    return ("quota", "-s", *(("-u", f"{one.uid}") if one.gid is None else ("-g", f"{one.gid}")))
