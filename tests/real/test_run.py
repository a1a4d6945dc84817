"""Jobs started by `hangtop run`, hung for real, and what can be read of them then."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port
from support.probe_client import ProbeClient
from support.processes import PATIENCE, all_pids, command_line, environment, wait_until

pytestmark = pytest.mark.real
pytest.importorskip("torch")
NODE = os.uname().nodename.split(".")[0]
SOCKETS = Path(f"/tmp/hangtop-{os.getuid()}")
SIGNAL = signal.SIGRTMIN + 7


class Run:
    """A job of gloo_job.py, started by `hangtop run`."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = directory
        self.output = directory.parent / "output.txt"
        hangtop = [sys.executable, "-m", "hangtop", "run", "--dir", str(directory), "--"]
        self.started = Started(*hangtop, *command, output=self.output)

    def sockets(self) -> list[Path]:
        """Sockets of this run's worker servers."""
        return sorted(SOCKETS.glob(f"{self.directory.name[-8:]}-*.sock"))

    def wait_for_servers(self, count: int) -> list[int]:
        """Wait for so many ranks; return the process ids of their servers."""
        assert wait_until(lambda: len(self.sockets()) == count), self.output.read_text()
        return [int(path.stem.rpartition("-")[2]) for path in self.sockets()]

    def end(self) -> int:
        """End it as a scheduler does, and return its exit status."""
        self.started.process.send_signal(signal.SIGTERM)
        return self.started.process.wait(PATIENCE)


def entries(probe: ProbeClient, pids: list[int]) -> dict[int, int]:
    """How many entries the recorders hold of those processes whose worker servers answer."""
    pieces = probe.pieces(op="recorder", pids=pids)
    told = [piece for piece in pieces if piece.get("source") == "server"]
    return {piece["pid"]: piece["trace"]["length"] for piece in told}


def hung(probe: ProbeClient, pids: list[int]) -> bool:
    """Whether all but one of these processes wait for that one in the fourth all_reduce."""
    return sorted(entries(probe, pids).values()) == [3] + [4] * (len(pids) - 1)


def test_a_hung_torchrun_job_is_explained_by_its_recorder(tmp_path: Path) -> None:
    script = [str(SUPPORT / "gloo_job.py"), "collective"]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
    job = Run(tmp_path / "torchrun", *launcher, "--nproc-per-node=3", *script)
    with job.started:
        pids = job.wait_for_servers(3)
        with ProbeClient() as probe:
            assert wait_until(lambda: hung(probe, pids))
        ranks = {int(environment(pid)["RANK"]): pid for pid in pids}
        done = run_hangtop("diagnose", "--json", "--hang-after", "2", "--pid", str(ranks[0]))
        diagnosis = json.loads(done.stdout)
        first = diagnosis["verdicts"][0]
        assert (first["cause"], first["culprits"][0]["rank"]) == ("missing-collective", 2)
        flight = [one["text"] for one in first["evidence"] if one["source"] == "flight"]
        assert any("all_reduce #4" in text for text in flight), first
        assert diagnosis["job"]["ranks_seen"] == [0, 1, 2]
        assert not [one for one in diagnosis["blind_spots"] if one["what"] == "flight recorder"]
        for path in job.sockets():
            assert path.stat().st_mode & 0o777 == 0o600
        variables = environment(ranks[1])
        assert variables["HANGTOP_RUN_DIR"] == str(job.directory)
        assert variables["TORCH_FR_BUFFER_SIZE"] == "2000"
        os.kill(ranks[1], SIGNAL)
        [stacks] = (job.directory / "stacks").glob("rank1-*.txt")
        assert wait_until(lambda: "hang_in_collective" in stacks.read_text())
        assert job.end() != 0
        assert wait_until(lambda: not left_of(job)), left_of(job)
    logs = sorted(path.name for path in (job.directory / "logs").iterdir())
    assert logs == [f"rank{rank}-{NODE}.log" for rank in range(3)]
    said = job.output.read_text()
    for rank in range(3):
        assert f"[{NODE}:{rank}]:" in said
    assert f"hangtop: 3 logs, 1 stack file in {job.directory}" in said


def left_of(job: Run) -> list[object]:
    """Its sockets and its processes."""
    ours = [pid for pid in all_pids() if str(job.directory) in command_line(pid)]
    return [*job.sockets(), *ours]


