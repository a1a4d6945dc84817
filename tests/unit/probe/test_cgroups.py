"""Cgroups as files: whose quota is the tightest, and how much it has held back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_probe import cgroups, procfs
from hangtop_probe.cgroups import Held

if TYPE_CHECKING:
    from pathlib import Path

V1 = {
    "cpu/docker/cpu.cfs_quota_us": "-1",
    "cpu/docker/cpu.cfs_period_us": "100000",
    "cpu/docker/a/cpu.cfs_quota_us": "50000",
    "cpu/docker/a/cpu.cfs_period_us": "100000",
    "cpu/docker/a/cpu.stat": "nr_periods 40\nnr_throttled 30\nthrottled_time 1\n",
    "freezer/docker/a/freezer.state": "FROZEN\n",
}
V2 = {
    "docker/cpu.max": "200000 100000\n",
    "docker/cpu.stat": "usage_usec 1\nnr_periods 40\nnr_throttled 30\nthrottled_usec 1\n",
    "docker/a/cpu.max": "max 100000\n",
    "docker/a/cgroup.events": "populated 1\nfrozen 1\n",
}


@pytest.mark.parametrize(
    ("files", "groups", "cores", "of"),
    [
        (V1, b"4:cpu,cpuacct:/docker/a\n3:freezer:/docker/a\n", 0.5, "cpu/docker/a"),
        (V2, b"0::/docker/a\n", 2.0, "docker"),
    ],
)
def test_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    groups: bytes,
    cores: float,
    of: str,
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    real = procfs.read
    told = {"/proc/7/cgroup": groups}
    monkeypatch.setattr(procfs, "read", lambda path, most=4096: told.get(path) or real(path, most))
    fields, held = cgroups.read(7, str(tmp_path))
    assert (fields["cpu_quota"], fields["cpu_quota_of"]) == (cores, str(tmp_path / of))
    assert (fields["frozen"], held) == (True, Held(40, 30))


@pytest.mark.parametrize(
    ("before", "share"),
    [(None, 0.75), (Held(10, 0), 1.0), (Held(25, 30), None), (Held(90, 90), 0.75)],
)
def test_share(before: Held | None, share: float | None) -> None:
    assert Held(40, 30).share(before) == share
