"""Things beside the job that it talks to: a dataset mirror, a bucket, a reward model, a scheduler.

start(KIND, ARGUMENT...) runs one of them apart from the job; it ends when its starter does.
"""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time

SHARD = 24 << 20


def start(kind: str, *arguments: object) -> None:
    """Run this file with that kind, detached from the job's process tree and its environment."""
    ours = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    argv = [sys.executable, __file__, kind, str(os.getpid()), *map(str, arguments)]
    background = '"$@" </dev/null >/dev/null 2>&1 &'
    subprocess.run(
        ["sh", "-c", background, "sh", *argv], env=env, check=True, start_new_session=True
    )
    if kind != "scheduler":
        connect(int(arguments[0])).close()


def connect(port: int) -> socket.socket:
    """A connection to a port of this machine, once somebody listens there."""
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nobody listens on {port}")


class Mirror(http.server.BaseHTTPRequestHandler):
    """Throttled; cuts connections after a while, and is then busy for the next two requests."""

    refusals = 0

    def do_GET(self) -> None:
        if Mirror.refusals:
            Mirror.refusals -= 1
            self.send_error(503)
            return
        begin = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(SHARD - begin))
        self.end_headers()
        for _ in range(10):
            self.wfile.write(bytes(192 << 10))
            time.sleep(1.5)
        Mirror.refusals = 2
        self.close_connection = True


class Reward(http.server.BaseHTTPRequestHandler):
    """Thinks for a quarter of a minute about each answer it is to judge."""

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(14 + len(text) % 6)
        body = json.dumps({"reward": len(text) % 7 / 7}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def bucket(port: int) -> None:
    """Takes uploads, 32 KiB each second: the account is over its bandwidth."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=take, args=(connection,), daemon=True).start()


def take(connection: socket.socket) -> None:
    stream = connection.makefile("rb")
    while line := stream.readline():
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        while length > 0:
            length -= len(stream.read(min(length, 32 << 10)))
            time.sleep(1)
        connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\n\r\n')


def main() -> None:
    kind, starter, *arguments = sys.argv[1:]

    def follow() -> None:
        while os.path.exists(f"/proc/{starter}"):
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    if kind == "bucket":
        bucket(int(arguments[0]))
    elif kind == "scheduler":
        time.sleep(float(arguments[1]))
        with open(arguments[0], "w") as file:
            json.dump({"state": "run", "learning_rate": 0.005}, file)
    else:
        handler = {"mirror": Mirror, "reward": Reward}[kind]
        http.server.ThreadingHTTPServer(("127.0.0.1", int(arguments[0])), handler).serve_forever()


if __name__ == "__main__":
    main()
