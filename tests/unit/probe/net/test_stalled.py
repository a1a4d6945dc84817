"""Connections without an answer are told by the kernel's own count."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from hangtop_probe.net import stalled
from hangtop_probe.net.sockets import own_inodes, parse_inet

if TYPE_CHECKING:
    import pytest

HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt ... inode\n"


def row(inode: int, timer: str = "01:00000A00", again: int = 7, state: str = "01") -> bytes:
    text = f"   0: 0200004D:9C40 0300004D:C738 {state} 00001000:00000000 {timer} {again:08X}"
    return f"{text}     0        0 {inode} 2 0000000000000000 20 4 30 10 -1\n".encode()


def test_the_kernels_count_of_attempts_is_read() -> None:
    unanswered = row(14, "04:00000010", 0).replace(b" 0 14", b" 6 14")
    data = HEAD + row(11) + row(12, "00:00000000", 0) + row(13, "04:00000010", 3) + unanswered
    assert [(one.inode, one.retransmits) for one in parse_inet(data, "tcp")] == [
        (11, 7),
        (12, 0),
        # A peer that does not read is probed, and answers; where none does, that is counted.
        (13, 0),
        (14, 6),
    ]


def test_of_a_process_those_it_owns_and_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as mine, socket.socket() as other:
        inodes = [os.fstat(one.fileno()).st_ino for one in (mine, other)]
        assert set(inodes) <= own_inodes(os.getpid())
        data = HEAD + row(inodes[0]) + row(inodes[1], again=2) + row(7) + row(8, state="06")
        reads: list[str] = []

        def read_all(path: str) -> bytes:
            reads.append(path)
            return data if path.endswith("/tcp") else HEAD

        monkeypatch.setattr(stalled.procfs, "read_all", read_all)
        now = [100.0]
        looking = stalled.Stalled(lambda: now[0])
        found = looking.of(os.getpid())
        assert [(one["unacknowledged"], one["retransmits"]) for one in found] == [(4096, 7)]
        looking.of(os.getpid())
        assert len(reads) == 2  # one look for all, for a while
        now[0] += stalled.LOOK_S
        data = HEAD
        assert looking.of(os.getpid()) == []
        assert len(reads) == 4

        spent = [0.0]

        def costly(path: str) -> bytes:
            spent[0] += 0.01
            return read_all(path)

        monkeypatch.setattr(stalled.procfs, "read_all", costly)
        monkeypatch.setattr(stalled.time, "thread_time", lambda: spent[0])
        for later, count in ((stalled.LOOK_S, 6), (9.9, 6), (0.1, 8)):
            now[0] += later
            looking.of(os.getpid())
            assert len(reads) == count, "20 ms of 0.2 % of a core"
