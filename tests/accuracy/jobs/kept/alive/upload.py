"""Rank 0 hands each checkpoint to curl, for a bucket elsewhere; the others wait in a barrier.

upload.py slow|stuck|metrics

slow: the gateway takes 160 KB a second. stuck: after some megabytes it takes nothing any more.
metrics: the same, and rank 0 has an exporter of metrics beside it, a child that idles.
"""

import datetime
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

PORT = {"slow": 29120, "stuck": 29121, "metrics": 29122}
EXPORTER = 29123
MEGABYTES = 96
CHUNK = 1 << 15
STUCK_AFTER = 4 << 20


class Gateway(http.server.BaseHTTPRequestHandler):
    """Takes uploads."""

    protocol_version = "HTTP/1.1"
    stuck = False
    replica = threading.Event()
    """Another copy was written; the gateway waits for that now and then."""

    def do_PUT(self) -> None:
        """Read the body, as fast as the bucket behind takes it."""
        left = int(self.headers["Content-Length"])
        quick, taken = left < 1 << 20, 0
        while left > 0:
            taken += len(self.rfile.read(min(CHUNK, left)))
            left -= CHUNK
            if self.stuck and taken >= STUCK_AFTER:
                self.replica.wait()
            if not quick and not self.stuck:
                time.sleep(0.2)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def start_gateway(mode: str) -> None:
    """Somebody else's service, for the job's sake on this machine."""
    clean = {k: v for k, v in os.environ.items() if "RANK" not in k and "WORLD" not in k}
    command = ["setsid", "--fork", sys.executable, __file__, mode, "gateway"]  # nobody's child
    subprocess.run(command, env=clean, check=True)
    while socket.socket().connect_ex(("127.0.0.1", PORT[mode])):
        time.sleep(0.5)


class Bucket:
    """Uploads with the command line tool that is on every image."""

    def __init__(self, url: str) -> None:
        self.url = url

    def put(self, path: Path) -> None:
        """Returns when it is there; tries again where that is worth it."""
        command = ["curl", "--silent", "--show-error", "--fail", "--retry", "5"]
        command += ["--upload-file", str(path), f"{self.url}/{path.name}"]
        subprocess.run(command, check=True)


class Checkpointer:
    """Saves on rank 0 and lets the others wait."""

    def __init__(self, rank: int, bucket: Bucket, folder: Path) -> None:
        self.rank, self.bucket, self.folder = rank, bucket, folder

    def save(self, step: int, megabytes: int) -> None:
        """All ranks go on when the upload is done: nodes may vanish at any time."""
        if self.rank == 0:
            path = self.folder / f"step{step}.pt"
            torch.save({"step": step, "weights": torch.randn(megabytes << 18)}, path)
            if megabytes:
                print(f"uploading {path.name}", flush=True)
            self.bucket.put(path)
            path.unlink()
        dist.barrier()


def main(mode: str) -> None:
    """A few steps, then a checkpoint; and so on."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=45))
    rank, folder = dist.get_rank(), Path(os.environ["OUT_DIR"])
    if rank == 0:
        start_gateway(mode)
        if mode == "metrics":
            exporter = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(EXPORTER)]
            subprocess.Popen(exporter, cwd=folder, stderr=subprocess.DEVNULL)
    saver = Checkpointer(rank, Bucket(f"http://127.0.0.1:{PORT[mode]}/run"), folder)
    saver.save(0, 0)
    weight = torch.randn(16)
    for step in range(1, 100):
        dist.all_reduce(weight)
        if rank == 0:
            print(f"step {step}", flush=True)
        if step % 5 == 0:
            saver.save(step, MEGABYTES)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[2:] == ["gateway"]:
        Gateway.stuck = sys.argv[1] != "slow"
        address = ("127.0.0.1", PORT[sys.argv[1]])
        http.server.ThreadingHTTPServer(address, Gateway).serve_forever()
    else:
        main(sys.argv[1])
