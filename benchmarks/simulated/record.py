"""Record what a real probe says of a real job, for the nodes of the fleet to say it after.

    cd benchmarks; PYTHONPATH=../core:../tui:../tests:. python -m simulated.record > FILE

FILE is `simulated/recorded.json`. The job is `hangtop demo skip`: of four ranks one never comes to
an all_reduce. Kept are the hello, a whole piece of the process table, and all stacks. Names of this
machine, its folders and users are replaced, and what it runs besides is left out.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

from hangtop.demo.gallery import BY_NAME
from hangtop.demo.runner import Demo
from hangtop.demo.sweep import marked
from support.probe_client import ProbeClient

ROOT = Path(__file__).parents[2]
TRAINING_S = 60.0
"""By then every rank has seen a step; the demo hangs after some of them."""


def main() -> None:
    """Print the recording as JSON."""
    with Demo(BY_NAME["skip"]) as demo:
        demo.wait_until_hung(timeout_s=90.0)
        time.sleep(4)
        recorded = _recorded(demo)
    text = json.dumps(recorded, indent=1, sort_keys=True)
    sys.stdout.write(_scrubbed(text) + "\n")


def _recorded(demo: Demo) -> dict[str, Any]:
    with ProbeClient() as probe:
        hello = probe.receive(0)["hello"]
        piece = _until_ranks(probe, demo)
        pids = [
            int(pid) for pid, row in piece["set"].items() if row["role"] in ("rank", "launcher")
        ]
        asked = probe.send(op="stacks", pids=pids, mode="nonblocking", deadline=10)
        stacks = []
        while "data" in (answer := probe.receive(asked)):
            stacks.append(answer["data"])
    piece["node"].update(mounts=[], addresses=[], kernel_lines=[], python_processes=[])
    piece["node"].update(full_mounts=[])
    hello["system"] = "Linux 6.8.0"
    return {"hello": hello, "piece": piece, "stacks": stacks}


def _until_ranks(probe: ProbeClient, demo: Demo) -> dict[str, Any]:
    """A whole piece in which all four ranks are at work."""
    until = time.monotonic() + TRAINING_S
    while time.monotonic() < until:
        pids = [one.pid for one in marked(demo.token)]
        asked = probe.send(op="watch", interval=0.2, pids=pids, silence=60)
        piece: dict[str, Any] = probe.receive(asked)["data"]
        ranks = [row for row in piece["set"].values() if row["role"] == "rank"]
        if len(ranks) == 4 and all(row.get("versions") for row in ranks):
            return piece
        time.sleep(0.5)
    raise SystemExit("no job of four ranks was seen")


def _scrubbed(text: str) -> str:
    """The same without names of this machine."""
    for name, instead in (
        (str(ROOT / "tui" / "hangtop" / "demo"), "/home/alice/llm"),
        (str(ROOT), "/home/alice/llm"),
        (str(Path(sys.prefix)), "/home/alice/venv"),
        (str(Path(sys.base_prefix)), "/usr"),
        (str(Path.home()), "/home/alice"),
        (os.path.realpath(sys.executable), "/usr/bin/python3"),
    ):
        text = text.replace(name, instead)
    text = re.sub(rf'"{re.escape(socket.gethostname())}"', '"node"', text)
    return re.sub(r"hangtop-demo-\w+", "run", text)


if __name__ == "__main__":
    main()