def test_recorders_of_spawned_ranks_answer_while_the_gil_is_held(tmp_path: Path) -> None:
    """No variable tells these ranks' numbers: they are known once they have joined."""
    script = [str(SUPPORT / "gloo_job.py"), "spawn-gil", str(free_port())]
    job = Run(tmp_path / "spawn", sys.executable, *script)
    told: dict[int, int] = {}
    with job.started:
        pids = job.wait_for_servers(2)
        with ProbeClient() as probe:

            def all_wait() -> bool:
                told.update(entries(probe, pids))
                return sorted(told.values()) == [3, 4]

            assert wait_until(all_wait), told
            # The one with three entries keeps the GIL: it cannot run any Python, but it answers.
            [holder] = [pid for pid, count in told.items() if count == 3]
            [piece] = probe.pieces(op="stacks", pids=[holder], deadline=PATIENCE)
        assert "failure" not in piece, piece
        assert any(thread["gil"] for thread in piece["threads"]), piece
        logs = sorted(path.name for path in (job.directory / "logs").iterdir())
        assert logs == [f"rank{rank}-{NODE}.log" for rank in range(2)]
    for path in job.sockets():  # nobody was left to remove them: all were killed
        path.unlink()


def test_ranks_of_mpirun_and_their_children(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun on this machine")
    code = "import os, sys; print('I am', os.environ['OMPI_COMM_WORLD_RANK'], flush=True)"
    code += f"; os.system('{sys.executable} -c \"print(\\'child\\')\"'); sys.exit(3)"
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    command = ["mpirun", *root, "--oversubscribe", "-n", "2", sys.executable, "-c", code]
    directory = tmp_path / "mpi"
    done = subprocess.run(
        [sys.executable, "-m", "hangtop", "run", "--dir", str(directory), "--", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 3
    for rank in (0, 1):
        assert f"[{NODE}:{rank}]:I am {rank}\n[" in done.stdout
        assert (directory / "logs" / f"rank{rank}-{NODE}.out").read_text() == (
            f"I am {rank}\nchild\n"
        )
    assert "hangtop: 2 logs in" in done.stderr


def test_what_a_rank_starts_gets_no_server_of_its_own(tmp_path: Path) -> None:
    """DataLoader workers of each kind, a fork that ends as Python does, and a second group."""
    code = """
import os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for kind in ("fork", "spawn"):
        loader = DataLoader(list(range(4)), num_workers=1, multiprocessing_context=kind)
        assert len(list(loader)) == 4
    dist.destroy_process_group()
    if os.fork() == 0:
        sys.exit(0)
    print("forked child ended with", os.wait()[1])
    dist.init_process_group("gloo")
    dist.destroy_process_group()
"""
    script = tmp_path / "job.py"
    script.write_text(code)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    alone |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    directory = tmp_path / "alone"
    hangtop = [sys.executable, "-m", "hangtop", "run", "--dir", str(directory), "--"]
    done = subprocess.run(
        [*hangtop, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **alone},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[{NODE}:0]:forked child ended with 0\n"
    assert done.stderr.count("Server listening") == 1
    assert not list(SOCKETS.glob(f"{directory.name}-*"))


@pytest.mark.parametrize(
    ("how", "method", "said", "left"),
    [
        ("finish", "", "rank 1 finished without an exception, and rank 0 waited for it", 2),
        ("finish", "fork", "rank 1 finished without an exception, and rank 0 waited for it", 2),
        ("raise", "sh", "rank 1 ended by ValueError: bad batch, and rank 0 waited for it", 2),
        ("sleep", "", "rank 1 did not issue", 2),
    ],
)
def test_what_is_left_of_ranks_that_ended_says_who_waited_for_whom(
    tmp_path: Path, how: str, method: str, said: str, left: int
) -> None:
    """By themselves, by an exception, and by the timeout of a collective and torchrun's SIGTERM."""
    port, script = str(free_port()), [str(SUPPORT / "ending_job.py"), how]
    variables = f"export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
    both = f'{variables}; RANK=0 "$0" "$@" & RANK=1 "$0" "$@"; status=$?; wait; exit $status'
    words = {
        "": [sys.executable, "-m", "torch.distributed.run", f"--master-port={port}",
             "--nproc-per-node=2", *script],
        "fork": [sys.executable, *script, "fork", port],
        "sh": ["sh", "-c", both, sys.executable, *script],
    }  # fmt: skip
    job = Run(tmp_path / "ended", *words[method])
    with job.started:
        assert job.started.process.wait(PATIENCE) == 1, job.output.read_text()
    dumps = sorted(path.name for path in (job.directory / "flight").iterdir())
    assert dumps == [f"ended_rank_{rank}" for rank in range(left)], job.output.read_text()
    assert f"waited for which: hangtop flight {job.directory}\n" in job.output.read_text()
    done = run_hangtop("flight", "--json", str(job.directory))
    assert done.returncode == 10, done.stderr
    found = json.loads(done.stdout)
    [verdict] = found["verdicts"]
    assert verdict["summary"].startswith(said)
    assert "all_reduce #3 on default_pg" in verdict["summary"]
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [1]
    assert sorted(r for one in found["flight"]["ended"] for r in one["ranks"]) == [*range(left)]
    assert all(group["ranks_recorded"] for group in found["flight"]["groups"])
