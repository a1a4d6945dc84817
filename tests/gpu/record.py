"""Runs jobs over NCCL on a machine with an NVIDIA GPU, and keeps what hangtop saw of each.

    python tests/gpu/record.py FOLDER [NAME ...] [--together N]

Several ranks share the GPU (see train.py), so one is enough. Of each job FOLDER/NAME gets its log, what
the commands below printed, and NVML's readings as the probe's child gives them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RANKS = 4
READY_S, COMMAND_S = 90.0, 100.0
CAPTURE = ("capture", "--output", "{folder}/seen.hangtop", "--observe", "12")
OBSERVE = ("--hang-after", "9", "--pid", "{pid}")
NATIVE = ("dump", "--native", "--each", "--pid", "{pid}")
FLIGHT = ("flight", "--json", "--pid", "{pid}")
DIAGNOSE = ("diagnose", *OBSERVE)


class Recorded(NamedTuple):
    """A job, and the commands that are run on it while it hangs."""

    trouble: str
    commands: tuple[tuple[str, ...], ...] = ((*CAPTURE, *OBSERVE),)
    prepared: bool = False
    timeout_s: float = 600.0
    to_its_end: bool = False
    each: bool = False
    """Started rank by rank: no launcher ends the others."""
    ranks: int = RANKS


JOBS = {
    "healthy": Recorded("healthy"),
    "skip": Recorded(
        "skip",
        (
            (*CAPTURE, *OBSERVE),
            NATIVE,
            ("dump", "--locals", "--pid", "{pid}"),
            ("doctor",),
            ("dump", "--json", "--pid", "{pid}"),
            FLIGHT,
            (*FLIGHT, "--allow-inject"),
            (*DIAGNOSE, "--ras=anyway"),
        ),
    ),
    "kernel": Recorded("kernel", ((*CAPTURE, *OBSERVE), NATIVE)),
    "sleepkernel": Recorded("sleepkernel"),
    "prepared": Recorded(
        "skip",
        ((*CAPTURE, *OBSERVE), FLIGHT, (*FLIGHT, "--trigger"), DIAGNOSE),
        prepared=True,
    ),
    "timeout": Recorded(
        "skip",
        ((*CAPTURE, "--hang-after", "8", "--pid", "{pid}"),),
        timeout_s=30.0,
        to_its_end=True,
    ),
    "group": Recorded("group", ((*CAPTURE, *OBSERVE), NATIVE)),
    "order": Recorded("order", prepared=True),
    "leave": Recorded("leave", each=True),
    "recv": Recorded("recv", prepared=True),
    "verb": Recorded("verb", prepared=True),
    "free": Recorded("free", ((*CAPTURE, *OBSERVE), NATIVE)),
    "ras": Recorded("skip", ((*DIAGNOSE, "--ras=anyway", "--json"),)),
    "alone": Recorded("lonekernel", ranks=1),
    "sizes": Recorded("sizes", prepared=True),
    "stop": Recorded("stop"),
    "lonely": Recorded("lonely"),
    "barrier": Recorded("barrier"),
    "absent": Recorded("absent"),
}


def free_port() -> int:
    """A port nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Running:
    """A job that runs, in its own session."""

    def __init__(self, job: Recorded, folder: Path) -> None:
        self.log = folder / "job.log"
        env = {**os.environ, "TORCH_FR_DUMP_TEMP_FILE": str(folder / "dumps" / "rank_"),
               "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
        env.pop("PYTHONPATH", None)
        (folder / "dumps").mkdir(parents=True)
        program = [str(HERE / "train.py"), job.trouble, str(job.timeout_s)]
        port = free_port()
        if job.each:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks = ",".join(map(str, range(RANKS)))
            argv = [sys.executable, str(ROOT / "tests/accuracy/jobs/each.py"), str(RANKS), ranks]
            argv += program
        else:
            argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={job.ranks}",
                    "--master-addr=127.0.0.1", f"--master-port={port}", *program]  # fmt: skip
        if job.prepared:
            prepare = [sys.executable, "-m", "hangtop", "run", "--dir", str(folder / "run"), "--"]
            argv = prepare + argv
            env["PYTHONPATH"] = hangtop_path()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for one in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.log.parent).encode() in (one.parent / "environ").read_bytes():
                    os.kill(int(one.parent.name), signal.SIGKILL)


def hangtop_path() -> str:
    """Where Python finds hangtop, which is not installed there."""
    known = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return os.pathsep.join([str(ROOT / "core"), str(ROOT / "tui"), *known])


def hangtop(folder: Path, number: int, words: tuple[str, ...], pid: int) -> None:
    """Run one command on a job; keep what it printed, how it ended and how long it took."""
    argv = [word.format(folder=folder, pid=pid) for word in words]
    began = time.monotonic()
    env = {**os.environ, "PYTHONPATH": hangtop_path()}
    name = f"{number}-{'-'.join(word.strip('-=') for word in words[:2] if '{' not in word)}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hangtop", *argv], env=env, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        rc, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        rc, out, err = -1, late.stdout or b"", late.stderr or b""
    (folder / f"{name}.out").write_bytes(out)
    took = time.monotonic() - began
    (folder / f"{name}.err").write_bytes(err + f"\nexit {rc} after {took:.1f} s\n".encode())
    print(f"{folder.name}: hangtop {' '.join(argv[:2])}: exit {rc} after {took:.1f} s", flush=True)


def readings(path: Path, seconds: float) -> None:
    """Keep what the probe's child reads of the GPU, and say what that took."""
    argv = [sys.executable, "-I", "-u", str(ROOT / "core/hangtop_probe/nvmlread.py"), "", "1"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with path.open("wb") as out, subprocess.Popen(argv, stdout=out) as child:
        time.sleep(seconds)
        child.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    passes = path.read_text().count('"pause"')
    print(f"nvml: {passes} passes, {took:.3f} s of CPU with the start", flush=True)


def record(name: str, folder: Path, *, alone: bool) -> None:
    """Run a job, have it looked at, end it."""
    job, began = JOBS[name], time.monotonic()
    folder.mkdir(parents=True)
    running = Running(job, folder)
    try:
        words = "now it hangs" if job.trouble != "healthy" else "step 40"
        seen = running.wait_for(words)
        print(f"{name}: {'hangs' if seen else 'NOT READY'} after "
              f"{time.monotonic() - began:.1f} s", flush=True)  # fmt: skip
        time.sleep(2)
        if alone:
            readings(folder / "nvml.jsonl", 5)
        for number, words_ in enumerate(job.commands):
            hangtop(folder, number, words_, running.process.pid)
        if job.to_its_end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(60)
    except Exception as error:
        print(f"{name}: {error!r}", flush=True)
    finally:
        running.end()
    print(f"{name}: done after {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """Record all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--together", type=int, default=1, metavar="N")
    options = parser.parse_args()
    names = options.names or list(JOBS)
    with ThreadPoolExecutor(options.together) as pool:
        alone = options.together == 1
        list(pool.map(lambda one: record(one, options.folder / one, alone=alone), names))
    print(json.dumps(sorted(p.name for p in options.folder.iterdir())))


if __name__ == "__main__":
    main()
