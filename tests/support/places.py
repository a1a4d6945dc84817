"""Places in which the kernel refuses: cgroups, full and frozen file systems. All need root."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CGROUPS = {
    "/sys/fs/cgroup/memory": "memory.limit_in_bytes",
    "/sys/fs/cgroup": "memory.max",
}
LIMIT_BYTES = 500 << 20
FREEZERS = {"/sys/fs/cgroup/freezer": "freezer.state", "/sys/fs/cgroup": "cgroup.freeze"}


class NoPlaceError(Exception):
    """It cannot be made on this machine; the text says why."""


@contextmanager
def limited() -> Iterator[Path]:
    """A memory cgroup with little memory."""
    for root, name in CGROUPS.items():
        group = Path(root, f"hangtop-test-{uuid.uuid4().hex[:8]}")
        try:
            group.mkdir()
        except OSError:
            continue
        limit = group / name
        if limit.exists():
            limit.write_text(str(LIMIT_BYTES))
            try:
                yield group
            finally:
                _remove(group)
            return
        group.rmdir()
    raise NoPlaceError("no memory cgroup can be made here")


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
def frozen_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system to which every write waits."""
    image, point = tmp_path / "disk", tmp_path / "mounted"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(point)], capture_output=True)
    if done.returncode:
        raise NoPlaceError(f"no loop device can be mounted here: {done.stderr.decode().strip()}")
    disk = Disk(point)
    try:
        yield disk
    finally:
        disk.thaw()
        subprocess.run(["umount", "--lazy", str(point)], check=True)


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
    image, point = tmp_path / "disk", tmp_path / "mounted"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(200 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(point)], capture_output=True)
    if done.returncode:
        raise NoPlaceError(f"no loop device can be mounted here: {done.stderr.decode().strip()}")
    try:
        device = point.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        group.mkdir()
        rate = group / f"blkio.throttle.{what}_bps_device"
        try:
            rate.write_text(f"{number} {bytes_per_s}")
            members = group / "cgroup.procs"
            yield point, members, lambda most: _write(rate, f"{number} {most}")
        finally:
            rate.write_text(f"{number} 0")
            _remove(group)
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def freezer() -> Iterator[tuple[Path, Callable[[], None]]]:
    """A cgroup that can be frozen: its control file, and what thaws it."""
    for root, name in FREEZERS.items():
        group = Path(root, f"hangtop-test-{uuid.uuid4().hex[:8]}")
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / name).exists():

            def thaw(control: Path = group / name) -> None:
                control.write_text("THAWED" if control.name == "freezer.state" else "0")

            try:
                yield group / name, thaw
            finally:
                thaw()
                _remove(group)
            return
        group.rmdir()
    raise NoPlaceError("no cgroup that freezes can be made here")


def _write(path: Path, text: str) -> None:
    path.write_text(text)


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
