"""A stand-in for an object store. objectstore.py PORT MODE: stall (stops reading), slow (reads slowly), half (answers half)."""

import socketserver
import sys
import time

MODE = sys.argv[2]


class Handler(socketserver.StreamRequestHandler):
    def head(self) -> tuple[str, int]:
        line = self.rfile.readline().decode()
        length = 0
        while header := self.rfile.readline().strip():
            name, _, value = header.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return line, length

    def handle(self) -> None:
        while True:
            line, length = self.head()
            if not line:
                return
            if line.startswith("GET"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n")
                broken = "shard-00011" in line
                self.wfile.write(b"\0" * (20000 if broken else 65536))
                self.wfile.flush()
                if broken:
                    time.sleep(100000)
                continue
            got = 0
            while got < length:
                if MODE == "stall" and got > 300_000:
                    time.sleep(100000)
                got += len(self.rfile.read(min(64 << 10, length - got)))
                time.sleep(0.08 if MODE == "slow" else 0)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
