"""What jobs talk to that is not theirs, as daemons of the machine: children of no rank.

services.py KIND PORT_OR_PATH serves; `reach(KIND, PORT)` sees to it that one runs.
"""

import fcntl
import io
import os
import socket
import socketserver
import subprocess
import sys
import tarfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FOREVER = 100_000


def start(kind, where):
    """Start one that outlives whoever asked for it."""
    env = {k: v for k, v in os.environ.items() if k not in OURS and "TORCH" not in k}
    command = f'"{sys.executable}" "{os.path.abspath(__file__)}" {kind} "{where}" &'
    nowhere = subprocess.DEVNULL
    options = {"stdin": nowhere, "stdout": nowhere, "stderr": nowhere, "env": env}
    subprocess.run(["sh", "-c", command], start_new_session=True, check=True, **options)


def reach(kind, port):
    """The address of the service; the first process of the machine starts it."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        start(kind, port)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return f"127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no {kind} at {port}")


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


class Blobs(Quiet):
    """Shards by number, of which one ends in the middle; objects of a cold tier, at a trickle."""

    lost = "shard-008.tar"

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        body = shard() if name.endswith(".tar") else bytes(65536)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if name == self.lost:
            self.wfile.write(body[:100_000])
            time.sleep(FOREVER)
        elif "/cold/" in self.path:
            for at in range(0, len(body), 4096):
                self.wfile.write(body[at : at + 4096])
                time.sleep(0.35)
        else:
            self.wfile.write(body)


def shard():
    """A tar of sixteen arrays."""
    with tarfile.open(fileobj=(out := io.BytesIO()), mode="w") as tar:
        for n in range(16):
            member = tarfile.TarInfo(f"{n:06d}.bin")
            member.size = 16384
            tar.addfile(member, io.BytesIO(bytes([n]) * 16384))
    return out.getvalue()


class Registry(Quiet):
    """Takes a model, and dies over its answer."""

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "512")
        self.end_headers()
        self.wfile.write(b'{"name": "adapter", "version": 7, "files": [')
        time.sleep(FOREVER)


class Features(socketserver.StreamRequestHandler):
    """Answers HMGET in RESP; of the tenth question a part."""

    def handle(self):
        asked = 0
        while line := self.rfile.readline():
            parts = []
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                parts.append(self.rfile.read(size + 2)[:-2])
            asked, fields = asked + 1, len(parts) - 2
            whole = b"*%d\r\n" % fields + b"$4\r\n0.25\r\n" * fields
            if asked == 8 and parts[1].startswith(b"user:2:"):
                self.wfile.write(whole[:18])
                time.sleep(FOREVER)
            self.wfile.write(whole)


class Collector(socketserver.BaseRequestHandler):
    """Takes the first lines of a log, and then no more."""

    def handle(self):
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.request.recv(2048)
        time.sleep(FOREVER)


class Mute(socketserver.BaseRequestHandler):
    """Takes a question, and has no answer."""

    def handle(self):
        self.request.recv(4096)
        time.sleep(FOREVER)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def hold(path):
    """A preparation of data that has the manifest, and does not get on."""
    manifest = open(path, "a+b")
    fcntl.lockf(manifest, fcntl.LOCK_EX)
    open(path + ".held", "wb").close()
    time.sleep(FOREVER)


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    if kind == "hold":
        hold(where)
    http = {"blobs": Blobs, "registry": Registry}
    plain = {"features": Features, "collector": Collector, "policy": Mute}
    serve = ThreadingHTTPServer if kind in http else Server
    serve(("127.0.0.1", int(where)), {**http, **plain}[kind]).serve_forever()
