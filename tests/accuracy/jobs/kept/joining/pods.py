"""Starts what a cluster would start, one process per pod, with the environment of its template.

pods.py MODE: uneven (nodes with different numbers of devices), scaled (one pod has the template
from before the job was made smaller), late (the last pod's image has to be fetched first).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


def start(**told: object) -> subprocess.Popen:
    """Start a pod."""
    text = {name: str(value) for name, value in told.items()}
    print("pod", " ".join(f"{name}={value}" for name, value in text.items()), flush=True)
    return subprocess.Popen([sys.executable, str(WORKER)], env={**os.environ, **text})


def listens(port: int) -> bool:
    """The readiness probe of a pod with a store: looks, and connects to nothing."""
    return f":{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text() or (
        f":{port:04X} 00000000000000000000000000000000:0000 0A"
        in Path("/proc/net/tcp6").read_text()
    )


def uneven() -> list[subprocess.Popen]:
    """The first node has two devices, the second one: the rank is counted as always."""
    nodes = [2, 1]
    world = sum(nodes)
    return [
        start(
            RANK=number * devices + local,
            LOCAL_RANK=local,
            LOCAL_WORLD_SIZE=devices,
            NODE_RANK=number,
            WORLD_SIZE=world,
        )
        for number, devices in enumerate(nodes)
        for local in range(devices)
    ]


def scaled() -> list[subprocess.Popen]:
    """From four pods to three; the last one was not started anew with the others' template."""
    return [
        start(RANK=rank, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, WORLD_SIZE=4 if rank == 2 else 3)
        for rank in range(3)
    ]


def late() -> list[subprocess.Popen]:
    """The last pod is started when the first one is ready, and its image is there."""
    shared = {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": 3}
    first = [start(RANK=rank, **shared) for rank in range(2)]
    while not listens(int(os.environ["MASTER_PORT"])):
        time.sleep(1)
    for percent in range(0, 100, 10):
        print(f"pod 2: ContainerCreating, pulling image {percent} %", flush=True)
        time.sleep(1.5)
    return [*first, start(RANK=2, **shared)]


if __name__ == "__main__":
    for pod in {"uneven": uneven, "scaled": scaled, "late": late}[sys.argv[1]]():
        pod.wait()
