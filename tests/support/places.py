"""Places in which the kernel refuses: cgroups, full and frozen file systems. All need root."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

CGROUPS = {
    "/sys/fs/cgroup/memory": "memory.limit_in_bytes",
    "/sys/fs/cgroup": "memory.max",
}
QUOTAS = {"/sys/fs/cgroup/cpu": "cpu.cfs_quota_us", "/sys/fs/cgroup": "cpu.max"}
LIMIT_BYTES = 500 << 20
FREEZERS = {"/sys/fs/cgroup/freezer": "freezer.state", "/sys/fs/cgroup": "cgroup.freeze"}


class NoPlaceError(Exception):
    """It cannot be made on this machine; the text says why."""


@contextmanager
def _cgroup(files: dict[str, str], what: str) -> Iterator[Path]:
    """A new cgroup where there is one of these files in it: that file."""
    for root, name in files.items():
        group = Path(root, f"hangtop-test-{uuid.uuid4().hex[:8]}")
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / name).exists():
            try:
                yield group / name
            finally:
                _remove(group)
            return
        group.rmdir()
    raise NoPlaceError(f"no {what} can be made here")


@contextmanager
def limited(most: int = LIMIT_BYTES) -> Iterator[Path]:
    """A memory cgroup with little memory."""
    with _cgroup(CGROUPS, "memory cgroup") as limit:
        limit.write_text(str(most))
        yield limit.parent


@contextmanager
def quota(cores: float) -> Iterator[Path]:
    """A cgroup with so little CPU."""
    with _cgroup(QUOTAS, "cgroup with a CPU quota") as limit:
        limit.write_text(f"{cores * 100_000:.0f}")
        yield limit.parent


@contextmanager
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which there is hardly any room."""
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def without_inodes(tmp_path: Path) -> Iterator[Path]:
    """A file system with room, on which no file can be made."""
    point = tmp_path / "no-inodes"
    point.mkdir()
    options = "size=64m,nr_inodes=16"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(point)], check=True)
    try:
        for number in range(15):
            (point / f"shard-{number}").touch()
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def silent_server(
    tmp_path: Path, source: str, kind: str = "fuse.sshfs"
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A remote file system whose server does not answer who reads `shard`; and what kills it.

    Who waits for an answer cannot be killed before.
    """
    point = tmp_path / "remote"
    point.mkdir()
    script = str(Path(__file__).with_name("silent_server.py"))
    argv = [sys.executable, script, source, kind, str(point)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        said = server.stdout.readline().decode().strip()
        try:
            if said != "mounted":
                raise NoPlaceError(f"FUSE cannot be mounted here: {said}")
            yield point, server.kill
        finally:
            server.kill()
            subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)


class Disk:
    """A mounted file system that is frozen."""

    def __init__(self, point: Path) -> None:
        self.point = point
        subprocess.run(["fsfreeze", "-f", str(point)], check=True)
        self.frozen = True

    def thaw(self) -> None:
        """Let everybody write."""
        if self.frozen:
            subprocess.run(["fsfreeze", "-u", str(self.point)], check=True)
            self.frozen = False


@contextmanager
def _mounted(tmp_path: Path, size: int, options: str = "loop") -> Iterator[Path]:
    """A file system of its own in a file."""
    image, point = tmp_path / "disk", tmp_path / "mounted"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    done = subprocess.run(["mount", "-o", options, str(image), str(point)], capture_output=True)
    if done.returncode:
        raise NoPlaceError(f"no loop device can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def frozen_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system to which every write waits."""
    with _mounted(tmp_path, 64 << 20) as point:
        disk = Disk(point)
        try:
            yield disk
        finally:
            disk.thaw()


def with_quotas(tmp_path: Path) -> AbstractContextManager[Path]:
    """A file system that is mounted with quotas of users and groups; none is set."""
    return _mounted(tmp_path, 64 << 20, "loop,usrquota,grpquota")


@contextmanager
def slow_disk(
    tmp_path: Path, bytes_per_s: int, what: str = "write"
) -> Iterator[tuple[Path, Path, Callable[[int], None]]]:
    """A file system; the list of the processes that read or write it at no more than this rate;
    and what sets another rate for them, 0 for none."""
    root = Path("/sys/fs/cgroup/blkio")
    group = root / f"hangtop-test-{uuid.uuid4().hex[:8]}"
    if not (root / "tasks").exists():
        raise NoPlaceError("no cgroup of version 1 limits writes here")
    with _mounted(tmp_path, 200 << 20) as point:
        device = point.stat().st_dev
        group.mkdir()
        rate = group / f"blkio.throttle.{what}_bps_device"

        def limit(most: int) -> None:
            rate.write_text(f"{os.major(device)}:{os.minor(device)} {most}")

        try:
            limit(bytes_per_s)
            yield point, group / "cgroup.procs", limit
        finally:
            limit(0)
            _remove(group)


@contextmanager
def freezer() -> Iterator[tuple[Path, Callable[[], None]]]:
    """A cgroup that can be frozen: its control file, and what thaws it."""
    with _cgroup(FREEZERS, "cgroup that freezes") as control:

        def thaw() -> None:
            control.write_text("THAWED" if control.name == "freezer.state" else "0")

        try:
            yield control, thaw
        finally:
            thaw()


def _remove(group: Path) -> None:
    """Remove a cgroup once the processes in it, which were killed, are gone."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
