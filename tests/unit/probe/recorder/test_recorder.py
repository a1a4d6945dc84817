"""The parts of reading a rank's recorder: ways, columns, files of anybody, HTTP."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.analysis.flight.ways import cautions, explain
from hangtop_core.model.recorder import trace as head
from hangtop_core.model.snapshot import Recorder, RecorderWay
from hangtop_probe.node import permission
from hangtop_probe.recorder import (
    columns,
    gdbcalls,
    inject,
    rankrecorder,
    recorder,
    recorderread,
    recorderways,
    workerserver,
)
from hangtop_probe.recorder.recorderways import Facts
from hangtop_probe.wire.requests import Request
from hangtop_probe.wire.tools import Tools
from support.flight import Job, as_json
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.probe_client import ProbeClient
NCCL = frozenset({"pt_nccl_heartbt", "pt_nccl_watchdg"})
GLOO = frozenset({"pt_gloo_runloop"})
OLD, NEW = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
PIPE = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/fr_"}


def facts(torch: str | None, env: dict[str, str] | None = None, **more: Any) -> Facts:
    defaults = {"threads": NCCL, "nccl": bool(more.get("threads", NCCL) - GLOO), "loaded": True}
    return Facts(1, 3, 1000, env or {}, torch=torch, **{**defaults, **more})


@pytest.mark.parametrize(
    ("torch", "env", "code"),
    [
        ("2.4.1", {}, "off-default"),
        ("2.7.0", {NEW: "2000"}, "off-new-name"),
        ("2.7.0", {OLD: "2000"}, "on"),
        ("2.8.0", {NEW: "2000"}, "on"),
        ("2.10.0", {}, "off-default"),
        ("2.11.0+cu130", {}, "on"),
        ("2.13.0", {NEW: "0", OLD: "2000"}, "off"),
        (None, {}, "unknown-version"),
    ],
)
def test_whether_the_recorder_is_on(torch: str | None, env: dict[str, str], code: str) -> None:
    assert recorderways.ring(facts(torch, env))["code"] == code


@pytest.mark.parametrize(
    ("torch", "env", "more", "code"),
    [
        ("2.9.0", {**PIPE, NEW: "2000"}, {}, "old-name"),
        ("2.9.0", {**PIPE, NEW: "2000", OLD: "2000"}, {}, "missing"),
        ("2.13.0", {}, {}, "not-set"),
        ("2.13.0", {**PIPE, "TORCH_NCCL_BLOCKING_WAIT": "1"}, {}, "blocking-wait"),
        ("2.13.0", {**PIPE, "TORCH_NCCL_BLOCKING_WAIT": "0"}, {}, "missing"),
        ("2.15.0", PIPE, {"threads": frozenset(), "nccl": True}, "nccl2"),
        ("2.15.0", {**PIPE, "TORCH_DIST_USE_NCCL2": "0"}, {"threads": frozenset()}, "no-group"),
        ("2.14.1", {**PIPE, "TORCH_DIST_USE_NCCL2": "1"}, {"threads": frozenset(), "nccl": True},
         "nccl2"),
        ("2.13.0", PIPE, {"threads": frozenset()}, "no-group"),
        ("2.13.0", PIPE, {"threads": GLOO}, "gloo"),
        ("2.4.1", PIPE, {}, "off"),
    ],
)  # fmt: skip
def test_why_there_is_no_pipe(
    torch: str, env: dict[str, str], more: dict[str, Any], code: str
) -> None:
    way = recorderways.pipe(facts(torch, env, **more), there=False)
    assert way["code"] == code


def test_a_pipe_that_is_there_and_one_that_is_seldom_looked_at() -> None:
    assert recorderways.pipe(facts("2.13.0", PIPE), there=True) == {
        "way": "pipe",
        "code": "there",
        "args": {"path": "/tmp/fr_3.pipe"},
    }
    env = {**PIPE, "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert recorderways.pipe(facts("2.13.0", env), there=True)["code"] == "rare"


@pytest.mark.parametrize(
    ("torch", "env", "paths"),
    [
        ("2.4.1", {"HOME": "/h"}, ["/tmp/nccl_trace_rank_3"]),
        ("2.7.0", {"TORCH_FR_DUMP_TEMP_FILE": "/d/a_"}, ["/tmp/nccl_trace_rank_3"]),
        ("2.8.0", {"TORCH_FR_DUMP_TEMP_FILE": "/d/a_"}, ["/d/a_3"]),
        ("2.10.0", {"HOME": "/h", "XDG_CACHE_HOME": "/x"},
         ["/h/.cache/torch/comm_lib_trace_rank_3"]),
        ("2.13.0", {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, ["/x/torch/comm_lib_trace_rank_3"]),
        ("2.13.0", {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d/b_"}, ["/d/b_3"]),
        ("2.13.0", {"HOME": "/h", "HANGTOP_RUN_DIR": "/run"},
         ["/run/flight/rank_3", "/h/.cache/torch/comm_lib_trace_rank_3"]),
        (None, {"HOME": "/h"}, ["/h/.cache/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3"]),
    ],
)  # fmt: skip
def test_where_torch_writes_by_version(
    torch: str | None, env: dict[str, str], paths: list[str]
) -> None:
    assert recorderways.dump_files(facts(torch, env)) == paths


def test_a_prepared_run_has_its_pipe_where_its_hook_puts_it() -> None:
    run = facts("2.13.0", {"HANGTOP_RUN_DIR": "/run"})
    assert recorderways.pipe_path(run) == "/run/flight/rank_3.pipe"
    assert recorderways.pipe_path(facts("2.13.0", {**PIPE, **run.env})) == "/tmp/fr_3.pipe"


def test_what_a_server_is_asked_for() -> None:
    assert recorderways.handlers(facts("2.13.0")) == ["dump_nccl_trace_json", "fr_trace_json"]
    assert recorderways.handlers(facts("2.13.0", threads=GLOO)) == ["fr_trace_json"]
    nccl2 = facts("2.15.0", threads=frozenset(), nccl=True)
    assert recorderways.handlers(nccl2)[0] == "fr_trace_json?backend=nccl"


def test_both_sides_mean_the_same_by_a_flag() -> None:
    for name in ("SCHEDULED", "STARTED", "COMPLETED", "STATE", "RETIRED", "P2P", "DONE", "PART"):
        assert getattr(head, name) == getattr(columns, name)


def test_a_server_is_not_looked_for_by_name_before_torch_names_its_threads() -> None:
    assert recorderways.no_server(facts("2.13.0"))["code"] == "no-thread"
    old = recorderways.no_server(facts("2.4.1"))
    assert "2.4.1" in explain(RecorderWay("server", "unnamed", old["args"]))[0]  # type: ignore[arg-type]


def test_the_newest_entries_are_kept_and_what_is_not_over_before_them() -> None:
    job = Job(1, with_frames=False)
    for number in range(50):
        job.call("all_reduce", sizes=[[number]], done=number != 30)
    found = columns.reduce(job.dump(0))
    found.newest(10)
    assert (found.length, found.seq[0], found.wrapped) == (20, 31, True)
    assert len(found.calls) == 20  # texts of what was left out are left out, too
    assert [found.calls[n][1] for n in found.call][:1] == ["[[30]]"]
    found.newest(3)
    assert found.length == 12  # at most four times as many


class FakeRank:
    """A process with the environment of a rank, whose files are what a test writes."""

    def __init__(self, directory: Path, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(100)"],
            env={
                "RANK": "0",
                "WORLD_SIZE": "2",
                "TORCH_FR_DUMP_TEMP_FILE": f"{directory}/d_",
                **env,
            },
        )
        self.pid = self.process.pid
        environ = Path(f"/proc/{self.pid}/environ")
        # The kernel sets it a moment after the start.
        assert wait_until(lambda: b"RANK=" in environ.read_bytes())

    def __enter__(self) -> FakeRank:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def read(probe: ProbeClient, rank: FakeRank, **options: Any) -> dict[str, Any]:
    [piece] = probe.pieces(op="recorder", pids=[rank.pid], ranks={str(rank.pid): 0}, **options)
    return dict(piece)


def code_of(piece: dict[str, Any], way: str) -> str:
    return str(next(one["code"] for one in piece["ways"] if one["way"] == way))


def recorded(after_start: float = 5.0) -> Job:
    """A job whose operations were recorded so many seconds after now, when its ranks start."""
    job = Job(2)
    job.clock = time.time_ns() + int(after_start * 1e9)
    return job


HOSTILE = {
    "global": (pickle.dumps({"version": os.system}), "refused"),
    "claim": (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x0fX\xff\xff\xff\x7f", "memory"),
    "memo": (b"\x80\x04" + b"]r\xff\xff\xff\x7f" + b".", "memory"),
    "deep": (b'{"version": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "deep"),
    "text": (b"root:x:0:0", "foreign"),
    "cut": (pickle.dumps({"version": "2.10"}, 2)[:-2], "truncated"),
    "json cut": (b'{"version": "2.1', "truncated"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_other_ranks_are_read(
    name: str, probe: ProbeClient, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    data, code = HOSTILE[name]
    with FakeRank(tmp_path) as rank, FakeRank(other) as honest:
        (tmp_path / "d_0").write_bytes(data)
        (other / "d_0").write_bytes(pickle.dumps(recorded().call("all_reduce").dump(0), 2))
        pids = [rank.pid, honest.pid]
        pieces = probe.pieces(op="recorder", pids=pids, ranks={str(pid): 0 for pid in pids})
        found = {piece["pid"]: piece for piece in pieces}
        assert "trace" not in found[rank.pid]
        assert code_of(found[rank.pid], "file") == code
        assert found[honest.pid]["trace"]["length"] == 1


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_files_of_an_earlier_run_and_links_are_not_read(
    probe: ProbeClient, tmp_path: Path, form: str
) -> None:
    file = tmp_path / "d_0"
    dump = recorded().call("all_reduce").dump(0)
    with FakeRank(tmp_path) as rank:
        file.write_bytes(pickle.dumps(dump, 2) if form == "pickle" else as_json(dump))
        piece = read(probe, rank)
        assert (piece["source"], piece["path"]) == ("file", str(file))
        assert piece["at"] == pytest.approx(file.stat().st_mtime, abs=0.01)
        os.utime(file, (1e9, 1e9))
        assert code_of(read(probe, rank), "file") == "stale"
        target = file.rename(tmp_path / "elsewhere")
        file.symlink_to(target)
        assert code_of(read(probe, rank), "file") == "none"


def test_a_new_file_with_what_an_earlier_run_has_recorded_is_not_believed(
    probe: ProbeClient, tmp_path: Path
) -> None:
    """As `cp` leaves it, or a run whose last rank wrote its dump when this one was on its way."""
    with FakeRank(tmp_path) as rank:
        (tmp_path / "d_0").write_bytes(pickle.dumps(recorded(-30.0).call("all_reduce").dump(0), 2))
        piece = read(probe, rank)
        assert code_of(piece, "file") == "earlier"
        assert "trace" not in piece


def test_operations_of_an_earlier_run_are_left_out_and_that_is_told(
    probe: ProbeClient, tmp_path: Path
) -> None:
    job = recorded(-30.0).call("all_reduce").call("all_reduce").call("all_reduce")
    job.clock += int(60e9)
    with FakeRank(tmp_path) as rank:
        (tmp_path / "d_0").write_bytes(pickle.dumps(job.call("broadcast").dump(0), 2))
        piece = read(probe, rank)
    assert piece["trace"]["length"] == 1
    assert "nccl:all_reduce" not in json.dumps(piece)
    assert "nccl:broadcast" in json.dumps(piece)
    [told] = [one for one in piece["ways"] if one["code"] == "partly-earlier"]
    assert told["args"]["count"] == "3"
    made = Recorder(0.0, "file", trace=head.Trace(0, ""), ways=(RecorderWay(**told),))
    assert any("of an earlier run" in one for one in cautions(made))


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_file_of_somebody_else_is_not_read(probe: ProbeClient, tmp_path: Path) -> None:
    with FakeRank(tmp_path) as rank:
        (tmp_path / "d_0").write_bytes(pickle.dumps(recorded().call("all_reduce").dump(0), 2))
        os.chown(tmp_path / "d_0", 65534, -1)
        assert code_of(read(probe, rank), "file") == "owner"


def test_equal_calls_and_groups_are_sent_once(probe: ProbeClient, tmp_path: Path) -> None:
    job = recorded().call("all_reduce").call("broadcast", line=12)
    ranks = []
    for number in (0, 1):
        place = tmp_path / str(number)
        place.mkdir()
        ranks.append(FakeRank(place))
        (place / "d_0").write_bytes(pickle.dumps(job.dump(number), 2))
    with ranks[0], ranks[1]:
        pids = [one.pid for one in ranks]
        pieces = probe.pieces(op="recorder", pids=pids, ranks={str(pid): 0 for pid in pids})
    assert [sorted(piece["parts"]) for piece in pieces] == [["calls", "groups", "sites"], []]
    assert pieces[0]["trace"]["calls"] == pieces[1]["trace"]["calls"]


def test_a_pipe_is_written_to_only_when_that_is_asked_for(
    probe: ProbeClient, tmp_path: Path
) -> None:
    pipe = tmp_path / "fr_0.pipe"
    os.mkfifo(pipe)
    env = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/fr_"}
    with FakeRank(tmp_path, **env) as rank:
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        assert code_of(read(probe, rank), "pipe") == "there"
        assert os.read(reader, 10) == b""
        os.close(reader)
        # The monitor thread of the rank has ended: it is seen, not waited for.
        assert code_of(read(probe, rank, trigger=True), "pipe") == "no-reader"


def test_a_process_that_can_be_read_by_nothing_says_why(probe: ProbeClient, tmp_path: Path) -> None:
    with FakeRank(tmp_path) as rank:
        piece = read(probe, rank, inject=True)
        asked = {"op": "recorder", "pids": [rank.pid], "ranks": {str(rank.pid): 0}}
        counts = [len(probe.pieces(**asked, news=news)) for news in (False, True, True, False)]
        assert counts == [1, 0, 0, 1], "what was said is not said again to who asks for news"
    assert piece["failure"]["kind"] == "missing"
    assert code_of(piece, "server") == "no-thread"
    assert code_of(piece, "recorder") == "no-torch"
    assert code_of(piece, "inject") in ("no-torch", "no-gdb")
    [gone] = probe.pieces(op="recorder", pids=[2**22 + 1])
    assert gone["failure"]["kind"] == "gone"


READ = ("file", "pipe", "server", "debug-server", "inject")
"""What a dump comes by: of those `Told` does not say which."""
WAYS = {"gdbcalls": READ[-1:], "inject": READ[-1:], "recorderread": READ}
CAN = {("file", "there"), ("server", "there"), ("debug-server", "maybe")}
"""What doctor says of a rank that has not been asked: nothing is in the way."""


def codes() -> Iterator[tuple[tuple[str, ...], str, dict[str, str]]]:
    """Ways, of which one at least is meant, codes and arguments as the probe's code has them."""
    for module in (gdbcalls, inject, rankrecorder, recorderread, recorderways):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            args = {one.arg: "x" for one in node.keywords if one.arg is not None}
            words = [
                [word.value for word in ast.walk(one) if isinstance(word, ast.Constant)]
                for one in node.args
            ]
            if node.func.id == "Told":
                ways = WAYS[module.__name__.rpartition(".")[2]]
                yield from ((ways, str(code), args) for code in words[0])
            elif node.func.id == "way":
                ways = (str(words[0][0]),) if words[0] else READ
                yield from ((ways, str(code), args) for code in words[1] if code != "code")


