"""Who hosts the store, and who is connected to it: what threads and sockets of a rank tell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.sourcelines import makes_store
from hangtop_core.model.process import STORE_THREAD
from hangtop_core.text.addresses import port_of

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.model.descriptors import Descriptor, Socket

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")


def in_store(subject: Subject) -> bool:
    """Whether a rank is still making its store: as the host, or connecting to it."""
    return subject.activity.kind == "init" and makes_store(subject.activity.top)


def hosts_store(subject: Subject) -> bool:
    """Whether a rank has a store itself; torch names the thread for it since 2.6."""
    return any(one.name.startswith(STORE_THREAD) for one in subject.rank.process.threads)


def names_it(subject: Subject) -> bool:
    """Whether its torch is known to give the thread of a store that name."""
    version = _VERSION.match(subject.rank.process.versions.get("torch", ""))
    return version is not None and (int(version[1]), int(version[2])) >= (2, 6)


def by_torchrun(subject: Subject) -> bool:
    """Whether torchrun started it, and so hosts the store that MASTER_PORT names."""
    return "TORCHELASTIC_RUN_ID" in subject.rank.process.env


def open_sockets(subject: Subject) -> tuple[Descriptor, ...]:
    """Its TCP sockets, as far as its descriptors were read."""
    some = subject.rank.opened
    return tuple(one for one in some if one.socket is not None and one.socket.family == "tcp")


def tcp_sockets(subject: Subject) -> tuple[Socket, ...]:
    """The same without their numbers."""
    return tuple(one.socket for one in open_sockets(subject) if one.socket is not None)


def connects(subject: Subject) -> bool:
    """Whether it tried to connect and had no answer when its sockets were looked at."""
    return any(one.state == "SYN_SENT" for one in tcp_sockets(subject))


def listens_at(subject: Subject) -> str:
    """The port of the store that a rank hosts, to which it is connected itself; empty: unknown."""
    some = tcp_sockets(subject)
    open_ = {port_of(one.local) for one in some if one.state == "LISTEN"}
    own = {port_of(one.remote) for one in some if one.peer_pid == subject.pid} & open_
    told = subject.rank.process.told_port
    return own.pop() if len(own) == 1 else str(told or "")
