"""Open descriptors of a rank as table rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangtop.terminal.columns import Column
from hangtop.terminal.spans import Line, labelled, line
from hangtop.views.common import ago
from hangtop_core.analysis.openers import holder_text, how_many, process_names
from hangtop_core.analysis.peers import End, peers
from hangtop_core.text.clean import size

if TYPE_CHECKING:
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.model.snapshot import Process, Rank, Snapshot


@dataclass(frozen=True, slots=True)
class FileRow:
    """One descriptor; `used` when a thread is in a system call on it."""

    key: str
    item: Descriptor
    used: bool
    waiting: bool = False
    peer: str = ""
    """The other end of a socket: `rank 6 on node-2`."""
    holders: str = ""
    """The holder of the lock, or of the other end of a pipe: `rank 0 holds the lock`."""
    moves: bool = False
    """Whether its position changed since the previous reading."""


def file_rows(rank: Rank, snapshot: Snapshot | None) -> list[FileRow]:
    """Return descriptors, blocking ones first; ``snapshot`` resolves the other ends."""
    table = rank.descriptors
    if table is None:
        return []
    used = _used_descriptors(rank.process)
    names = process_names(snapshot, rank.node) if snapshot is not None else {}

    def holders(item: Descriptor) -> str:
        return ", ".join(holder_text(names, holder) for holder in item.holders)

    rows = [
        FileRow(f"lock:{item.target}", item, True, True, holders=holders(item))
        for item in table.waiting_locks
    ]
    ends = peers(snapshot) if snapshot is not None else {}
    waits = {(item.fd, item.target) for item in table.waiting_locks}
    for item in table.descriptors:
        if item.locked == "waiting" and (item.fd, item.target) in waits:
            continue
        peer = ends.get(End(rank.node, rank.process.pid, item.fd))
        row = FileRow(
            key=f"fd:{item.fd}",
            item=item,
            used=item.fd in used,
            # A program outside the job is named with its pid below.
            peer=peer.text if peer and (peer.rank is not None or not peer.pid) else "",
            holders=holders(item),
            moves=table.moves(item) is True,
        )
        rows.append(row)
    rows.sort(key=lambda row: (not row.waiting, not row.used, _weight(row.item), row.item.fd))
    return rows


def _used_descriptors(process: Process) -> set[int]:
    """Return the descriptors that threads of a process use in a system call.

    Polls of libraries in their own threads do not count: they would only reorder rows.
    """
    return {
        thread.fd
        for thread in process.threads
        if thread.fd is not None and (thread.tid == process.pid or not _polls(thread.syscall))
    }


def _polls(syscall: str | None) -> bool:
    return syscall is not None and syscall.startswith("epoll")


def _weight(item: Descriptor) -> int:
    return {"socket": 1, "file": 0, "pipe": 1, "fifo": 1}.get(item.kind, 2)


def files_title(rank: Rank, now: float, why: str) -> tuple[Line, Line]:
    """Return title and note of the pane."""
    title = line(("OPEN FILES", "title"))
    table = rank.descriptors
    if table is None:
        return title, line(("not read" if why else "asking", "dim"))
    return (
        line(title, f"  {how_many(table, rank.process)}"),
        line(("read ", "label"), ago(table.at, now)),
    )


def files_empty(rank: Rank, asking: bool, why: str) -> list[Line]:
    """Return the text of the pane when there is no descriptor."""
    table = rank.descriptors
    if table is None and why:
        return [line((f"not read: {why}", "warn"))]
    if table is None:
        return [line(("asking the node…" if asking else "not read yet; l asks", "dim"))]
    if table.failure is None:
        return [line("No open descriptor.")]
    lines = [line((table.failure.text, "warn"))]
    if table.failure.fix:
        lines.append(labelled("fix", table.failure.fix, 4))
    return lines


SHORT_STATES = {"ESTABLISHED": "ESTAB", "CLOSE_WAIT": "CLOSE-WAIT", "TIME_WAIT": "TIME-WAIT"}
"""State names as ss(8) writes them, so that both ends of a connection fit."""


def _state(row: FileRow) -> Line:
    item = row.item
    if row.waiting:
        return line(("waits for lock", "bad"))
    if item.socket is not None:
        queues = f" q {item.socket.recv_queue}/{item.socket.send_queue}"
        busy = item.socket.recv_queue or item.socket.send_queue
        state = SHORT_STATES.get(item.socket.state, item.socket.state)
        return line(state, (queues, "warn" if busy else "dim"))
    if item.locked:
        return line((f"lock {item.locked}", "warn"))
    if item.position is not None and item.size:
        whole = size(item.size)
        far = size(item.position).removesuffix(f" {whole.split()[1]}")
        far = "end of " if item.position == item.size else f"{far}/"
        return line(f"{far}{whole}", (" moves" if row.moves else "", "good"))
    return line((item.mode, "dim"))


def _target(row: FileRow) -> Line:
    item = row.item
    if item.socket is not None:
        text = item.socket.local
        if item.socket.remote:
            text += f" → {item.socket.remote}"
        return line(text, (f" = {row.peer}" if row.peer else "", "info"))
    server = f"  ({item.fstype} {item.server})" if item.server else ""
    return line((item.target, "bold" if row.used else ""), (server, "warn"))


def _far_ends(row: FileRow) -> str:
    item = row.item
    ends = [row.holders] if row.holders else []
    if item.socket is not None and item.socket.peer_pid is not None:
        ends.append(f"{item.socket.peer_name or 'pid'} {item.socket.peer_pid}")
    return ", ".join(ends)


# 120 columns fit the longest state and the shortest useful target side by side.
FILE_COLUMNS: tuple[Column[FileRow], ...] = (
    Column(
        "fd",
        "FD",
        lambda row: line(
            (str(row.item.fd) if row.item.fd >= 0 else "-", "bold" if row.used else "")
        ),
        lambda row: row.item.fd,
        align="right",
        minimum=3,
    ),
    Column("used", "", lambda row: line(("◀" if row.used else "", "culprit")), optional=True),
    Column(
        "kind",
        "KIND",
        lambda row: line(row.item.kind),
        lambda row: row.item.kind,
        minimum=4,
        maximum=9,
        drop=4,
    ),
    Column(
        "state",
        "STATE",
        _state,
        lambda row: "".join(s.text for s in _state(row)),
        minimum=6,
        maximum=22,
        drop=2,
    ),
    Column(
        "target",
        "TARGET",
        _target,
        lambda row: row.item.target,
        minimum=24,
        maximum=90,
        flex=True,
        keep_end=True,
    ),
    Column(
        "others",
        "OTHER END",
        lambda row: line((_far_ends(row), "info")),
        _far_ends,
        minimum=14,
        maximum=36,
        flex=True,
        optional=True,
        drop=3,
    ),
)
