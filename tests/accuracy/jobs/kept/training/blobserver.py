"""A small object store on localhost: blobserver.py PORT MODE FOLDER; goes to the background, ends when FOLDER does.

MODE stall: `/part-1-1-2` stops in the middle of its body; slow: every body takes some seconds; mute: PUT is read and
never answered; sink: PUT is read and answered.
"""

import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, MODE, FOLDER = int(sys.argv[1]), sys.argv[2], sys.argv[3]
SIZE = 40_000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        body = bytes(i % 251 for i in range(SIZE))
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        if MODE == "stall" and self.path.endswith("part-1-1-2"):
            self.wfile.write(body[: SIZE // 2])
            self.wfile.flush()
            time.sleep(3600)
        pieces = 40 if MODE == "slow" else 1
        for i in range(pieces):
            self.wfile.write(body[i * SIZE // pieces : (i + 1) * SIZE // pieces])
            self.wfile.flush()
            time.sleep(0.4 if MODE == "slow" else 0)

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        while left > 0:
            left -= len(self.rfile.read(min(left, 65536)))
        if MODE == "mute":
            time.sleep(3600)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
server.daemon_threads = True
if os.fork():
    os._exit(0)
os.setsid()
threading.Thread(target=server.serve_forever, daemon=True).start()
for _ in range(600):
    if not os.path.isdir(FOLDER):
        break
    time.sleep(1)
os._exit(0)
