"""Ranks that wait for what is their own: a lock file, a program, a thread. own.py WAY"""

import multiprocessing as mp
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

WAY = sys.argv[1]
OUT = os.environ["OUT_DIR"]
ECHO = "import sys\nfor line in sys.stdin: print(line.upper(), flush=True)"
SPIN = "import time; t = time.time()\nwhile time.time() < t + 1: pass"


def claim(folder):
    path = os.path.join(folder, "prepare.d")
    for _ in range(10**6):
        try:
            os.mkdir(path)
            return path
        except FileExistsError:
            pass
        time.sleep(0.7)


def wait_until_free(path):
    while os.path.exists(path):
        time.sleep(0.3)


def ask():
    p = subprocess.Popen(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    p.stdin.write("hello\n")  # not flushed
    return p.stdout.readline()


def work(n):
    end = time.time() + 1.2
    while time.time() < end:
        sum(range(10000))
    return n


def report(port):
    for attempt in range(10**6):
        try:
            s = socket.create_connection(("127.0.0.1", port))
            s.sendall(b"x")
            return
        except OSError:
            pass
        time.sleep(1)


class Store:
    def __init__(self):
        self.index, self.data = threading.Lock(), threading.Lock()

    def put(self):
        with self.index:
            time.sleep(1)
            with self.data:
                pass

    def compact(self):
        with self.data:
            time.sleep(1)
            with self.index:
                pass


pool = ThreadPoolExecutor(2, thread_name_prefix="load")


def leaf(n):
    return n


def node(n):
    return sum(pool.map(leaf, range(n)))


def special():
    if WAY == "lockdir":
        os.mkdir(os.path.join(OUT, "prepare.d"))
        claim(OUT)
    elif WAY == "lockgone":
        path = os.path.join(OUT, "data")
        open(path, "w").close()
        wait_until_free(path)
    elif WAY == "unflushed":
        ask()
    elif WAY == "refused":
        report(9)
    elif WAY == "cross":
        store = Store()
        threading.Thread(target=store.compact, name="compactor").start()
        store.put()
    elif WAY == "mapped":
        print([one.result() for one in [pool.submit(node, 3) for _ in range(4)]])
    elif WAY == "one-task":
        with mp.get_context("fork").Pool(2, maxtasksperchild=1) as workers:
            workers.map(work, range(300), chunksize=1)
    else:
        for _ in range(300):
            subprocess.run([sys.executable, "-c", SPIN], check=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    for step in range(10**6):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.05)
        print(f"step {step}\n", end="", flush=True)
        if step == 10 and dist.get_rank() == 1:
            special()


if __name__ == "__main__":
    main()
