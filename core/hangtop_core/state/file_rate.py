"""Rate at which a process advances in the file that it reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.descriptors import FilePosition

IO_NOISE = 512.0
"""Bytes a second that are no progress: a heartbeat, a log line, a metrics socket."""
MUCH = 65536.0
"""Bytes a second from which a program writes data, such as a slow checkpoint."""
MUCH_READ = 16384.0
"""Bytes a second from which a program reads data."""
_WINDOW = 10.0
"""Seconds over which a rate is measured."""
_MAX_POINTS = 32
"""Maximum number of readings in that time."""


class FileRate:
    """The rate at which a process advances in the file that it reads or writes."""

    __slots__ = ("_points", "moved_at", "rate")

    def __init__(self) -> None:
        self.moved_at: float | None = None
        self.rate: float | None = None
        self._points: list[tuple[float, int]] = []

    def see(
        self, old: FilePosition | None, new: FilePosition | None, at: float, before: float
    ) -> None:
        """Compare the position at ``at`` with the one at ``before``."""
        if new is None:
            self._points.clear()
            return
        if old is None or (old.fd, old.target) != (new.fd, new.target):
            if old is not None:
                self.moved_at = at  # it has moved on to the next file
            self.rate = None
            self._points.clear()
        elif abs(new.position - old.position) > IO_NOISE * max(at - before, 0.0):
            self.moved_at = at
        if not self._points and old is not None and old.target == new.target:
            self._points.append((before, old.position))
        self._points.append((at, new.position))
        while len(self._points) > 2 and (
            at - self._points[1][0] >= _WINDOW or len(self._points) > _MAX_POINTS
        ):
            del self._points[0]
        (first_at, first), (last_at, last) = self._points[0], self._points[-1]
        if last_at > first_at:
            self.rate = max(last - first, 0) / (last_at - first_at)
