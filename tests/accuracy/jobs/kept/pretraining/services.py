"""What stands beside a job in production: an object gateway, a tracking server, somebody's old process.

`start(mode, ...)` is called by one rank; the service is no child of it, and carries no RANK.
"""

import os
import socket
import subprocess
import sys
import threading
import time

FOREIGN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def start(mode, *arguments):
    """Start a service that belongs to nobody here."""
    env = {
        k: v for k, v in os.environ.items() if k not in FOREIGN and not k.startswith("TORCHELASTIC")
    }
    words = " ".join([sys.executable, __file__, mode, *map(str, arguments)])
    null = subprocess.DEVNULL
    subprocess.run(
        ["sh", "-c", f"setsid {words} &"], env=env, stdin=null, stdout=null, stderr=null, check=True
    )


def wait_for(path, patience=90.0):
    """The contents of a file that a service writes."""
    end = time.monotonic() + patience
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.05)
    with open(path) as file:
        return file.read().strip()


def listen(path):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in range(30000 + os.getpid() % 400, 30500):
        try:
            server.bind(("127.0.0.1", port))
            break
        except OSError:
            continue
    server.listen(64)
    with open(path + ".tmp", "w") as file:
        file.write(str(server.getsockname()[1]))
    os.rename(path + ".tmp", path)
    return server


def request(conn):
    """The head of one HTTP request, and what came of its body; None when the client is gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(65536)
        if not more:
            return None
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def length_of(head):
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def serve(conn, mode):
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    while (got := request(conn)) is not None:
        head, rest = got
        if b"Expect: 100-continue" in head:
            conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if b"x-stall: 1" in head.lower():  # the backend behind the gateway never comes back
            time.sleep(3600)
        left = length_of(head) - len(rest)
        while left > 0:
            if mode == "throttled":
                time.sleep(0.25)
            left -= len(conn.recv(min(left, 16384 if mode == "throttled" else 65536)))
        body = b"{}" if not head.startswith(b"GET") else os.urandom(4096)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def gateway(path, mode):
    server = listen(path)
    while True:
        conn, _ = server.accept()
        threading.Thread(target=serve, args=(conn, mode), daemon=True).start()


def notebook(lock, path):
    """Yesterday's preprocessing in somebody's notebook: the lock is still held by its kernel."""
    import fcntl

    file = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    with open(path, "w") as ready:
        ready.write("held")
    time.sleep(3600)


if __name__ == "__main__":
    {"gateway": gateway, "notebook": notebook}[sys.argv[1]](*sys.argv[2:])
