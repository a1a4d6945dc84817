"""`diagnose --ras` on a real gloo job that hangs, with a double of NCCL's RAS in its rank 0."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.jobs import run_hangtop
from support.launch import Started, free_port, torchrun
from support.processes import environment, sleeps_joined, wait_until
from support.ras import document, rank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    found: dict[int, int] = {}

    def hang() -> bool:
        told = {pid: environment(pid).get("RANK") for pid in job.pids()}
        found.update({int(number): pid for pid, number in told.items() if number})
        return len(found) == SIZE and sleeps_joined(found[2])

    assert wait_until(hang), found
    return found


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
