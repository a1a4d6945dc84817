"""Starts one demo job, makes it hang, and ends all its processes.

Run as `python -m hangtop.demo.keeper SCENARIO DIRECTORY TOKEN` by `runner.Demo`, in a session of
its own. It lives as long as its standard input is open: however its parent ends, also by SIGKILL,
the input closes and the job ends. Every process of the job carries `HANGTOP_DEMO=TOKEN` in its
environment, by which it is found and killed, since a launcher that was killed leaves its ranks
alive.

Standard output carries one line: `hung PID...` once the job is where the scenario wants it, with
its launcher or, without one, its ranks; or `failed: why`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from hangtop.demo.gallery import BY_NAME, Scenario
from hangtop.demo.sweep import MARKER, kill_marked
from hangtop_probe.net import sockets
from hangtop_probe.proc import procfs
from hangtop_probe.ranks import launchers

FOREIGN = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_")
FOREIGN_NAMES = {name for launcher in launchers.TABLE for name in launcher.variables()}
PYTHON = Path(sys.executable).name
PR_SET_PDEATHSIG = 1
PIPE_SIZE = 1031
"""F_SETPIPE_SZ of fcntl(2)."""


class Keeper:
    """One job with its supporting processes and files."""

    def __init__(self, scenario: Scenario, directory: Path, token: str) -> None:
        self.scenario = scenario
        self.directory = directory
        self.token = token
        self.environment = clean_environment(directory, token)
        self.descriptors: list[int] = []
        self.launched: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start the job, with the service, lock or reader that its scenario needs."""
        shutil.copytree(Path(__file__).parent / "training", self.directory / "training")
        self.prepare()
        forms = {
            "torchrun": self.torchrun,
            "nodes": self.one_of_two_nodes,
            "env": self.by_environment,
            "spawn": self.spawn,
        }
        return forms[self.scenario.form]()

    def prepare(self) -> None:
        """Create the files and processes outside the job that will block it."""
        os.mkfifo(self.directory / "shard-00017.bin")
        os.mkfifo(self.directory / "weights.bin")
        if self.scenario.name == "file-lock":
            lock = str(self.directory / "cache.lock")
            self.helper(["flock", lock, "sleep", "1000000"])
        if self.scenario.name == "remote":
            self.serve_silence()

    def serve_silence(self) -> None:
        """Run a TCP service on loopback that accepts one connection and never answers."""
        server = socket.create_server(("127.0.0.1", 0))
        (self.directory / "service.port").write_text(str(server.getsockname()[1]))

        def accept() -> None:
            connection, _ = server.accept()
            self.descriptors.append(connection.detach())

        threading.Thread(target=accept, daemon=True).start()

    def helper(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process of the demo that is not a rank."""
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def torchrun(self) -> subprocess.Popen[bytes]:
        """Start all ranks on this machine; torchrun chooses free ports itself."""
        return self.launch(self.torchrun_command())

    def one_of_two_nodes(self) -> subprocess.Popen[bytes]:
        """Start the first of two nodes, on a port of its own choice; the second never joins."""
        return self.launch(self.torchrun_command("--nnodes=2"))

    def torchrun_command(self, *options: str) -> list[str]:
        """Return the command of torchrun; logs go to files unless the output is the scenario."""
        count = self.scenario.ranks or self.scenario.world_size // 2
        launcher = [PYTHON, "-m", "torch.distributed.run", *options]
        launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=is_host=1"]
        launcher += [f"--rdzv-id=demo-{self.token}", "--local-addr=127.0.0.1"]
        launcher += [f"--nproc-per-node={count}"]
        if self.scenario.name != "output-pipe":
            launcher += ["--redirects=3", f"--log-dir={self.directory / 'logs'}"]
        return [*launcher, "-m", "training", self.scenario.program or self.scenario.name]

    def by_environment(self) -> subprocess.Popen[bytes]:
        """Start a process per rank without launcher; the last is missing, or has another port."""
        self.environment.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            WORLD_SIZE=str(self.scenario.world_size),
            LOCAL_WORLD_SIZE=str(self.scenario.ranks),
        )
        command = [PYTHON, "-m", "training", self.scenario.name]
        for rank in range(self.scenario.ranks):
            self.environment.update(RANK=str(rank), LOCAL_RANK=str(rank))
            if self.scenario.name == "misconfigured" and rank == self.scenario.ranks - 1:
                self.environment.update(MASTER_PORT=str(free_port()))
            self.launch(command)
        return self.launched[0]

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start one parent that spawns the ranks."""
        self.environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        program = self.scenario.program or self.scenario.name
        return self.launch([PYTHON, "-m", "training", program, f"--spawn={self.scenario.ranks}"])

    def launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process of the job in the directory of the job."""
        stdin = self.terminal() if self.scenario.name == "debugger" else subprocess.DEVNULL
        stdout = self.stuck_reader() if self.scenario.name == "output-pipe" else self.log()
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=self.log(),
            preexec_fn=die_with_parent,
        )
        self.launched.append(process)
        return process

    def log(self) -> int:
        """Open the file for the launcher's output."""
        return os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def log_path(self) -> Path:
        """The path of the launcher's own output."""
        return self.directory / "launcher.log"

    def terminal(self) -> int:
        """Open a terminal without input."""
        master, slave = os.openpty()
        self.descriptors.append(master)
        return slave

    def stuck_reader(self) -> int:
        """Open a small pipe to a reader that does not read."""
        reading, writing = os.pipe()
        fcntl.fcntl(writing, PIPE_SIZE, 4096)
        tee = subprocess.Popen(
            ["tee", str(self.directory / "train.log")],
            env=self.environment,
            stdin=reading,
            stdout=subprocess.DEVNULL,
        )
        tee.send_signal(signal.SIGSTOP)
        os.close(reading)
        return writing

    def has_reached(self, job: subprocess.Popen[bytes]) -> bool:
        """Return whether the job is where it goes wrong."""
        if self.scenario.form == "nodes":
            return waits_for_nodes(job.pid)
        return (self.directory / "reached").exists()

    def members(self, job: subprocess.Popen[bytes]) -> list[int]:
        """Return the processes that identify the job: its launcher, or else its ranks."""
        if self.scenario.outside == "kill-launcher":
            return [int(pid) for pid in self.children_of(job.pid)]
        if self.scenario.form == "env":
            return [process.pid for process in self.launched]
        return [job.pid]

    def children_of(self, pid: int) -> list[str]:
        """Return the pids of a process's children, whichever thread started them (proc(5))."""
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [word for task in tasks for word in (task / "children").read_text().split()]

    def act(self, job: subprocess.Popen[bytes]) -> None:
        """Do to the job what the scenario wants done from outside."""
        if self.scenario.outside is None:
            return
        pid = int((self.directory / "reached").read_text())
        if self.scenario.outside == "stop":
            os.kill(pid, signal.SIGSTOP)
            wait_for_state(pid, "T")
        elif self.scenario.outside == "trace":
            self.helper(gdb_that_holds(pid))
            wait_for_state(pid, "t")
        else:
            job.kill()

    def log_tail(self) -> str:
        """Return the last lines of what launcher and ranks wrote, on one line."""
        paths = [self.log_path, *sorted(self.directory.glob("logs/**/stderr.log"))]
        texts = [path.read_text(errors="replace") for path in paths if path.exists()]
        lines = [line for text in texts for line in text.strip().splitlines()[-3:]]
        return " | ".join(lines)[-1500:]

    def end(self) -> None:
        """Kill the remaining processes and remove the directory."""
        kill_marked(self.token)
        shutil.rmtree(self.directory, ignore_errors=True)


def clean_environment(directory: Path, token: str) -> dict[str, str]:
    """Return this environment without variables that would make the job part of another one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in FOREIGN_NAMES
    }
    path = os.environ.get("PATH", os.defpath)
    kept.update(
        {
            MARKER: token,
            "HANGTOP_DEMO_DIR": str(directory),
            "TMPDIR": str(directory),  # killed processes leave their sockets there
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo",
            # The job is started as in an activated environment: by the plain name of this Python.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
            "PYTHON_EXEC": PYTHON,  # torch 2.13 torch/distributed/run.py
        }
    )
    return kept


def free_port() -> int:
    """Return a TCP port that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the keeper dies (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def gdb_that_holds(pid: int) -> list[str]:
    """Return a gdb command that attaches and waits; without symbols that takes half a second."""
    quiet = [
        "-nx",
        "-batch",
        "-iex",
        "set auto-solib-add off",
        "-iex",
        "set debuginfod enabled off",
    ]
    return ["gdb", *quiet, "-p", str(pid), "-ex", "shell sleep 1000000"]


def wait_for_state(pid: int, state: str, limit_s: float = 30.0) -> None:
    """Wait until a process is in this state."""
    end = time.monotonic() + limit_s
    while (stat := procfs.read_stat(pid)) is None or stat.state != state:
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} did not come to state {state}")
        time.sleep(0.02)


def waits_for_nodes(pid: int) -> bool:
    """Return whether torchrun has started up and only waits for the other node.

    Any torch: its first socket is the rendezvous store's; once it has that, a launcher that uses no
    CPU for a second has nothing to do but wait.
    """
    if not sockets.own_inodes(pid):
        return False
    before = procfs.read_stat(pid)
    time.sleep(1.0)
    after = procfs.read_stat(pid)
    if before is None or after is None or after.state == "Z":
        return False
    return after.cpu_ticks - before.cpu_ticks <= 3


def input_closed(wait_s: float) -> bool:
    """Return whether standard input has ended, waiting this long for it."""
    readable, _, _ = select.select([0], [], [], wait_s)
    return bool(readable) and os.read(0, 4096) == b""


def watch(keeper: Keeper, job: subprocess.Popen[bytes]) -> None:
    """Report when the job hangs, then wait for the end of input."""
    is_announced = False
    while not input_closed(0.5 if is_announced else 0.05):
        if is_announced:
            continue
        if keeper.has_reached(job):
            members = keeper.members(job)
            keeper.act(job)
            print("hung", *members, flush=True)
            is_announced = True
        elif job.poll() is not None:
            print(f"failed: the job ended with status {job.returncode}: {keeper.log_tail()}")
            sys.stdout.flush()
            return


def main() -> None:
    """Keep one job until input ends."""
    name, directory, token = sys.argv[1:4]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keeper = Keeper(BY_NAME[name], Path(directory), token)
    try:
        watch(keeper, keeper.start())
    except (OSError, TimeoutError) as error:
        with contextlib.suppress(BrokenPipeError):
            print(f"failed: {error}", flush=True)
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
