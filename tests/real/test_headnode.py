"""Whether a rank runs on this machine, seen from a namespace that has no processes but its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.processes import PATIENCE

pytestmark = pytest.mark.real
LOOK = (
    "from hangtop.cli.jobs.headnode import has_ranks_here; print(has_ranks_here(all_users=False))"
)
RANK = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=n MASTER_PORT=1"
SLEEP = "import time; time.sleep(1000)"


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
@pytest.mark.parametrize(("variables", "answer"), [("", "False"), (RANK, "True")])
def test_a_rank_is_seen_where_there_is_one(variables: str, answer: str) -> None:
    # With its first process, which looks, the whole namespace ends.
    script = f'env {variables} "$1" -c "$2" & exec "$1" -c "$3"'
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    argv = [*inside, "sh", "-c", script, "sh", sys.executable, SLEEP, LOOK]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == f"{answer}\n", done.stderr
