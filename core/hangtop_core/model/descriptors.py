"""What the open descriptors of a process lead to; nouns like those of `hangtop_core.model`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from hangtop_core.text.clean import Count, Text

MOST_READ = 4096
"""Of a process that has more, the first ones are read (`hangtop_probe.descriptors.descriptors`)."""


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
    """How often in a row the same was sent again: nothing is acknowledged."""
    peer_pid: int | None = None
    """Process at the other end, when it is on the same node."""
    peer_name: Text | None = None
    answered: bool = False
    """Who called here at a port of its own has asked nothing since something was last sent."""


class Holder(Struct, frozen=True, gc=False):
    """Another process that has to do with a descriptor: a pipe's other end, a lock's holder."""

    pid: Annotated[int, Meta(ge=1)]
    comm: Text
    state: str
    how: Text
    """reads, writes, holds the lock"""


class Opener(Struct, frozen=True, gc=False):
    """One descriptor of another process that leads to the same, or to its other end."""

    pid: int
    fd: int
    comm: Text
    state: Text = "?"
    mode: Text = "?"
    how: Text = ""
    """`has it open`, `has the other end`."""


class Openers(Struct, frozen=True):
    """Who else on a node has a file, pipe or socket open."""

    target: Text
    holders: Annotated[tuple[Opener, ...], Meta(max_length=1024)] = ()
    more: int = 0
    """Others that were not listed."""
    hidden: int = 0
    """Processes whose descriptors may not be read."""


class FilePosition(Struct, frozen=True, gc=False):
    """How far a rank has come in the file that its main thread was last seen to read or write."""

    fd: int
    target: Text
    position: Count
    """Bytes from the beginning, as the kernel keeps it: read and write move it when they return."""
    writes: bool = False
    size: Count | None = None
    """When it was first seen; None where its file system did not answer."""
    mount: Text | None = None
    fstype: Text | None = None
    server: Text | None = None

    @property
    def whole(self) -> int | None:
        """Its size, where that tells how far it is: one that is written grows meanwhile."""
        return self.size if self.size and not self.writes and self.position <= self.size else None


class FileServer(Struct, frozen=True, gc=False):
    """How the node's connection to the server of a network file system stands."""

    mount: Text
    fstype: Text
    server: Text
    remote: Text
    """Address and port."""
    state: Text | None = None
    """As of a socket; None where there is no connection."""
    retransmits: int = 0
    """How often in a row the same was sent again."""

    @property
    def trouble(self) -> str | None:
        """What is wrong with it where somebody waits for it, `does not answer: ...`.

        A connection that nobody uses is closed after minutes, so that there is none says nothing
        of a mount for which nobody waits.
        """
        if self.state is None:
            return f"is not connected: the node has no connection to {self.remote}"
        if self.state != "ESTABLISHED":
            return f"does not answer: the connection to {self.remote} is in {self.state}"
        if self.retransmits >= UNANSWERED:
            told = f"sent {self.retransmits} times again"
            return f"does not answer: what was sent to {self.remote} is not acknowledged, {told}"
        return None


UNANSWERED = 3
"""Attempts in a row from which a connection counts as one that gets nowhere: 1.4 s."""


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
    """What its file system has none left of; only told of what is open for writing and local."""
    locked: Text | None = None
    """`held`, `waiting`, or `by others` that have it to themselves: flock, lockf and OFD locks."""
    watches: tuple[int, ...] = ()
    """Of an epoll, the descriptors that it watches."""


MOVES_S = 0.5
"""Seconds for which a position has to stay before it is said not to move."""


class Failure(Struct, frozen=True, gc=False):
    """Why something that was asked for did not come."""

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
    """Files this process waits to lock, from /proc/locks, with their holders."""
    opening: Descriptor | None = None
    """The file its main thread is blocked in opening, or looking at; it has no number yet. While
    that sleeps on a futex, the one of another thread."""
    servers: tuple[FileServer, ...] = ()
    """Those of its mounts, and whether they answer its node."""
    lock_files: tuple[Descriptor, ...] = ()
    """Lock files that other processes of its user have locked, with these: who tries a lock again
    and again has no file open."""
    store_port: Descriptor | None = None
    """Who listens on MASTER_PORT of its environment, in its network."""
    earlier: float | None = None
    """When they were read the last time before."""
    moved: tuple[int, ...] = ()
    """Those whose file is the same as then, and whose position is another."""

    def of(self, fd: int) -> Descriptor | None:
        """The descriptor with this number, where it was read."""
        return next((one for one in self.descriptors if one.fd == fd), None)

    def after(self, last: DescriptorTable | None) -> DescriptorTable:
        """Return the same with what has moved since ``last``."""
        if last is None or last.failure is not None:
            return self
        was = {(one.fd, one.target): one.position for one in last.descriptors}
        moved = (
            one.fd
            for one in self.descriptors
            if None not in (then := was.get((one.fd, one.target)), one.position)
            and then != one.position
        )
        return replace(self, earlier=last.at, moved=tuple(moved))

    def moves(self, item: Descriptor) -> bool | None:
        """Whether the position of a file moves; None where that has not shown yet."""
        if item.fd in self.moved:
            return True
        known = item.position is not None and self.earlier is not None
        return False if known and self.at - (self.earlier or 0.0) > MOVES_S else None
