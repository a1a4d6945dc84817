"""Run inside a pid namespace, as process 1: start a job, wait for its hang, ask hangtop.

    python inside.py FOLDER COMMAND...

What hangtop says goes to files of the folder. The kernel ends the whole job with this process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

READY_S = 360.0
SETTLE_S = 4.0
ASKED = {
    "diagnosis.json": ("diagnose", "--json", "--hang-after", "12"),
    "ranks.json": ("dump", "--json"),
    "dump.txt": ("dump",),
}


def main(folder: Path, command: list[str]) -> int:
    log = folder / "log.txt"
    with log.open("wb") as out:
        # Below a shell, as a person starts it: a Python above ranks looks like their launcher.
        job = subprocess.Popen(
            ["sh", "-c", '"$@"; exit $?', "sh", *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    end = time.monotonic() + READY_S
    while b"HANGS" not in log.read_bytes():
        if job.poll() is not None or time.monotonic() > end:
            return 1
        time.sleep(0.2)
    time.sleep(SETTLE_S)
    for name, words in ASKED.items():
        done = subprocess.run(
            [sys.executable, "-m", "hangtop", *words], capture_output=True, text=True, check=False
        )
        (folder / name).write_text(done.stdout)
        (folder / f"{name}.err").write_text(done.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
