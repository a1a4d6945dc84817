"""A mirror of a model hub, for `finetune.py`: mirror.py PORT MIB stall|slow

stall: its storage stops answering in the middle of a file. slow: 600 kB/s, all the way.
"""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, MIB, MODE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
BLOCK = bytes(64 << 10)


class Mirror(BaseHTTPRequestHandler):
    """Serves one file, whatever its name."""

    def do_GET(self):
        total = MIB << 20
        self.send_response(200)
        self.send_header("Content-Length", str(total))
        self.end_headers()
        for sent in range(0, total, len(BLOCK)):
            if MODE == "stall" and sent > total * 0.4:
                threading.Event().wait()  # the storage behind it
            if MODE == "slow":
                time.sleep(0.11)
            self.wfile.write(BLOCK)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Mirror)
    server.daemon_threads = True
    server.serve_forever()
