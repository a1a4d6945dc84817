"""Cgroups as files: where they are, whose quota is the tightest, who is frozen, what lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_probe.node import cgroupload, cgroups
from hangtop_probe.node.cgroups import Held, Place
from hangtop_probe.proc import procfs

if TYPE_CHECKING:
    from pathlib import Path

V1 = {
    "cpu/docker/cpu.cfs_quota_us": "-1",
    "cpu/docker/cpu.cfs_period_us": "100000",
    "cpu/docker/a/cpu.cfs_quota_us": "50000",
    "cpu/docker/a/cpu.cfs_period_us": "100000",
    "cpu/docker/a/cpu.stat": "nr_periods 40\nnr_throttled 30\nthrottled_time 1\n",
    "freezer/docker/freezer.self_freezing": "1\n",
    "freezer/docker/a/freezer.self_freezing": "0\n",
    "freezer/docker/a/freezer.state": "FROZEN\n",
    "memory/docker/a/memory.limit_in_bytes": "524288000\n",
    "memory/docker/a/memory.usage_in_bytes": "524287000\n",
    "memory/docker/a/memory.failcnt": "12\n",
    "memory/docker/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory/docker/memory.limit_in_bytes": "9223372036854771712\n",
    "memory/docker/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
}
V2 = {
    "docker/cpu.max": "200000 100000\n",
    "docker/cpu.stat": "usage_usec 1\nnr_periods 40\nnr_throttled 30\nthrottled_usec 1\n",
    "docker/cgroup.freeze": "1\n",
    "docker/a/cgroup.freeze": "0\n",
    "docker/a/cpu.max": "max 100000\n",
    "docker/a/cgroup.events": "populated 1\nfrozen 1\n",
    "docker/a/memory.max": "max\n",
    "docker/a/memory.high": "1048576\n",
    "docker/a/memory.current": "1030000\n",
    "docker/a/memory.events": "low 0\nhigh 7\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "docker/a/memory.pressure": "some avg10=91.20 avg60=1.00 avg300=0.00 total=5\n"
    "full avg10=88.10 avg60=1.00 avg300=0.00 total=5\n",
    "docker/a/io.pressure": "some avg10=4.00 avg60=0 avg300=0 total=5\n"
    "full avg10=2.00 avg60=0 avg300=0 total=5\n",
    "docker/a/cpu.pressure": "some avg10=57.00 avg60=0 avg300=0 total=5\n",
    "memory.pressure": "full avg10=99.00 avg60=1.00 avg300=0.00 total=5\n",
}
ONE = b"4:cpu,cpuacct:/docker/a\n3:freezer:/docker/a\n2:memory:/docker/a\n"
TWO = b"0::/docker/a\n"


@pytest.fixture
def made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> cgroups.Places:
    """Files of a hierarchy, and of the process 7 in it."""
    files, groups, names = request.param
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    real, told = procfs.read, {"/proc/7/cgroup": groups}
    monkeypatch.setattr(procfs, "read", lambda path, most=4096: told.get(path) or real(path, most))
    return {name: Place(f"{tmp_path}/{name}".rstrip("/"), "/") for name in names}


@pytest.mark.parametrize(
    ("made", "cores", "of", "frozen_by", "own"),
    [
        (
            (V1, ONE, ("cpu", "freezer", "memory")),
            0.5,
            "/cpu/docker/a",
            "/freezer/docker",
            ["/memory/docker/a"],
        ),
        ((V2, TWO, ("",)), 2.0, "/docker", "/docker", ["/docker/a"]),
    ],
    indirect=["made"],
)
def test_what_holds_a_process(
    made: cgroups.Places, tmp_path: Path, cores: float, of: str, frozen_by: str, own: list[str]
) -> None:
    fields, held = cgroups.read(7, made)
    assert (fields["cpu_quota"], fields["cpu_quota_of"]) == (cores, f"{tmp_path}{of}")
    assert (fields["frozen"], held) == (True, Held(40, 30))
    assert fields["frozen_by"] == f"{tmp_path}{frozen_by}"
    assert fields["cgroup_folders"] == [f"{tmp_path}{one}" for one in own]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            (V1, ONE, ("memory",)),
            {
                "folder": "/memory/docker/a",
                "memory_max": 524288000,
                "memory_current": 524288000,
                "counts": {"oom_kills": 1, "at_max": 12},
            },
        ),
        (
            (V2, TWO, ("",)),
            {
                "folder": "/docker/a",
                "memory_high": 1048576,
                "memory_current": 50 * 20971,
                "counts": {"oom_kills": 0, "at_high": 7},
                "memory_full": 85,
                "cpu_some": 55,
            },
        ),
    ],
    indirect=["made"],
)
def test_what_a_group_tells(
    made: cgroups.Places, tmp_path: Path, expected: dict[str, object]
) -> None:
    """Those above say nothing here: no limit, nothing counted, and the root of all is the node."""
    own = cgroups.read(7, made)[0]["cgroup_folders"]
    (found,) = cgroupload.Groups(made).read(own)
    assert found == {**expected, "folder": f"{tmp_path}{expected['folder']}"}


def test_where_groups_are_in_a_container() -> None:
    """One with its own namespace of cgroups, and one that has only its own part mounted."""
    line = b"31 30 0:27 %s /sys/fs/cgroup%s ro - cgroup%s none rw%s\n"
    own = cgroups.places(procfs.parse_mountinfo(line % (b"/", b"", b"2", b",nsdelegate")))
    assert cgroups.above({"": "/"}, "", own) == ["/sys/fs/cgroup"]
    assert cgroups.above({"": "/../b"}, "", own) == [], "a process of another container"
    part = procfs.parse_mountinfo(line % (b"/docker/a", b"/memory", b"", b",memory"))
    found = cgroups.above({"memory": "/docker/a/x"}, "memory", cgroups.places(part))
    assert found == ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"]
    assert cgroups.above({"memory": "/docker/b"}, "memory", cgroups.places(part)) == []


@pytest.mark.parametrize(
    ("before", "share"),
    [(None, 0.75), (Held(10, 0), 1.0), (Held(25, 30), None), (Held(90, 90), 0.75)],
)
def test_share(before: Held | None, share: float | None) -> None:
    assert Held(40, 30).share(before) == share
