"""The flight recorder of a rank, where it can be asked without touching the rank.

torch's C++ worker server (torch 2.13 `_WorkerServer`, started by
`torch.distributed.elastic.control_plane.worker_main` when TORCH_WORKER_SERVER_SOCKET is set)
answers on a unix socket of the rank, also while its main thread hangs and holds the GIL. Only
such a socket is asked, and only when the rank itself listens on it: what else a rank listens
on is not known to speak HTTP.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from . import activity, permission, procfs, table
from .requests import Message, Request, failure, pids_of
from .sockets import Socket, Sockets

SERVER_THREAD = "pt_workerserver"
HANDLER = "/handler/fr_trace_json"
MAX_ANSWER = 64 << 20
MAX_ENTRIES = 4000
_SECONDS = 5.0
_FIX = (
    "wrap the script's main function in torch.distributed.elastic.control_plane.worker_main() and"
    " set TORCH_WORKER_SERVER_SOCKET to a path that differs per rank"
)


def handle(request: Request, rights: permission.Rights) -> Message:
    """Answer `recorder`: a piece per process."""
    pids = pids_of(request.message)
    for pid in pids:
        request.check()
        piece = ask(pid, rights)
        request.give(piece)
    return {"pids": len(pids)}


def ask(pid: int, rights: permission.Rights, seconds: float = _SECONDS) -> Message:
    """Return the recorder of one process in the form of model.Recorder, or the failure."""
    stat = procfs.read_stat(pid)
    piece: Message = {"pid": pid, "start": stat.start if stat else None, "at": table.clock()}
    if stat is None:
        piece["failure"] = failure("gone", "the process is gone")
        return piece
    listening, why = find_server(pid, rights)
    if listening is None:
        piece["failure"] = why
        return piece
    try:
        body = post(_reachable(pid, listening.local), HANDLER, seconds)
        piece["entries"] = entries(json.loads(body))
        piece["source"] = "worker server %s" % listening.local
    except socket.timeout:
        text = "its worker server %s gave no answer in %g s" % (listening.local, seconds)
        piece["failure"] = failure("timeout", text)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        text = "its worker server %s: %s" % (listening.local, str(error)[:200])
        piece["failure"] = failure("error", text)
    return piece


def find_server(pid: int, rights: permission.Rights) -> Tuple[Optional[Socket], Optional[Message]]:
    """Return the unix socket the process's worker server listens on, or why there is none."""
    if SERVER_THREAD not in activity.thread_names(pid).values():
        return None, failure("missing", "the rank runs no worker server", _FIX)
    try:
        names = os.listdir("/proc/%d/fd" % pid)
    except OSError:
        return None, failure("denied", *permission.why_denied(pid, rights))
    links = [procfs.link("/proc/%d/fd/%s" % (pid, name)) for name in names]
    inodes = {link[8:-1] for link in links if link and link.startswith("socket:[")}
    for entry in Sockets(pid).by_inode.values():
        own = str(entry.inode) in inodes
        if own and entry.family == "unix" and entry.state == "LISTEN" and entry.local:
            return entry, None
    text = "its worker server listens on TCP, and which port is not known for sure"
    return None, failure("unsupported", text, _FIX)


def _reachable(pid: int, path: str) -> str:
    """Return the address to connect to: `\\0name`, or the path as the process sees it."""
    if path.startswith("@"):
        return "\0" + path[1:]
    same = procfs.link("/proc/%d/ns/mnt" % pid) == procfs.link("/proc/self/ns/mnt")
    if path.startswith("/"):
        return path if same else "/proc/%d/root%s" % (pid, path)
    return "/proc/%d/cwd/%s" % (pid, path)


def post(address: str, path: str, seconds: float) -> bytes:
    """POST to a HTTP server on a unix socket and return the body of its answer.

    Raise socket.timeout after ``seconds`` in all, OSError or ValueError on anything else.
    """
    deadline = time.monotonic() + seconds
    request = "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" % path
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(address)
        connection.sendall((request + "Connection: close\r\n\r\n").encode("ascii"))
        data = b""
        while not _complete(data):
            left = deadline - time.monotonic()
            if left <= 0:
                raise socket.timeout("timed out")
            connection.settimeout(left)
            part = connection.recv(1 << 20)
            if not part:
                break
            data += part
            if len(data) > MAX_ANSWER:
                raise ValueError("answer of more than %d bytes" % MAX_ANSWER)
    return _body(data)


def _headers(data: bytes) -> Tuple[bytes, Dict[str, str], bytes]:
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        raise ValueError("no HTTP answer")
    status, _, rest = head.partition(b"\r\n")
    return status, {k.lower(): v for k, v in procfs.parse_pairs(rest).items()}, body


def _complete(data: bytes) -> bool:
    if b"\r\n\r\n" not in data:
        return False
    _, headers, body = _headers(data)
    length = procfs.parse_int(headers.get("content-length"))
    return length is not None and len(body) >= length


def _body(data: bytes) -> bytes:
    status, headers, body = _headers(data)
    words = status.split()
    if len(words) < 2 or words[1] != b"200":
        raise ValueError("answered %s" % procfs.text(status)[:80])
    length = procfs.parse_int(headers.get("content-length"))
    if length is not None and len(body) < length:
        raise ValueError("cut answer")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks(body)
    return body


def _chunks(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if not length:
            break
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


def entries(dump: Dict[str, Any]) -> List[List[Any]]:
    """Reduce a dump to rows: group, its description, seq, op, sizes, completed, created_at.

    On gloo `state` stays `scheduled` for ever; `retired` and the group's last completed number
    tell completion (seen with torch 2.13, recorder version 2.10).
    """
    status = dump.get("pg_status") or {}
    done = {
        str(group): procfs.parse_int(str(values.get("last_completed_collective")))
        for group, values in status.items()
    }
    return [_entry(entry, done) for entry in (dump.get("entries") or [])[-MAX_ENTRIES:]]


def _entry(entry: Dict[str, Any], done: Dict[str, Optional[int]]) -> List[Any]:
    group, description = ([str(p) for p in entry.get("process_group") or []] + ["", ""])[:2]
    p2p = bool(entry.get("is_p2p"))
    seq = int(entry.get("p2p_seq_id" if p2p else "collective_seq_id") or 0)
    last = done.get(str(entry.get("pg_id")))
    passed = not p2p and last is not None and 0 < seq <= last
    created = entry.get("time_created_ns")
    return [
        group,
        description,
        seq,
        str(entry.get("profiling_name") or "?"),
        json.dumps(entry.get("input_sizes"), separators=(",", ":"))[:500],
        bool(entry.get("retired")) or entry.get("state") == "completed" or passed,
        created / 1e9 if isinstance(created, (int, float)) and created else None,
    ]
