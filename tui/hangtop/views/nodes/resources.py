"""The resources of a rank: its cgroup limits, and the progress of its file I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.terminal.spans import Line, labelled, line
from hangtop.views.common import ago, node_of
from hangtop_core.analysis import cgroups
from hangtop_core.text.clean import size

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank, Snapshot


def group_lines(snapshot: Snapshot, rank: Rank) -> list[Line]:
    """Return the limits of a rank's cgroups, and what they run short of."""
    process, lines = rank.process, []
    if process.cpu_quota is not None:
        held = process.cpu_throttled
        quota = f"{process.cpu_quota:g} cores, by {process.cpu_quota_of}"
        quota += f"; used up early in {held:.0%} of the periods" if held else ""
        lines.append(labelled("quota", line((quota, "warn" if (held or 0) >= 0.5 else ""))))
    groups = cgroups.of(node_of(snapshot, rank.node), process)
    bad = {group.folder for group in cgroups.telling(groups)}
    for group in groups:
        if group.limit is not None or group.counts.oom_kills or group.folder in bad:
            text = cgroups.describe(group).removeprefix("cgroup ")
            lines.append(labelled("limits", line((text, "warn" if group.folder in bad else ""))))
    return lines


def file_lines(rank: Rank, now: float) -> list[Line]:
    """Return a rank's position in the file it reads or writes, and for how long it is unchanged."""
    file, moved = rank.process.file, rank.file_moved_at
    if file is None or rank.ended:
        return []
    far = size(file.position) + (f" of {size(file.whole)}" if file.whole else "")
    rate = f", {size(rank.file_rate)}/s" if rank.file_rate and moved else ""
    last = "has not moved" if moved is None else f"moved {ago(moved, now)}{rate}"
    return [
        labelled(
            "writes" if file.writes else "reads",
            line(f"{file.target}  ", ("at ", "label"), f"{far}  {last}"),
        )
    ]
