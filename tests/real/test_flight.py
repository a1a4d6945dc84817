"""Dumps that torch itself has written: in the shapes of NCCL, and by real gloo jobs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.main import main
from hangtop_core.analysis.flight.picture import Picture, examine
from hangtop_core.attach.wire import messages
from hangtop_core.dumps.load import load
from hangtop_core.dumps.reader import decode
from hangtop_core.model.recorder.columns import Shared, Unpacker
from hangtop_probe.node import permission
from hangtop_probe.recorder import inject
from hangtop_probe.recorder.rankrecorder import gather
from hangtop_probe.recorder.recorderread import Told
from hangtop_probe.wire.tools import Tools
from support.flight import Job
from support.jobs import POOL_VARIABLE
from support.launch import free_port
from support.probe_client import ProbeClient
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

SUPPORT = Path(__file__).parents[1] / "support"
SCENARIOS = ("skip", "mismatch", "crossed", "subset", "ddp", "shift")
LIVE = ("gil", "release", "debug")
"""Jobs that are only looked at while they run."""


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
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gloo jobs that hang, all at once, until the tests are over."""
    torch_folder()
    directory = tmp_path_factory.mktemp("gloo")
    log = directory / "log"
    # Up to torch 2.10 the recorder is off by default.
    env = {"TORCH_FR_BUFFER_SIZE": "2000", "MASTER_ADDR": "127.0.0.1", POOL_VARIABLE: "flight"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "gloo_dumps.py"), str(directory), *SCENARIOS, *LIVE],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **env, "MASTER_PORT": str(free_port())},
        )
    wanted = [
        directory / name / f"rank_{rank}" for name in (*SCENARIOS, *LIVE) for rank in range(4)
    ]

    def ready() -> bool:
        return process.poll() is not None or all(one.exists() for one in wanted)

    try:
        assert wait_until(ready, 2 * PATIENCE), log.read_text()[-2000:]
        if "no flight recorder for gloo" in log.read_text():
            pytest.skip(log.read_text().strip())
        assert process.poll() is None, log.read_text()[-2000:]
        yield directory
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE)


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


@pytest.fixture(scope="module")
def probe() -> Iterator[ProbeClient]:
    with ProbeClient() as client:
        client.hello()
        yield client


def ask(probe: ProbeClient, ranks: dict[int, int], **options: Any) -> dict[int, dict[str, Any]]:
    """Pieces by rank, of ranks by pid."""
    numbers = {str(pid): rank for pid, rank in ranks.items()}
    pieces = probe.pieces(op="recorder", pids=list(ranks), ranks=numbers, **options)
    return {ranks[piece["pid"]]: piece for piece in pieces}


def members(directory: Path) -> dict[int, int]:
    return {int((directory / f"pid_{rank}").read_text()): rank for rank in range(4)}


def judged(pieces: dict[int, dict[str, Any]]) -> Picture:
    """What the head makes of pieces."""
    unpacker, traces = Unpacker(Shared()), []
    for rank, raw in pieces.items():  # in the order in which they came
        piece = messages.decode(raw, messages.RecorderPiece)
        said = messages.recorder(piece, 0.0, rank, unpacker)
        assert said.trace is not None, raw
        traces.append(said.trace)
    return examine(traces)


def code(piece: dict[str, Any], way: str) -> str:
    return str(next((one["code"] for one in piece["ways"] if one["way"] == way), None))


@pytest.mark.parametrize("scenario", ["skip", "mismatch", "crossed", "subset", "ddp"])
def test_hung_gloo_jobs_are_judged_while_they_run(
    dumps: Path, scenario: str, probe: ProbeClient
) -> None:
    pieces = ask(probe, members(dumps / scenario))
    assert {piece["source"] for piece in pieces.values()} == {"server"}
    verdict = judged(pieces).diagnosis.verdicts[0]
    blamed = [one.rank for one in verdict.culprits]
    assert (verdict.cause, blamed) == EXPECTED[scenario]


