"""What a rank that fails writes down of the others on its node, before a launcher ends these."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.analysis.flight.picture import examine
from hangtop_core.dumps.load import load
from hangtop_core.report.flight import flight_text
from hangtop_hook import recorder, server, siblings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = """
import http.server, os, socketserver, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = sys.argv[2].encode() if self.path == "/handler/fr_trace_json" else b"{}"
        self.send_response(200); self.send_header("Content-Length", str(len(body)))
        self.end_headers(); self.wfile.write(body)
    def address_string(self): return ""
    def log_message(self, *words): pass
path = "%s-%d.sock" % (sys.argv[1], os.getpid())
with socketserver.UnixStreamServer(path, Answer) as server:
    print(flush=True)
    server.serve_forever() if len(sys.argv) < 4 else sys.stdin.read()
"""
GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def dump(*numbers: int) -> dict[str, Any]:
    entry = {
        "profiling_name": "gloo:all_reduce",
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "retired": True,
        "input_sizes": [[4]],
    }
    entries = [{**entry, "record_id": n, "collective_seq_id": n} for n in numbers]
    return {"version": "2.10", "pg_config": {"": {}}, "pg_status": {}, "entries": entries}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run; sockets are beside it."""
    monkeypatch.setattr(server, "socket_directory", lambda: str(tmp_path))
    (tmp_path / "run" / "flight").mkdir(parents=True)
    return tmp_path / "run"


@contextmanager
def rank(run: Path, number: int, held: object, *more: str, of: str = "") -> Iterator[None]:
    """A rank of the run, or of another one, whose worker server answers."""
    environ = {**os.environ, "RANK": str(number), "HANGTOP_RUN_DIR": of or str(run)}
    words = [sys.executable, "-c", SERVER, str(run), json.dumps(held), *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def keeper(run: Path, error: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What rank 0 keeps for its end, which has issued one operation more."""
    monkeypatch.setattr(recorder, "groups_of", lambda _: GROUPS)
    monkeypatch.setattr(recorder, "read", lambda: dump(1, 2, 3))
    monkeypatch.setattr(recorder, "last_exception", lambda: error)
    module = type("module", (), {"get_rank": lambda: 0})
    one = recorder.Keeper(module, str(run))
    monkeypatch.setattr(recorder, "_kept", {os.getpid(): one})
    return one


def test_a_rank_that_fails_writes_what_the_others_hold(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 4000ms")
    with rank(run, 1, dump(1, 2)), rank(run, 2, dump(1), of="/runs/other"):
        keeper(run, error, monkeypatch).write()
    assert sorted(os.listdir(run / "flight")) == ["ended_rank_0", "ended_rank_1"]
    assert (run / "flight" / "ended_rank_1").stat().st_mode & 0o777 == 0o600
    found = load([str(run / "flight")])
    assert {one.rank: one.ended for one in found.traces} == {0: "collective", 1: "running"}
    diagnosis = examine(found.traces).diagnosis
    (verdict,) = diagnosis.verdicts
    assert verdict.summary.startswith("rank 1 did not issue all_reduce #3 on default_pg")
    assert verdict.next_steps == ("read in the log of rank 1 where it came last",)
    text = flight_text(diagnosis, 100)
    assert text.startswith("ENDED while ranks waited")
    assert "1: running when another rank failed" in text


def test_a_rank_that_finishes_asks_nobody(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "recorders", lambda *_: pytest.fail("asked"))
    keeper(run, None, monkeypatch).write()
    assert os.listdir(run / "flight") == ["ended_rank_0"]


def test_what_a_rank_wrote_itself_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = run / "flight" / "ended_rank_1"
    own.write_bytes(b"its own")
    with rank(run, 1, dump(1, 2)):
        one = keeper(run, ValueError("batch"), monkeypatch)
        one.write()
        monkeypatch.setattr(os.path, "exists", lambda _: False)  # written in this very moment
        one.write_others()
    assert own.read_bytes() == b"its own"
    assert sorted(os.listdir(run / "flight")) == ["ended_rank_0", "ended_rank_1"]


@pytest.mark.parametrize(("held", "more"), [({"entries": []}, ()), ([7], ()), (dump(1), ("hang",))])
def test_who_does_not_answer_costs_a_moment_and_leaves_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, held: object, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(siblings, "LONGEST_S", 0.3)
    with rank(run, 1, held, *more):
        began = time.monotonic()
        keeper(run, ValueError("batch"), monkeypatch).write()
        assert time.monotonic() - began < 5
    assert os.listdir(run / "flight") == ["ended_rank_0"]
    assert pickle.loads((run / "flight" / "ended_rank_0").read_bytes())["hangtop"]["why"]
