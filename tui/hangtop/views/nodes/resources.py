"""What a rank is given, by its cgroups and by the file that it reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.source.lookup import node_of
from hangtop.terminal.spans import Line, labelled, line
from hangtop.views.common import ago
from hangtop_core.analysis import cgroups
from hangtop_core.text.clean import size

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Rank, Snapshot


def group_lines(snapshot: Snapshot, rank: Rank) -> list[Line]:
    """What its cgroups let it have, and what they lack."""
    process, lines = rank.process, []
    if process.cpu_quota is not None:
        held = process.cpu_throttled
        told = f"{process.cpu_quota:g} cores, by {process.cpu_quota_of}"
        told += f"; used up early in {held:.0%} of the periods" if held else ""
        lines.append(labelled("quota", line((told, "warn" if (held or 0) >= 0.5 else ""))))
    groups = cgroups.of(node_of(snapshot, rank.node), process)
    bad = {one.folder for one in cgroups.telling(groups)}
    for one in groups:
        if one.limit is not None or one.counts.oom_kills or one.folder in bad:
            text = cgroups.describe(one).removeprefix("cgroup ")
            lines.append(labelled("limits", line((text, "warn" if one.folder in bad else ""))))
    return lines


def file_lines(rank: Rank, now: float) -> list[Line]:
    """How far it is in what it reads or writes, and since when that does not move."""
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
