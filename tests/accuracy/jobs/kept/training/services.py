"""Things outside of the job that it uses; started by rank 0 of the scripts, and then not part of the job."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PLAIN = {"PATH": os.environ["PATH"]}


def object_store(port: int, mode: str) -> None:
    argv = [
        sys.executable,
        os.path.join(HERE, "blobserver.py"),
        str(port),
        mode,
        os.environ["OUT_DIR"],
    ]
    subprocess.run(argv, env=PLAIN, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def leftover_builder(lock: str) -> None:
    """What an earlier job has left behind: a process that holds that lock."""
    argv = [sys.executable, os.path.join(HERE, "lock_holder.py"), lock, os.environ["OUT_DIR"]]
    subprocess.run(argv, env=PLAIN, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
