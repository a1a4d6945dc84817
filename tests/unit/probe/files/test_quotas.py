"""Quotas: where they are, what is used up, and that a kernel without them is no error."""

from __future__ import annotations

import os
import struct

import pytest

from hangtop_probe.files import quotas
from hangtop_probe.files.quotas import Place
from hangtop_probe.proc.procfs import Mount

GIB = 1 << 30


def mount(options: str, fstype: str = "ext4", source: str = "/dev/sda1") -> Mount:
    return Mount(1, "8:1", "/home", fstype, source, "/", options)


@pytest.mark.parametrize(
    ("one", "types"),
    [
        (mount("rw,quota,usrquota,grpquota"), [0, 1]),  # as Linux 6.18 writes those of ext4
        (mount("rw,jqfmt=vfsv1,usrjquota=aquota.user"), [0]),
        (mount("rw,attr2,usrquota,prjquota", "xfs"), [0]),
        (mount("rw,uqnoenforce,gqnoenforce", "xfs"), []),
        (mount("rw,noquota", "xfs"), []),
        (mount("rw,usrquota", "nfs4", "filer:/home"), []),
        (mount("rw,usrquota", "tmpfs", "tmpfs"), []),
    ],
)
def test_where_quotas_are_enforced(one: Mount, types: list[int]) -> None:
    assert [place.type for place in quotas.places([one])] == types


@pytest.mark.parametrize(
    ("last", "asked"),
    [
        (mount("rw,usrquota", source="/dev/sdb1"), [Place("/home", "/dev/sdb1", 0)]),
        (mount("rw"), []),
        (mount("rw", "nfs4", "filer:/home"), []),
    ],
)
def test_of_mounts_on_one_point_the_last_is_asked(last: Mount, asked: list[Place]) -> None:
    assert quotas.places([mount("rw,usrquota,grpquota"), last]) == asked


def answer(**fields: int) -> bytes:
    names = ("hard", "soft", "used", "most", "many", "count", "until", "till")
    return struct.pack("=8QII", *(fields.get(name, 0) for name in names), 0x3F, 0)


HARD, SOFT = 20 * GIB // 1024, 10 * GIB // 1024


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (answer(hard=HARD, used=20 * GIB), ("space", 20 * GIB, False)),
        (answer(hard=HARD, used=20 * GIB - 4096), ("space", 20 * GIB, False)),
        (answer(hard=HARD, used=19 * GIB), None),
        (answer(used=500 * GIB), None),  # no limit
        (answer(soft=SOFT, hard=HARD, used=11 * GIB, until=900), ("space", 10 * GIB, True)),
        (answer(soft=SOFT, hard=HARD, used=11 * GIB, until=2000), None),  # there is time left
        (answer(soft=SOFT, hard=HARD, used=11 * GIB), None),
        (answer(most=100, count=100), ("inodes", 100, False)),
        (answer(most=100, count=99), None),
        (answer(many=50, count=60, till=900), ("inodes", 50, True)),
    ],
)
def test_what_is_used_up(data: bytes, told: tuple[str, int, bool] | None) -> None:
    assert quotas.lacking(data, 1000.0) == told


def test_each_owner_of_a_process_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double: what the kernel is asked."""
    asked = []

    def ask(place: Place, ident: int) -> bytes | None:
        asked.append((place.type, ident))
        return answer(hard=HARD, used=20 * GIB) if place.type else None

    monkeypatch.setattr(quotas, "_ask", ask)
    places = quotas.places([mount("rw,usrquota,grpquota")])
    (row,) = quotas.used_up(places, [os.getpid(), 1 << 30])
    assert asked == [(0, os.getuid()), (1, os.getgid())]
    assert row == {
        "mount": "/home",
        "uid": os.getuid(),
        "gid": os.getgid(),
        "what": "space",
        "limit": 20 * GIB,
        "late": False,
    }


def test_a_kernel_that_knows_no_quota_says_nothing() -> None:
    """The call is real, the device is none."""
    assert quotas.used_up([Place("/", "/dev/hangtop-none", 0)], [os.getpid()]) == []
    assert quotas.used_up([Place("/", "/dev/null", 1)], [os.getpid()]) == []
