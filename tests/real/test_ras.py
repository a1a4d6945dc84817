"""`diagnose --ras` on a real gloo job that hangs, with a double of NCCL's RAS in its rank 0."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.jobs import run_hangtop
from support.launch import Started, free_port, torchrun
from support.processes import PATIENCE, environment
from support.ras import document, rank

if TYPE_CHECKING:
    from collections.abc import Iterator
pytestmark = pytest.mark.real
SIZE = 3


class Hung(NamedTuple):
    job: Started
    log: Path


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    folder = tmp_path_factory.mktemp("ras")
    (folder / "libnccl.so.2.29.7").write_bytes(b"x" * 4096)
    port = free_port()
    paths = {"library": "libnccl.so.2.29.7", "answer": "answer", "log": "log"}
    told = {"port": port, **{key: str(folder / name) for key, name in paths.items()}}
    env = {"NCCL_RAS_ADDR": f"localhost:{port}"}
    with torchrun(json.dumps(told), nproc=SIZE, env=env, file="ras_job.py") as job:
        ranks = ranks_of(job)
        answered = [
            rank(n, ranks[n], "127.0.0.1", counts={"AllReduce": 3 if n == 2 else 4})
            for n in range(SIZE)
        ]
        (folder / "answer").write_text(document((answered, [])))
        yield Hung(job, folder / "log")


def ranks_of(job: Started) -> dict[int, int]:
    """The pids of all ranks, once they are where they hang."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        told = {pid: environment(pid) for pid in job.pids()}
        found = {int(env["RANK"]): pid for pid, env in told.items() if env.get("RANK")}
        if len(found) == SIZE and asleep(found[2]):
            return found
        time.sleep(0.1)
    raise AssertionError("the ranks never came")


def asleep(pid: int) -> bool:
    """Whether a rank has a process group, and sleeps all the same."""
    tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/comm")]
    sleeps = "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()
    return sleeps and any("gloo" in name for name in tasks)


def test_it_is_asked_when_told_to_and_once(hung: Hung) -> None:
    hung.log.unlink(missing_ok=True)
    options = ("--pid", str(hung.job.pid), "--observe", "1", "--hang-after", "3", "--json")
    plain = json.loads(run_hangtop("diagnose", *options).stdout)
    (spot,) = (one for one in plain["blind_spots"] if one["what"] == "NCCL RAS")
    assert "not asked" in spot["why"]
    assert not hung.log.exists()

    done = run_hangtop("diagnose", "--ras", *options)
    assert done.returncode == 10, done.stderr
    verdict = json.loads(done.stdout)["verdicts"][0]
    assert verdict["cause"] == "missing-collective"
    assert [one["rank"] for one in verdict["culprits"]] == [2]
    (told,) = (one for one in verdict["evidence"] if "RAS" in one["text"])
    assert (told["source"], told["rank"]) == ("flight", 2)
    assert "launched AllReduce 3 times in communicator 0xc0ffee0, 2 others 4 times" in told["text"]
    assert hung.log.read_text().split() == ["status"]