def is_explained(way: str, code: str, args: dict[str, str]) -> bool:
    why, _ = explain(RecorderWay(way, code, args))  # type: ignore[arg-type]
    return not why.endswith(f": {code}") and "?" not in why


def test_every_code_that_a_node_gives_is_explained() -> None:
    found = list(codes())
    assert len(found) > 50
    for ways, code, args in found:
        if {(way, code) for way in ways}.isdisjoint(CAN):
            assert any(is_explained(way, code, args) for way in ways), (ways, code)
    assert "what its worker server said: gone-mad" in explain(RecorderWay("server", "gone-mad"))[0]
    for way in ("{", "{path:>300}", "{seconds!r}"):
        assert explain(RecorderWay(way, "truncated")) == (f"{way} is cut off", "")


def serve(path: Path, *answers: bytes, keep: bool = False) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        with server:
            for answer in answers:
                with server.accept()[0] as connection:
                    connection.recv(4096)
                    connection.sendall(answer)
                    if keep:
                        connection.settimeout(3)
                        connection.recv(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_server_that_knows_only_an_empty_recorder_of_nccl_says_so(tmp_path: Path) -> None:
    empty = b'HTTP/1.0 200 OK\r\n\r\n{"version": "2.9", "pg_config": {}, "pg_status": {}}'
    thread = serve(tmp_path / "s", empty, b"HTTP/1.0 404 Not Found\r\n\r\n")
    order = {"unix": str(tmp_path / "s"), "seconds": PATIENCE, "entries": 9}
    text = json.dumps({**order, "handlers": ["dump_nccl_trace_json", "fr_trace_json"]})
    code = "from hangtop_probe.recorder.recorderread import main; main()"
    # In a process of its own, as it limits its memory.
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, check=True)
    assert json.loads(done.stdout)["code"] == "nccl-only"
    assert "--allow-inject" in explain(RecorderWay("server", "nccl-only"))[1]
    thread.join(PATIENCE)


def test_http_with_length_chunks_and_neither(tmp_path: Path) -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ]
    for number, answer in enumerate(answers):
        path = tmp_path / str(number)
        thread = serve(path, answer)
        assert workerserver.post(str(path), "/x", PATIENCE) == b"{}"
        thread.join(PATIENCE)


def test_http_that_fails(tmp_path: Path) -> None:
    for number, answer in enumerate(
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-x\r\n", b"")
    ):
        path = tmp_path / str(number)
        thread = serve(path, answer)
        with pytest.raises((ValueError, OSError)):
            workerserver.post(str(path), "/x", PATIENCE)
        thread.join(PATIENCE)


def test_http_that_never_answers(tmp_path: Path) -> None:
    thread = serve(tmp_path / "s", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", keep=True)
    with pytest.raises(TimeoutError):
        workerserver.post(str(tmp_path / "s"), "/x", 0.2)
    thread.join(PATIENCE)


def test_what_was_said_is_remembered_of_so_many_processes() -> None:
    told = dict.fromkeys(range(recorder.MAX_TOLD), "why")
    request = Request({"id": 1, "op": "recorder", "pids": [1 << 30]}, lambda *_: None)
    recorder.handle(request, permission.rights(), Tools(), told)
    assert len(told) == 1
