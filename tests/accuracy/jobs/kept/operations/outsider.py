"""Programs beside the job: started as orphans, so that they are nobody's children."""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
OWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def start(script: str, *arguments: str) -> None:
    env = {k: v for k, v in os.environ.items() if k not in OWN and not k.startswith("TORCHELASTIC")}
    subprocess.run(
        ["setsid", "-f", sys.executable, str(HERE / script), *arguments],
        env=env,
        check=True,
        stdin=subprocess.DEVNULL,
    )


def serve(script: str, port: int, *arguments: str) -> None:
    """Start a server, and wait until it listens."""
    start(script, str(port), *arguments)
    while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
        time.sleep(0.2)
