"""Programs at the other end of a pipe that somebody waits on, and the connections they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.analysis.kernel import waits_in
from hangtop_core.text.clean import clean, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangtop_core.model.descriptors import Descriptor, Socket
    from hangtop_core.model.snapshot import Process, Rank

_COMMAND = 90
"""Characters of a command line in a sentence."""


def command(process: Process) -> str:
    """`'curl -s http://store/train-7.tar'`: of a long one both ends, since files stand last."""
    text = " ".join(process.cmdline) or process.comm
    if len(text) > _COMMAND:
        text = f"{text[: _COMMAND // 3]} ... {text[-(_COMMAND * 2 // 3 - 5) :]}"
    return clean(f"'{text}'", _COMMAND + 2)


def commands(rank: Rank) -> Mapping[int, str]:
    """The command lines of the programs that a rank and its children have started, by pid."""
    own = rank.process.cmdline
    some = (c for c in rank.children if c.role == "subprocess" and c.cmdline != own)
    return {child.pid: command(child) for child in some}


def at_work(rank: Rank, one: Descriptor) -> Descriptor:
    """A descriptor without those of its holders that only have it open.

    Who waits for a child of its own, as a shell does for what it has started, neither reads nor
    writes meanwhile.
    """
    if len(one.holders) < 2:
        return one
    waiting = {child.pid for child in rank.children if _waits_for_child(child)}
    rest = tuple(holder for holder in one.holders if holder.pid not in waiting)
    return msgspec.structs.replace(one, holders=rest) if rest else one


def _waits_for_child(process: Process) -> bool:
    main = process.main_thread
    alone = len(process.threads) < 2 and (process.thread_count or 1) < 2
    return alone and waits_in(main) == "child"


def connections(rank: Rank, pid: int) -> list[Descriptor]:
    """The connections of a child of a rank that are its own: forked ones have their parent's, too.

    None where they may be, and the rank's own are not known. A program has none that it inherits.
    """
    table, parent = rank.child_descriptors.get(pid), rank.descriptors
    if table is None or (parent is None and pid not in commands(rank)):
        return []
    inherited = {one.target for one in rank.opened}
    return [
        one
        for one in table.descriptors
        if one.socket is not None
        and one.socket.family == "tcp"
        and one.socket.state != "LISTEN"
        and one.target not in inherited
    ]


def connected(rank: Rank, pids: Iterable[int]) -> str:
    """`, connected to 10.0.0.7:443`, of the first ones; empty where none is known.

    With what the other end has not taken, or it has not read.
    """
    sockets = [one.socket for pid in pids for one in connections(rank, pid) if one.socket]
    tried = {one.remote: None for one in sockets if one.state == "SYN_SENT"}
    found = {f"{s.remote}{_queued(s)}": None for s in sockets if s.state != "SYN_SENT"}
    text = f", connected to {', '.join(list(found)[:3])}" if found else ""
    return text + (f", trying to connect to {', '.join(list(tried)[:3])}" if tried else "")


def _queued(socket: Socket) -> str:
    unread = f"{size(socket.recv_queue)} from there are not read" if socket.recv_queue else ""
    unsent = f"{size(socket.send_queue)} for it are not acknowledged" if socket.send_queue else ""
    told = ", ".join(part for part in (unsent, unread) if part)
    return f" ({told})" if told else ""


def program_below(rank: Rank, process: Process) -> Process | None:
    """The program that a shell waits for: of a pipeline one that does not wait for the others.

    Likewise of a program that reads a pipe, as git does what git-remote-http writes.
    """
    found = None
    while _waits_for_child(process) or _in_pipe(process, ("pipe-read",)):
        some = [c for c in rank.children if c.ppid == process.pid and not c.ended]
        if not some:
            break
        process = found = min(some, key=lambda c: (not connections(rank, c.pid), _in_pipe(c)))
    return found


def _in_pipe(process: Process, families: tuple[str, ...] = ("pipe-read", "pipe-write")) -> bool:
    main = process.main_thread
    family = waits_in(main)
    return family in families
