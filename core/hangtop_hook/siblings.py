"""The flight recorders of the other ranks of this node, read by a rank that ends by an exception.

A launcher ends the other ranks as soon as one fails, by SIGTERM as a rule, which leaves them no
time to write: a Python handler would only run once a blocked main thread returns to the
interpreter, and any handler at all, like a blocked signal, is inherited, found by frameworks and
ends ranks later. torch's worker server answers in them without the GIL, so the failing rank asks
for their recordings.

What a rank writes itself at its end replaces what is written here.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from . import server

LONGEST_S = 1.0
"""Seconds by which asking all others may delay the end of a rank."""
MAX_ANSWER = 16 << 20
_PATH = "/handler/fr_trace_json"


def running(directory: str) -> Iterator[Tuple[int, str]]:
    """Yield the other ranks of a run that live on this node, each with its socket."""
    folder = server.socket_directory()
    for name in sorted(os.listdir(folder)):
        pid = name.rpartition("-")[2].partition(".")[0]
        if not pid.isdigit() or name != server.socket_name(directory, int(pid)):
            continue
        environ = _environ(int(pid))
        number = environ.get("RANK", "")
        is_of_run = environ.get("HANGTOP_RUN_DIR", directory) == directory
        if int(pid) != os.getpid() and is_of_run and number.isdigit() and len(number) < 10:
            yield int(number), os.path.join(folder, name)


def _environ(pid: int) -> Dict[str, str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in pairs)


def ask(path: str, until: float) -> Optional[Dict[str, Any]]:
    """Return the recording of a rank; None if it is empty, or the rank does not respond."""
    import http.client

    connection = http.client.HTTPConnection("localhost")
    with contextlib.closing(connection), socket.socket(socket.AF_UNIX) as end:
        end.settimeout(max(until - time.monotonic(), 0.01))
        end.connect(path)
        connection.sock = end
        connection.request("POST", _PATH)
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER + 1) if answer.status == 200 else b""
    dump = json.loads(body) if 0 < len(body) <= MAX_ANSWER else None
    return dump if isinstance(dump, dict) and dump.get("entries") else None


def recorders(
    directory: str, groups: Mapping[str, Mapping[str, str]], until: float
) -> Iterator[Tuple[int, bytes]]:
    """Yield the recordings of other ranks, with the ranks of groups, which gloo does not record."""
    for rank, path in running(directory):
        if time.monotonic() > until:
            return
        with contextlib.suppress(OSError, ValueError):
            dump = ask(path, until)
            if dump is not None:
                config = dump.get("pg_config")
                if groups and not (isinstance(config, dict) and any(config)):
                    dump["pg_config"] = dict(groups)
                dump["hangtop"] = {"ended": "running", "why": ""}
                yield rank, json.dumps(dump).encode()
