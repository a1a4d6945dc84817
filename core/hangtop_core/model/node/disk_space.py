"""File systems without space and used-up quotas, as far as they affect a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.text.clean import clean, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.model.node.facts import FullQuota
    from hangtop_core.model.snapshot import Node, Process


def of(node: Node | None, process: Process) -> tuple[FullQuota, ...]:
    """Return the used-up quotas that keep a process from writing."""
    quotas = node.full_quotas if node is not None else ()
    return tuple(quota for quota in quotas if quota.uid == process.uid)


def used(mounts: Iterable[str], process: Process) -> tuple[str, ...]:
    """Return the mounts that hold its working directory or a path of its command line."""
    named = [process.cwd or "", *(word.rpartition("=")[2] for word in process.cmdline[1:])]
    return tuple(
        mount
        for mount in mounts
        if mount != "/" and any(path == mount or path.startswith(f"{mount}/") for path in named)
    )


def full_mounts(node: Node | None, process: Process) -> tuple[str, ...]:
    """Return the file systems of a node on which nothing is left for a process."""
    if node is None or not node.full_quotas:
        return node.full_mounts if node is not None else ()
    return tuple(dict.fromkeys((*node.full_mounts, *(quota.mount for quota in of(node, process)))))


def lacks(node: Node | None, process: Process, mounts: Sequence[str]) -> str:
    """Return `nothing is left on /a or /b`, or whose quota is used up; empty without mounts."""
    if node is None or not mounts:
        return ""
    quotas = [quota for quota in of(node, process) if quota.mount in mounts]
    if quotas and set(node.full_mounts).isdisjoint(mounts):
        return describe(quotas[0], process.user)
    left = (
        "no inodes, for one more file, are" if set(mounts) <= set(node.no_inodes) else "nothing is"
    )
    return f"{left} left on {' or '.join(map(clean, mounts))}"


def describe(quota: FullQuota, user: str) -> str:
    """Return `the quota of user ada on /home is used up (its limit is 20 GiB)`."""
    owner = f"user {clean(user, 60)}" if quota.gid is None else f"group {quota.gid}"
    limit = size(quota.limit) if quota.what == "space" else f"{quota.limit:,} inodes"
    how = f"its soft limit, {limit}, is exceeded for longer than allowed"
    how = how if quota.late else f"its limit is {limit}"
    return f"the quota of {owner} on {clean(quota.mount)} is used up ({how})"


def command(quota: FullQuota) -> tuple[str, ...]:
    """Return the command that shows a quota."""
    return (
        "quota",
        "-s",
        *(("-u", f"{quota.uid}") if quota.gid is None else ("-g", f"{quota.gid}")),
    )
