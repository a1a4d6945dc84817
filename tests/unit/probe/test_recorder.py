from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe import permission, recorder

if TYPE_CHECKING:
    from pathlib import Path


def entry(seq: int, **fields: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[4, 2]],
        "retired": False,
        "state": "scheduled",
        "time_created_ns": 1795239014403337547,
        **fields,
    }


def test_completion_by_retired_state_and_group_status() -> None:
    dump = {
        "pg_status": {"0": {"last_completed_collective": "2", "last_enqueued_collective": "4"}},
        "entries": [
            entry(1, retired=True),
            entry(2),
            entry(3, state="completed"),
            entry(4),
            entry(0, is_p2p=True, p2p_seq_id=1, profiling_name="nccl:send 0->1"),
        ],
    }
    rows = recorder.entries(dump)
    assert [(row[2], row[5]) for row in rows] == [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
        (1, False),
    ]
    assert rows[0][:5] == ["0", "default_pg", 1, "gloo:all_reduce", "[[4,2]]"]
    assert rows[0][6] == pytest.approx(1795239014.4033375)


def test_a_dump_without_entries() -> None:
    assert recorder.entries({}) == []
    assert recorder.entries({"entries": [{}]}) == [["", "", 0, "?", "null", False, None]]


def serve(path: Path, answer: bytes, keep: bool = False) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        connection, _ = server.accept()
        with server, connection:
            connection.recv(4096)
            connection.sendall(answer)
            if keep:
                connection.settimeout(3)
                connection.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_http_with_length_chunks_and_neither(tmp_path: Path) -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ]
    for number, answer in enumerate(answers):
        path = tmp_path / str(number)
        thread = serve(path, answer)
        assert recorder.post(str(path), "/x", 3) == b"{}"
        thread.join(3)


def test_http_that_fails(tmp_path: Path) -> None:
    for number, answer in enumerate(
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-x\r\n", b"")
    ):
        path = tmp_path / str(number)
        thread = serve(path, answer)
        with pytest.raises((ValueError, OSError)):
            recorder.post(str(path), "/x", 3)
        thread.join(3)


def test_http_that_never_answers(tmp_path: Path) -> None:
    thread = serve(tmp_path / "s", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", keep=True)
    with pytest.raises(TimeoutError):
        recorder.post(str(tmp_path / "s"), "/x", 0.2)
    thread.join(5)


def test_a_process_without_a_worker_server_says_what_to_do() -> None:
    failure = recorder.ask(os.getpid(), permission.rights())["failure"]
    assert failure["kind"] == "missing"
    assert "TORCH_WORKER_SERVER_SOCKET" in failure["fix"]
    assert recorder.ask(2**22 + 1, permission.rights())["failure"]["kind"] == "gone"
