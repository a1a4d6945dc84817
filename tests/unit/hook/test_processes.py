"""Which processes the hook takes for ranks, before any of their code has run."""

from __future__ import annotations

import os

import pytest

from hangtop_hook import processes


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(processes.RANK_PID, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        ({"RANK": "3"}, None),  # many programs use the name
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3),
        ({"RANK": "3", "MASTER_ADDR": "n1"}, 3),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({"RANK": "\u00b2", "WORLD_SIZE": "4"}, None),  # a digit, and no number
        ({"RANK": "9" * 5000, "WORLD_SIZE": "4"}, None),
        ({"OMPI_COMM_WORLD_RANK": "12"}, 12),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, None),  # may spawn the ranks of its node
    ],
)
def test_rank_in_environment(
    environ: pytest.MonkeyPatch, variables: dict[str, str], rank: int | None
) -> None:
    for name, value in variables.items():
        environ.setenv(name, value)
    assert processes.rank_at_start() == rank


def test_children_of_a_rank_are_none(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("RANK", "0")
    environ.setenv("WORLD_SIZE", "2")
    assert processes.rank_at_start() == 0
    environ.setenv(processes.RANK_PID, "")  # so that what claim() sets is undone
    environ.delenv(processes.RANK_PID)
    assert processes.claim()
    assert os.environ[processes.RANK_PID] == str(os.getpid())
    assert not processes.claim()
    assert processes.rank_at_start() is None


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("python /opt/bin/torchrun --nproc-per-node 8 train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python -um torch.distributed.run train.py", True),
        ("python -mtorch.distributed.run train.py", True),
        ("python -Wignore -Xdev -Im accelerate.commands.launch train.py", True),
        ("python -u -X dev -m torch.distributed.launch train.py", True),
        ("python /site-packages/torch/distributed/run.py train.py", True),
        ("python3 /usr/bin/accelerate launch train.py", True),
        ("python -u -m deepspeed.launcher.launch --world_info=e30= train.py", True),
        ("python train.py torchrun", False),
        ("python -m train torchrun", False),
        ("python -c import\ttorch torchrun", False),
        ("python", False),
    ],
)
def test_launchers_are_no_ranks(command: str, launches: bool) -> None:
    assert processes.is_launcher(command.split(" ")) is launches
