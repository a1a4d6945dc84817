"""The headless commands on a job that really hangs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop.demo.gallery import BY_NAME
from hangtop.demo.runner import Demo, missing
from support.documents import misfits
from support.jobs import run_hangtop
from support.processes import PATIENCE, environment, is_alive, state, wait_until
from support.terminals import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
NOBODY = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"]
# It may see every file, for this Python may be in a home; of processes that shows nothing more.
NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
COMMAND = [sys.executable, "-m", "hangtop"]
OWN_NAME = rf"\b{re.escape(os.uname().nodename)}\b"


@pytest.fixture(scope="module")
def job() -> Iterator[Demo]:
    if reason := missing(BY_NAME["dataloader-worker"]):
        pytest.skip(reason)
    with Demo(BY_NAME["dataloader-worker"]) as demo:
        demo.wait_until_hung(PATIENCE)
        yield demo


def pids(job: Demo) -> tuple[str, ...]:
    return ("--pid", *map(str, job.members))


def test_merged_dump_puts_the_odd_rank_first(job: Demo) -> None:
    done = run_hangtop("dump", *pids(job))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 ranks of 4 gave a stack, 2 classes")
    odd, common = done.stdout.index("[1]"), done.stdout.index("[0,2-3]")
    assert odd < common
    assert "load_batch" in done.stdout
    assert "selectors.py" not in done.stdout  # library frames are folded
    assert "selectors.py" in run_hangtop("dump", "--library", *pids(job)).stdout


def test_each_rank_and_its_workers_with_locals(job: Demo) -> None:
    done = run_hangtop("dump", "--each", "--locals", "--redact-hosts", *pids(job))
    assert re.findall(r"^(\S+):\d  process", done.stdout, re.M) == ["node-1"] * 4
    assert [int(n) for n in re.findall(r"^\S+:(\d)  process", done.stdout, re.M)] == [0, 1, 2, 3]
    assert len(re.findall(r"^  \S+:\d  DataLoader worker \d,", done.stdout, re.M)) == 8
    stuck = done.stdout[done.stdout.index("read_shard") :]
    assert "index: 40" in stuck[: stuck.index("fetch")]


def test_json_dump_holds_every_rank_and_thread(job: Demo) -> None:
    found = json.loads(run_hangtop("dump", "--json", "--all-threads", *pids(job)).stdout)
    assert found["schema"] == "hangtop.dump/1"
    assert misfits(found) == []
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    for rank in found["ranks"]:
        assert rank["failure"] is None
        assert len(rank["threads"]) == 3  # main and one feeder for each of two workers
        assert rank["threads"][0]["frames"][-1]["name"] == "_run_module_as_main"
        workers = [child for child in rank["children"] if child["role"] == "dataloader-worker"]
        assert len(workers) == 2
        assert all(worker["threads"] for worker in workers)


def test_native_dump_says_what_it_costs_and_leaves_all_running(job: Demo) -> None:
    done = run_hangtop("dump", "--native", "--json", *pids(job))
    assert "stop each process" in done.stderr
    found = json.loads(done.stdout)
    frames = [frame for rank in found["ranks"] for frame in rank["threads"][0]["frames"]]
    assert any("libtorch" in frame["file"] for frame in frames)
    assert wait_until(lambda: states(job) <= {"S", "R"}), states(job)


def states(job: Demo) -> set[str]:
    """Of all its processes; one may be in D for a moment, as any that runs."""
    return {state(pid) for pid in job.pids()}


def test_ctrl_c_gives_what_has_arrived(job: Demo) -> None:
    argv = [*COMMAND, "diagnose", "--json", "--observe", "1000", *pids(job)]
    status, out, told = interrupted(argv, b"observing for 1000 s")
    assert b"Traceback" not in told
    assert status == 130
    assert b"interrupted" in told
    found = json.loads(out)
    assert found["job"]["ranks_seen"] == [0, 1, 2, 3]
    assert found["observed_for_s"] < PATIENCE


def test_a_reader_that_leaves_is_no_error(job: Demo) -> None:
    line = " ".join([*COMMAND, "dump", "--each", "--library", *pids(job)])
    done = subprocess.run(
        ["sh", "-c", f"{line} | head -n 1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert re.match(r"\S+:0  process \d+", done.stdout)
    assert done.stderr == ""


def test_one_of_several_jobs_is_chosen_by_run_id(job: Demo) -> None:
    run_id = f"demo-{job.token}"
    found = json.loads(run_hangtop("dump", "--json", "--job-key", run_id).stdout)
    assert found["job"]["id"] == run_id
    assert {rank["pid"] for rank in found["ranks"]} == {
        pid for pid in job.pids() if "RANK" in environment(pid) and is_rank(pid)
    }


def is_rank(pid: int) -> bool:
    return is_alive(pid) and Path(f"/proc/{pid}/comm").read_text().strip() != "pt_data_worker"


@pytest.mark.parametrize("command", ["diagnose", "dump"])
def test_no_such_job_is_status_12_and_valid_json(command: str) -> None:
    done = run_hangtop(command, "--json", "--job-key", "no-such-job")
    assert done.returncode == 12
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["job"] is None


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
def test_without_a_job_it_says_what_it_looked_for_and_found(job: Demo) -> None:
    with tempfile.TemporaryDirectory(prefix="hangtop-test-") as home:
        os.chmod(home, 0o777)
        done = subprocess.run(
            [*NOBODY, *COMMAND, "diagnose", "--json"],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
            env={**os.environ, "HOME": home, "XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home},
        )  # fmt: skip
    assert done.returncode == 12, done.stderr
    assert "RANK" in done.stderr
    assert re.search(r"Left out: \d+ ranks of user root \(--all-users shows", done.stderr)
    found = json.loads(done.stdout)
    assert found["job"] is None
    assert found["verdicts"] == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_system_calls_of_a_rank_are_folded_and_saved(
    job: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank waits for its worker: in a poll on the pipe between them, or in a sleep."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = run_hangtop("strace", "1", "--for", "1", "--json", "--redact-hosts", *pids(job))
    assert done.returncode == 0, done.stderr
    assert not re.search(OWN_NAME, done.stdout)
    assert "stops for an instant" in done.stderr
    [rank] = json.loads(done.stdout)["ranks"]
    main = [row for row in rank["calls"] if row["tid"] == rank["pid"]]
    assert any(row["inside"] for row in main), rank
    saved = rank["saved"]
    assert saved["running_again"]
    files = list((tmp_path / "hangtop" / "strace").iterdir())
    assert len(files) == saved["files"]
    assert sum(path.stat().st_size for path in files) == saved["size"]
    assert is_alive(rank["pid"])


def test_who_else_has_a_file_of_a_rank_open(job: Demo) -> None:
    """Its workers and its launcher have what it writes to, too."""
    done = run_hangtop("files", "1", "1", "--json", *pids(job))
    assert done.returncode == 0, done.stderr
    whose = {row["whose"] for row in json.loads(done.stdout)["holders"]}
    assert "launcher torchrun" in whose
    assert any(one.endswith("of rank 1") for one in whose), whose
    renamed = ("--redact-paths", "--redact-hosts", *pids(job))
    done = run_hangtop("files", "1", *renamed)
    assert done.returncode == 0, done.stderr
    # A log of torchrun's is in a folder of a name of its own.
    log = r"^ +1 w +/.*/folder-\d+/.*/stdout\.log(  \(at .*\))?$"
    assert re.search(log, done.stdout, re.M), done.stdout
    assert re.search(r"= rank \d on node-1$", done.stdout, re.M), done.stdout
    assert not re.search(OWN_NAME, done.stdout)
    done = run_hangtop("files", "9", *pids(job))
    assert (done.returncode, done.stdout) == (12, "")
    assert "there is no rank 9 in this job" in done.stderr
