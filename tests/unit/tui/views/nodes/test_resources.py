"""What the Process pane tells of cgroups and of the file a rank is in."""

from __future__ import annotations

from hangtop.terminal.spans import plain
from hangtop.views.nodes.resources import file_lines, group_lines
from hangtop_core.model.descriptors import FilePosition
from hangtop_core.model.node.cgroups import Cgroup, Counts
from hangtop_core.model.snapshot import Node
from support.build import NOW, World
from support.situations import SLEEP, user

GROUP = "/sys/fs/cgroup/job_7"


def test_limits_quota_and_position() -> None:
    world = World()
    process = {
        "cgroup_folders": (GROUP,),
        "cpu_quota": 2.0,
        "cpu_quota_of": GROUP,
        "cpu_throttled": 0.75,
        "file": FilePosition(7, "/data/shard", 1 << 20, False, 4 << 20),
    }
    rank = world.add(
        user("load", 41), SLEEP, process=process, file_moved_at=NOW - 2, file_rate=2048.0
    )
    counts = Counts(oom_kills=1, at_max=9)
    some = (Cgroup(GROUP, 1 << 30, None, 1 << 29, counts), Cgroup(f"{GROUP}1", 1))
    world.nodes["n1"] = Node("n1", "ready", cgroups=some)
    told = [plain(one) for one in group_lines(world.snapshot(), rank)]
    assert told == [
        f"quota    2 cores, by {GROUP}; used up early in 75% of the periods",
        f"limits   {GROUP}: 512 MiB of 1.0 GiB (memory.max) used, cached files included, at its "
        "limit 9 times, 1 of its processes killed for want of memory",
    ]
    (line,) = file_lines(rank, NOW)
    assert plain(line) == "reads    /data/shard  at 1.0 MiB of 4.0 MiB  moved 2 s ago, 2.0 KiB/s"
