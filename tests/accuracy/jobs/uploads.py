"""Training that hands its results to a slow service, in the ways that programs do that.

python uploads.py WAY

With a WAY that begins with `hung-` somebody waits for what never comes, and a heartbeat, or a
transfer that has nothing to do with it, goes on.
"""

import asyncio
import http.client
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context

import torch
import torch.distributed as dist

PIECE, PAUSE_S = 1000, 0.1
"""Bytes that the service takes or gives at a time: ten kilobytes a second."""
LARGE = 200_000_000


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_): ...

    def do_GET(self):
        self.send_response(200)
        if self.path == "/ping":
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
            return
        self.send_header("Content-Length", str(LARGE))
        self.end_headers()
        while True:
            self.wfile.write(bytes(PIECE))
            time.sleep(PAUSE_S)

    def do_PUT(self):
        while True:
            self.rfile.read1(PIECE)
            time.sleep(PAUSE_S)


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    print(server.server_port, flush=True)
    server.serve_forever()


def start_service():
    """A program of its own; it ends with the rank, whose end of its pipe it loses."""
    code = (
        f"import sys, threading, os; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()\n"
        "from uploads import serve; serve()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    service = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)
    return int(service.stdout.readline()), service


def upload(port, timeout=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("PUT", "/checkpoint", body=bytes(LARGE))
    connection.getresponse().read()


def download(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/shard") as answer:
        while answer.read(4096):
            pass


async def upload_async(port):
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PUT /checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LARGE)
    while True:
        writer.write(bytes(65536))
        await writer.drain()


def beat(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        connection.request("GET", "/ping", headers={"User-Agent": "a heartbeat " * 20})
        connection.getresponse().read()
        time.sleep(1)


async def beat_async(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 250 + b"\r\n\r\n")
        await reader.read(4096)
        await asyncio.sleep(1)


def thread(target, *args):
    made = threading.Thread(target=target, args=args, daemon=True)
    made.start()
    return made


def loop_of_a_thread():
    loop = asyncio.new_event_loop()
    thread(loop.run_forever)
    return loop


def in_queue(port):
    parts = queue.Queue()
    thread(lambda: (download(parts.get()), parts.task_done()))
    parts.put(port)
    parts.join()


def polled(port):
    done = ThreadPoolExecutor(1).submit(upload, port)
    while not done.done():
        time.sleep(0.5)


def in_process(port):
    process = get_context("fork").Process(target=upload, args=(port,))
    process.start()
    process.join()


def never():
    return threading.Event().wait()


def hung_lock(port):
    thread(beat, port)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hung_loop(port):
    asyncio.run_coroutine_threadsafe(beat_async(port), loop_of_a_thread())
    thread(never).join()


def hung_future(port):
    thread(download, port)
    ThreadPoolExecutor(1).submit(never).result()


WAYS = {
    "join": lambda port: thread(download, port).join(),
    "future": lambda port: ThreadPoolExecutor(1).submit(upload, port, 600).result(),
    "queue": in_queue,
    "poll": polled,
    "loop": lambda port: asyncio.run_coroutine_threadsafe(
        upload_async(port), loop_of_a_thread()
    ).result(),
    "main": lambda port: upload(port, 600),
    "process": in_process,
    "hung-lock": hung_lock,
    "hung-loop": hung_loop,
    "hung-future": hung_future,
}


def main():
    dist.init_process_group("gloo")
    port, _service = start_service() if dist.get_rank() == 0 else (None, None)
    for step in range(100_000):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.1)
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
            if step == 7:
                WAYS[sys.argv[1]](port)


if __name__ == "__main__":
    main()
