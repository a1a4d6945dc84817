"""Stands in for NCCL's RAS within a process: no GPU is here. Used by support.ras and ras_job.py.

Maps a file of NCCL's name, and answers on a thread that has no name of its own: NCCL gives it one
only with NCCL_SET_THREAD_NAME=1.
"""

from __future__ import annotations

import json
import mmap
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

_MAPPED = []


def start(told: dict[str, Any]) -> None:
    """Listen from now on.

    `library` is the file to map, `port` where to listen; `answer` and `log` are the files of what
    is said and of what was asked. `format` is what is said to JSON, `times` how often the answer is
    said, and `hang` whether the end of it never comes.
    """
    with open(told["library"], "rb") as file:
        _MAPPED.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", told["port"]))
    listening.listen(8)
    threading.Thread(target=_serve, args=(listening, told), daemon=True).start()


def _serve(listening: socket.socket, told: dict[str, Any]) -> None:
    while True:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            _talk(connection, told)


def _talk(connection: socket.socket, told: dict[str, Any]) -> None:
    for line in connection.makefile("rb"):
        command = line.strip().decode().lower()
        if command.startswith("timeout "):
            connection.sendall(b"OK\n")
        elif command == "set format json":
            connection.sendall(told.get("format", "OK").encode() + b"\n")
        elif command.endswith("status"):
            with open(told["log"], "a") as log:
                log.write(command + "\n")
            with open(told["answer"], "rb") as answer:
                data = answer.read()
            for _ in range(told.get("times", 1)):
                connection.sendall(data)
            if told.get("hang"):
                time.sleep(600)
            return
        else:
            connection.sendall(b"ERROR: Unknown command\n")


if __name__ == "__main__":
    start(json.loads(sys.argv[1]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
