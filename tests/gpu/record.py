"""Runs jobs over NCCL on a machine with an NVIDIA GPU, has hangtop look, and keeps what it saw.

    python tests/gpu/record.py FOLDER [NAME ...] [--keep]

One GPU is enough, since ranks share it (see train.py); torch and hangtop's dependencies have to be
there. FOLDER/NAME gets the log of each job, its recorder dumps, what the commands below printed,
and what the probe's child reads of the GPU. With --keep the captures replace those in
tests/recordings, without what only this machine has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / one) for one in ("core", "tui", "tests")]

RANKS = 4
READY_S, COMMAND_S, SETTLE_S, READINGS_S, TO_ITS_END_S = 90.0, 100.0, 1.0, 2.5, 60.0
SEEN = "seen.hangtop"
CAPTURE = ("capture", "--output", f"{{folder}}/{SEEN}", "--observe", "11", "--hang-after", "9")
NATIVE = ("dump", "--native", "--each")
FLIGHT = ("flight", "--json")
INJECT = (*FLIGHT, "--allow-inject")
DIAGNOSE = ("diagnose", "--hang-after", "9")
RAS = "TIMEOUT 5", "VERBOSE STATUS"
RAS_JSON = "TIMEOUT 5", "SET FORMAT json", "STATUS"


class Recorded(NamedTuple):
    """A job, and the commands that are run on it while it hangs."""

    trouble: str
    """A method of `train.Trainer`."""
    commands: tuple[tuple[str, ...], ...] = (CAPTURE,)
    prepared: bool = False
    """Started by `hangtop run`."""
    timeout_s: float = 600.0
    to_its_end: bool = False
    each: bool = False
    """Started rank by rank: no launcher ends the others."""
    ranks: int = RANKS
    ras: bool = False
    """NCCL is asked, too, as hangtop asks it."""


JOBS = {
    "healthy": Recorded("healthy"),
    "skip": Recorded(
        "skip", (CAPTURE, NATIVE, ("dump", "--locals"), ("doctor",), FLIGHT, INJECT, DIAGNOSE)
    ),
    "kernel": Recorded("kernel", (CAPTURE, NATIVE)),
    "prepared": Recorded("skip", (CAPTURE, FLIGHT, (*FLIGHT, "--trigger")), prepared=True),
    "timeout": Recorded("skip", (), timeout_s=20.0, to_its_end=True),
    "alone": Recorded("lonekernel", ranks=1),
    "stop": Recorded("stop"),
    "leave": Recorded("leave", each=True),
    "order": Recorded("order", prepared=True),
    "recv": Recorded("recv", prepared=True),
    "sizes": Recorded("sizes", prepared=True),
    "verb": Recorded("verb", prepared=True),
    "group": Recorded("group", (CAPTURE, INJECT, ("dump",), (*DIAGNOSE, "--ras=anyway")), ras=True),
    "lonely": Recorded("lonely"),
    "free": Recorded("free", (CAPTURE, NATIVE)),
    "barrier": Recorded("barrier"),
    "absent": Recorded("absent"),
}


def say(text: str) -> None:
    """Tell whoever watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def free_port() -> int:
    """A port nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(*more: str) -> dict[str, str]:
    """Ours, with hangtop on the path of Python, which need not be installed here."""
    path = [str(ROOT / "core"), str(ROOT / "tui"), *more, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


class Running:
    """A job that runs, in a session of its own."""

    def __init__(self, job: Recorded, folder: Path) -> None:
        self.log = folder / "job.log"
        (folder / "dumps").mkdir(parents=True)
        port, program = free_port(), [str(HERE / "train.py"), job.trouble, str(job.timeout_s)]
        env = {
            **(environment() if job.prepared else os.environ),
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / "dumps" / "rank_"),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        if job.each:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            start = str(ROOT / "tests/accuracy/jobs/each.py")
            argv = [sys.executable, start, str(RANKS), ",".join(map(str, range(RANKS)))]
        else:
            argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={job.ranks}"]
            argv += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        if job.prepared:
            run = [sys.executable, "-m", "hangtop", "run", "--dir", str(folder / "run"), "--"]
            argv = run + argv
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*argv, *program], stdout=log, stderr=log, env=env, start_new_session=True
            )

    def wait_for(self, words: str) -> bool:
        """Whether its log has these within the time."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self.process.poll() is None:
            if words in self.log.read_text(errors="replace"):
                return True
            time.sleep(0.2)
        return False

    def end(self) -> None:
        """End all of it."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        self.process.wait()
        mine = str(self.log.parent).encode()
        for one in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mine in one.read_bytes():
                    os.kill(int(one.parent.name), signal.SIGKILL)


def hangtop(folder: Path, number: int, words: tuple[str, ...], pid: int) -> None:
    """Run one command on a job; keep what it printed, how it ended and how long it took."""
    argv = [word.format(folder=folder) for word in words]
    if words[0] != "doctor":
        argv += ["--pid", str(pid)]
    began = time.monotonic()
    name = f"{number}-{'-'.join(word.strip('-') for word in words[:2])}"
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        command = [sys.executable, "-m", "hangtop", *argv]
        try:
            code = subprocess.run(
                command, env=environment(), stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                timeout=COMMAND_S, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = None
    say(f"{folder.name}: hangtop {' '.join(words)}: {code}, {time.monotonic() - began:.1f} s")


def readings(path: Path) -> None:
    """Keep what the probe's child reads of the GPU in some seconds."""
    reader = str(ROOT / "core/hangtop_probe/gpu/nvmlread.py")
    with path.open("wb") as out:
        argv = [sys.executable, "-I", "-u", reader, "", "1"]
        with subprocess.Popen(argv, stdout=out) as child:
            time.sleep(READINGS_S)
            child.kill()


def ask_nccl(path: Path, words: tuple[str, ...]) -> None:
    """Keep what NCCL answers at the port of its RAS."""
    try:
        with socket.create_connection(("localhost", 28028), 5) as one:
            one.settimeout(15)
            one.sendall("".join(f"{word}\n" for word in words).encode())
            with path.open("wb") as out:
                while data := one.recv(1 << 16):
                    out.write(data)
    except OSError as error:
        say(f"{path}: {error}")


def record(name: str, folder: Path) -> None:
    """Run a job, have it looked at, end it."""
    job, began = JOBS[name], time.monotonic()
    running = Running(job, folder)
    try:
        ready = running.wait_for("step 15" if job.trouble == "healthy" else "now it hangs")
        after = f"after {time.monotonic() - began:.1f} s"
        say(f"{name}: {'ready' if ready else 'NOT READY'} {after}")
        time.sleep(SETTLE_S)
        for number, words in enumerate(job.commands):
            hangtop(folder, number, words, running.process.pid)
        readings(folder / "nvml.jsonl")
        if job.ras:
            ask_nccl(folder / "ras.txt", RAS)
            ask_nccl(folder / "ras.json", RAS_JSON)
        if job.to_its_end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(TO_ITS_END_S)
    finally:
        running.end()


def main() -> None:
    """Record all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="one that is not there yet, such as /tmp/record")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--keep", action="store_true", help="put captures into tests/recordings")
    options = parser.parse_args()
    for name in options.names or JOBS:
        folder = options.folder / name
        record(name, folder)
        if options.keep and (folder / SEEN).exists():
            from support.recording import keep

            say(str(keep(folder / SEEN, f"nccl-{name}")))


if __name__ == "__main__":
    main()
