"""Open descriptors of a process and the files, pipes and sockets behind them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from hangtop_core.text.clean import Count, Text

MOST_READ = 4096
"""Descriptors read per process; `hangtop_probe.descriptors.descriptors` reads the first ones."""


class Mount(Struct, frozen=True, gc=False):
    """One line of /proc/PID/mounts. `device` names the server for network file systems."""

    point: Text
    fstype: Text
    device: Text


class Socket(Struct, frozen=True, gc=False):
    """One socket, from /proc/PID/net/{tcp,tcp6,udp,unix}."""

    family: Literal["tcp", "udp", "unix"]
    state: Text
    local: Text
    remote: Text
    recv_queue: int = 0
    send_queue: int = 0
    retransmits: int = 0
    """How often in a row the same data were retransmitted without an acknowledgement."""
    peer_pid: int | None = None
    """Process at the other end, when it is on the same node."""
    peer_name: Text | None = None
    answered: bool = False
    """Whether the peer, which connected to a listening port of this process, has sent no request
    since the last reply."""


class Holder(Struct, frozen=True, gc=False):
    """Another process at a descriptor: the other end of a pipe, or the holder of a lock."""

    pid: Annotated[int, Meta(ge=1)]
    comm: Text
    state: str
    how: Text
    """reads, writes, holds the lock"""


class Opener(Struct, frozen=True, gc=False):
    """A descriptor of another process to the same file, pipe or socket, or its other end."""

    pid: int
    fd: int
    comm: Text
    state: Text = "?"
    mode: Text = "?"
    how: Text = ""
    """`has it open`, `has the other end`."""


class Openers(Struct, frozen=True):
    """The other processes on a node that have a file, pipe or socket open."""

    target: Text
    holders: Annotated[tuple[Opener, ...], Meta(max_length=1024)] = ()
    more: int = 0
    """Number of openers that were not listed."""
    hidden: int = 0
    """Processes whose descriptors may not be read."""


class FilePosition(Struct, frozen=True, gc=False):
    """Position of a rank in the file that its main thread was last seen to read or write."""

    fd: int
    target: Text
    position: Count
    """Bytes from the beginning, as the kernel keeps it: read and write advance it when they
    return."""
    writes: bool = False
    size: Count | None = None
    """Size when the file was first seen; None where its file system did not answer."""
    mount: Text | None = None
    fstype: Text | None = None
    server: Text | None = None

    @property
    def whole(self) -> int | None:
        """Return the file size if it can serve as a total; a file being written grows."""
        return self.size if self.size and not self.writes and self.position <= self.size else None


class FileServer(Struct, frozen=True, gc=False):
    """State of the node's connection to the server of a network file system."""

    mount: Text
    fstype: Text
    server: Text
    remote: Text
    """Address and port."""
    state: Text | None = None
    """State of the socket; None where there is no connection."""
    retransmits: int = 0
    """How often in a row the same data were retransmitted."""

    @property
    def trouble(self) -> str | None:
        """Return what is wrong with the connection, as `does not answer: ...`; None if nothing is.

        This counts only while a process waits for the mount: an unused connection is closed after
        minutes, so that its absence alone says nothing.
        """
        if self.state is None:
            return f"is not connected: the node has no connection to {self.remote}"
        if self.state != "ESTABLISHED":
            return f"does not answer: the connection to {self.remote} is in {self.state}"
        if self.retransmits >= UNANSWERED:
            again = f"sent {self.retransmits} times again"
            return f"does not answer: what was sent to {self.remote} is not acknowledged, {again}"
        return None


UNANSWERED = 3
"""Retransmissions in a row from which a connection counts as stalled: 1.4 s."""


class Descriptor(Struct, frozen=True, gc=False):
    """One open descriptor of a process."""

    fd: int
    kind: Literal["file", "directory", "pipe", "fifo", "socket", "tty", "device", "anon", "other"]
    target: Text
    mode: Literal["r", "w", "rw", "?"] = "?"
    position: int | None = None
    size: int | None = None
    mount: Text | None = None
    fstype: Text | None = None
    server: Text | None = None
    socket: Socket | None = None
    holders: tuple[Holder, ...] = ()
    full: Literal["space", "inodes"] | None = None
    """The exhausted resource of its file system; only for local files that are open for writing."""
    locked: Text | None = None
    """`held`, `waiting`, or `by others` that hold it exclusively: flock, lockf and OFD locks."""
    watches: tuple[int, ...] = ()
    """The descriptors that an epoll descriptor watches."""


MOVES_S = 0.5
"""Seconds for which a position must stay the same before it counts as not moving."""


class Failure(Struct, frozen=True, gc=False):
    """Why the answer to a request is missing."""

    kind: str
    """denied, gone, timeout, unsupported, missing, not-python, stopped, error"""
    text: Text
    fix: Text | None = None


class DescriptorTable(Struct, frozen=True, gc=False):
    """All descriptors of a process at one moment, or why they could not be read."""

    at: float
    descriptors: tuple[Descriptor, ...] = ()
    failure: Failure | None = None
    waiting_locks: tuple[Descriptor, ...] = ()
    """Files that this process waits to lock, from /proc/locks, with their holders."""
    opening: Descriptor | None = None
    """The file that the main thread is blocked in opening or in stat, not yet with a number. While
    the main thread sleeps on a futex, the file of another thread."""
    servers: tuple[FileServer, ...] = ()
    """Servers of its network mounts, and whether they answer the node."""
    lock_files: tuple[Descriptor, ...] = ()
    """Lock files that other processes of its user have locked, with their holders. A process that
    retries a lock has no descriptor open."""
    store_port: Descriptor | None = None
    """The listener on MASTER_PORT of its environment, in its network namespace."""
    earlier: float | None = None
    """When the descriptors were last read before."""
    moved: tuple[int, ...] = ()
    """Numbers of the descriptors whose file is the same as at `earlier` and whose position
    differs."""

    def of(self, fd: int) -> Descriptor | None:
        """Return the descriptor with this number, or None where it was not read."""
        return next((item for item in self.descriptors if item.fd == fd), None)

    def after(self, last: DescriptorTable | None) -> DescriptorTable:
        """Return this table with `moved` set by comparison with the table ``last``."""
        if last is None or last.failure is not None:
            return self
        was = {(item.fd, item.target): item.position for item in last.descriptors}
        moved = (
            item.fd
            for item in self.descriptors
            if None not in (then := was.get((item.fd, item.target)), item.position)
            and then != item.position
        )
        return replace(self, earlier=last.at, moved=tuple(moved))

    def moves(self, item: Descriptor) -> bool | None:
        """Return whether the position of a file moves; None where that is not yet certain."""
        if item.fd in self.moved:
            return True
        has_position = item.position is not None and self.earlier is not None
        return False if has_position and self.at - (self.earlier or 0.0) > MOVES_S else None
