"""Takes runs' metrics; after some the database behind it does not answer any more."""

import http.server
import sys
import time

seen = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        global seen
        self.rfile.read(int(self.headers["Content-Length"]))
        seen += 1
        if seen > 12:
            time.sleep(100000)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