def test_a_rank_that_holds_the_gil_answers_and_is_not_injected(
    dumps: Path, probe: ProbeClient
) -> None:
    pieces = ask(probe, members(dumps / "gil"), inject=True)
    verdict = judged(pieces).diagnosis.verdicts[0]
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("missing-collective", [1])
    # Without its server there would be gdb, which must not call into it.
    [pid] = [pid for pid, rank in members(dumps / "gil").items() if rank == 1]
    tools = Tools()
    try:
        with pytest.raises(Told) as refused:
            inject.check(gather(pid, 1), tools, permission.rights(), threading.Event())
    finally:
        tools.close()
    assert refused.value.message["code"] == "gil"


def test_debug_servers_are_asked_where_their_port_is_published(
    dumps: Path, probe: ProbeClient
) -> None:
    pieces = ask(probe, members(dumps / "debug"))
    assert [pieces[rank].get("source") for rank in range(4)] == [*["debug-server"] * 3, None]
    assert code(pieces[3], "debug-server") == "unpublished"
    assert [pieces[rank]["trace"]["length"] for rank in range(3)] == [3, 3, 2]


def test_gdb_reads_ranks_that_go_on_as_if_nothing_had_been(dumps: Path, probe: ProbeClient) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
    ranks = members(dumps / "release")
    pids = list(ranks)
    assert all("trace" not in one for one in ask(probe, ranks).values())
    os.kill(pids[3], signal.SIGSTOP)
    stopped = ask(probe, {pids[3]: 3}, inject=True)[3]
    assert code(stopped, "inject") == "halted"
    os.kill(pids[3], signal.SIGCONT)
    pieces = ask(probe, ranks, inject=True)
    if code(pieces[0], "inject") == "denied":
        pytest.skip("this user may not attach to its processes")
    assert {piece["source"] for piece in pieces.values()} == {"inject"}, pieces
    verdict = judged(pieces).diagnosis.verdicts[0]
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("missing-collective", [1])
    assert not [one for pid in pids for one in Path(f"/proc/{pid}/root/tmp").glob("hangtop-dump-*")]
    killed_meanwhile(pids[0])
    (dumps / "release" / "go").touch()
    results = [dumps / "release" / f"result_{rank}" for rank in range(4)]
    assert wait_until(lambda: all(one.exists() for one in results))
    assert {one.read_text() for one in results} == {str([10.0] * 8)}


def killed_meanwhile(pid: int) -> None:
    """Kill a probe whose gdb is in a rank: gdb is left to finish, and lets the rank go."""
    before = set(Path("/tmp").glob("hangtop-dump-*"))

    def traced() -> bool:
        return "\nTracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()

    with ProbeClient() as client:
        client.send(op="recorder", pids=[pid], ranks={str(pid): 0}, inject=True)
        assert wait_until(traced)
        client.process.kill()
        client.process.wait()
    assert wait_until(lambda: not traced())

    def made() -> set[Path]:
        return set(Path("/tmp").glob("hangtop-dump-*")) - before

    assert wait_until(lambda: bool(made())), "gdb was ended: within its call it ends the rank"
    for file in made():
        file.unlink()


def test_a_byte_in_its_pipe_makes_an_nccl_rank_dump(
    writer: Path, tmp_path: Path, probe: ProbeClient
) -> None:
    job = Job(2).call("all_reduce").call("all_reduce", [0], done=False)
    calls = ["group\t0\tdefault_pg\t0,1", *map(_line, job.entries[0])]
    lines = ["new", *calls, f"serve\t{tmp_path}/fr_0.pipe\t{tmp_path}/d_0", ""]
    env = {
        "RANK": "0",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "100",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/fr_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/d_",
    }
    rank = subprocess.Popen([writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert rank.stdin is not None
    assert rank.stdout is not None
    try:
        rank.stdin.write("\n".join(lines).encode())
        rank.stdin.flush()
        assert rank.stdout.readline() == b"ready\n"
        untouched = ask(probe, {rank.pid: 0})[0]
        assert (code(untouched, "pipe"), code(untouched, "file")) == ("there", "none")
        piece = ask(probe, {rank.pid: 0}, trigger=True)[0]
    finally:
        rank.kill()
        rank.communicate()
    assert (piece.get("source"), piece.get("triggered")) == ("pipe", True), piece
    assert piece["trace"]["length"] == 2
    assert [one.seq for one in judged({0: piece}).world.collectives(0, 0)] == [1, 2]
