"""Ranks that were given variables which contradict each other, while all wait for the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session
from support.launch import SUPPORT, Started, free_port
from support.processes import PATIENCE

if TYPE_CHECKING:
    from hangtop_core.session.session import Update

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A double of NCCL's library, in which nothing is: its name is what is read."""
    built = tmp_path_factory.mktemp("lib") / "libnccl.so.2.27.5"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler of C")
    source = built.with_suffix(".c")
    source.write_text("int nothing;\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", built, source], check=True)
    return str(built)


@pytest.mark.parametrize(
    ("name", "values", "blamed", "said"),
    [
        ("NCCL_PROTO", ("Simple", "LL128", "Simple"), [1], "NCCL_PROTO differs between ranks"),
        ("CUDA_VISIBLE_DEVICES", ("0", "1", "0"), [0, 2], "GPU 0 for all of them"),
        ("CUDA_VISIBLE_DEVICES", ("0", "1", "2"), [], ""),
    ],
    ids=["settings of NCCL", "one GPU for two", "each its own"],
)
def test_what_contradicts_itself_is_told(
    library: str, name: str, values: tuple[str, ...], blamed: list[int], said: str
) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    script = str(SUPPORT / "settings_job.py")
    with (
        Started(sys.executable, script, library, name, *values, env=env) as started,
        Session(Options(hang_after=3.0, pids=(started.pid,)), diagnose) as session,
    ):

        def says(update: Update) -> bool:
            hung = [one for one in update.diagnoses.values() if one.state == "hung"]
            return bool(hung) and all(one.verdicts for one in hung)

        seen = session.wait(says, PATIENCE)
        assert seen is not None, session.latest and session.latest.diagnoses
        (diagnosis,) = seen.diagnoses.values()
    first = diagnosis.verdicts[0]
    assert first.cause == ("launch-misconfigured" if blamed else "unknown"), first
    assert [one.rank for one in first.culprits] == blamed
    assert said in first.summary
    assert all(value in first.summary for value in values if blamed == [1]), first.summary
