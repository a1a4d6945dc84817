"""Dumps that torch itself has written: in the shapes of NCCL, and by real gloo jobs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hangtop.cli.main import main
from hangtop_core.dumps.load import load
from hangtop_core.dumps.safe import decode
from support.flight import Job

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SUPPORT = Path(__file__).parents[1] / "support"
SCENARIOS = ("skip", "mismatch", "crossed", "subset", "ddp", "shift")


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def writer(request: pytest.FixtureRequest) -> Path:
    """A program around torch's own recorder; compiled once and kept in pytest's cache."""
    folder, compiler = torch_folder(), shutil.which("g++")
    header = folder / "include/torch/csrc/distributed/c10d/FlightRecorderDetail.hpp"
    if compiler is None:
        pytest.skip("no C++ compiler (g++)")
    if not header.exists():
        pytest.skip("this torch has no header of the generic recorder")
    source = SUPPORT / "recorder/recorder.cpp"
    version = (folder / "version.py").read_bytes()
    key = hashlib.sha256(source.read_bytes() + version).hexdigest()[:16]
    program = Path(request.config.cache.mkdir("hangtop-recorder")) / key
    if not program.exists():
        config = (folder / "share/cmake/Torch/TorchConfig.cmake").read_text()
        abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\d)", config)
        part = program.with_suffix(".part")
        done = subprocess.run(
            [
                *(compiler, "-std=c++20", "-O0", "-w", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"),
                *("-DFMT_HEADER_ONLY=1", f"-D_GLIBCXX_USE_CXX11_ABI={abi[1] if abi else 1}"),
                *(f"-I{source.parent}", f"-I{folder}/include"),
                *(f"-I{folder}/include/torch/csrc/api/include", str(source), "-o", str(part)),
                *(f"-L{folder}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{folder}/lib"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"torch's recorder does not compile here: {done.stderr[-200:]}")
        part.rename(program)
    return program


def write(writer: Path, job: Job, directory: Path, entries: int = 2000) -> Path:
    """Let torch's recorder write the dumps of a job that was written down."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for rank, calls in job.entries.items():
        lines.append("new")
        for uid, (desc, members) in job.groups.items():
            if rank in members:
                lines.append(f"group\t{uid}\t{desc}\t{','.join(map(str, members))}")
        lines += [_line(entry) for entry in calls]
        lines.append(f"dump\t{directory}/nccl_trace_rank_{rank}")
    subprocess.run(
        [str(writer)],
        input="\n".join(lines),
        text=True,
        check=True,
        env={"TORCH_FR_BUFFER_SIZE": str(entries)},
    )
    return directory


def _line(entry: dict[str, Any]) -> str:
    state = entry["state"]
    if entry["retired"] and state != "completed":
        state = "timedout"
    names = ("collective_seq_id", "p2p_seq_id", "op_id", "profiling_name")
    fields = ["call", entry["pg_id"], *entry["process_group"], *(entry[name] for name in names)]
    sizes = ",".join(map(str, entry["input_sizes"][0]))
    return "\t".join(map(str, [*fields, sizes, state, int(entry["is_p2p"])]))


def flight(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = main(["flight", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def first(found: dict[str, Any]) -> tuple[str, list[int]]:
    verdict = found["verdicts"][0]
    return verdict["cause"], [one["rank"] for one in verdict["culprits"]]


def test_dumps_made_by_hand_have_the_shape_of_torch(writer: Path, tmp_path: Path) -> None:
    """What all other tests stand on."""
    job = Job(2, {"1": ("tp", (0, 1))}, with_frames=False).call("all_reduce", group="1")
    job.call("send", [0], peer=1, done=False)
    real = decode((write(writer, job, tmp_path) / "nccl_trace_rank_0").read_bytes())
    assert isinstance(real, dict)
    made = job.dump(0)
    assert set(made) <= set(real)
    assert real["version"].split(".")[0] == "2"
    for ours, theirs in zip(made["entries"], real["entries"], strict=True):
        assert set(ours) <= set(theirs)
        for name in set(ours) - {"thread_id", "thread_name", "time_created_ns"}:
            if not name.startswith("time_discovered"):
                assert type(ours[name]) is type(theirs[name]), name
                assert ours[name] == theirs[name], name


def test_nccl_shapes_written_by_torchs_recorder(
    writer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = {f"{n + 1}": (f"tp{n}", (2 * n, 2 * n + 1)) for n in range(4)}
    job = Job(8, groups)
    for _ in range(200):
        for group in groups:
            job.call("_all_gather_base", group=group)
        job.call("all_reduce")
    for group in groups:
        job.call("_all_gather_base", group=group, ranks=[2] if group == "2" else None, done=False)
    job.call("all_reduce", [0, 1, 4, 5, 6, 7], state="started", done=False)
    directory = write(writer, job, tmp_path / "d", entries=100)
    assert all(trace.wrapped and trace.length == 100 for trace in load([str(directory)]).traces)
    status, found = flight(capsys, directory)
    assert status == 10
    assert first(found) == ("missing-collective", [3])
    assert found["flight"]["entries"] == 800


def test_a_timeout_written_by_torchs_recorder(
    writer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(4).call("all_reduce").call("all_reduce", done=True, state="scheduled")
    status, found = flight(capsys, write(writer, job, tmp_path))
    assert (status, first(found)) == (10, ("all-joined-transport", []))
    assert "timed out on ranks 0-3" in found["verdicts"][0]["evidence"][0]["text"]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six gloo jobs that hang, all at once."""
    torch_folder()
    directory = tmp_path_factory.mktemp("gloo")
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "gloo_dumps.py"), str(directory), *SCENARIOS],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        # Up to torch 2.10 the recorder is off by default.
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"},
    )
    if "no flight recorder for gloo" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-2000:]
    return directory


EXPECTED = {
    "skip": ("missing-collective", [2]),
    "mismatch": ("mismatched-collective", [1]),
    "crossed": ("group-order-inversion", [0, 1, 2, 3]),
    "subset": ("missing-collective", [3]),
    "ddp": ("missing-collective", [1]),
    "shift": ("missing-collective", [2]),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("form", ["rank_", "json_"])
def test_hung_gloo_jobs_are_judged_from_their_dumps(
    dumps: Path, scenario: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = flight(capsys, dumps / scenario, "--prefix", form)
    assert status == 10
    cause, culprits = first(found)
    assert culprits == EXPECTED[scenario][1]
    if (scenario, form) != ("shift", "json_"):
        # JSON holds no stacks, and without those nothing tells the steps apart.
        assert cause == EXPECTED[scenario][0]
    assert found["flight"]["problems"] == []


def test_a_skipped_step_is_located_by_its_call_site(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = flight(capsys, dumps / "shift", "--prefix", "rank_")
    summary = found["verdicts"][0]["summary"]
    assert summary.startswith("rank 2 skipped all_reduce #4 at support/gloo_dumps.py:")
    assert "noticed as #8" in summary


def test_three_of_four_dumps_are_enough(
    dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1, 3):
        shutil.copy(dumps / "skip" / f"rank_{rank}", tmp_path)
    status, found = flight(capsys, tmp_path)
    # gloo does not record the members of the default group: rank 2 shows in the gap.
    assert (status, first(found)) == (10, ("missing-collective", [2]))
