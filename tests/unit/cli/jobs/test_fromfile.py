"""Commands on captures in which something is missing, damaged or meant to do harm."""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import hangtop_core as ht
from hangtop.cli.main import main
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, load, save
from hangtop_core.model.snapshot import Failure, Recorder, RecorderWay
from hangtop_core.model.updates import Update
from hangtop_hook.numericsfile import VARIABLE
from support.ends import hanging, with_gone
from support.record import path_of

if TYPE_CHECKING:
    from pathlib import Path

RECORDING = str(path_of("skip"))


def test_a_capture_in_which_nobody_looks_for_nan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numerics", RECORDING]) != 0
    told = capsys.readouterr().err
    assert "no rank of this capture's job looks for inf and nan" in told
    assert "--detect-overflow" in told


def test_a_recorder_that_could_not_be_read_is_no_missing_one_in_a_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = load(RECORDING).newest
    (job,) = newest.snapshot.jobs
    way = RecorderWay("file", "truncated", {"path": "/tmp/rank_2"})
    unread = Recorder(newest.snapshot.at, ways=(way,), failure=Failure("missing", "no way to it"))
    ranks = [
        msgspec.structs.replace(rank, recorder=unread if rank.rank == 2 else rank.recorder)
        for rank in job.ranks
    ]
    jobs = (msgspec.structs.replace(job, ranks=tuple(ranks)),)
    snapshot = msgspec.structs.replace(newest.snapshot, jobs=jobs)
    path = tmp_path / "spoiled.hangtop"
    save(path, [msgspec.structs.replace(newest, snapshot=snapshot)], Facts())
    main(["flight", "--json", str(path)])
    found = json.loads(capsys.readouterr().out)
    assert found["flight"]["unreadable"] == [2]
    assert not [one for verdict in found["verdicts"] for one in verdict["culprits"]]
    [spot] = [one for one in found["blind_spots"] if one["ranks"] == [2]]
    assert "is cut off" in spot["why"]


def test_a_capture_from_before_the_first_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = load(RECORDING).newest
    (job,) = newest.snapshot.jobs
    ranks = []
    for rank in job.ranks:
        env = {**rank.process.env, VARIABLE: "{}"}
        process = msgspec.structs.replace(rank.process, env=env)
        ranks.append(msgspec.structs.replace(rank, process=process))
    jobs = (msgspec.structs.replace(job, ranks=tuple(ranks)),)
    snapshot = msgspec.structs.replace(newest.snapshot, jobs=jobs)
    save(tmp_path / "a.hangtop", [msgspec.structs.replace(newest, snapshot=snapshot)], Facts())
    assert main(["numerics", str(tmp_path / "a.hangtop")]) != 0
    told = capsys.readouterr().err
    assert "look for inf and nan, but when the capture was made: not read yet" in told


def spoiled(raw: Any) -> Any:
    """Plain data in whose texts of several words there are escape sequences and what turns text."""
    if isinstance(raw, str) and " " in raw and not raw.startswith("run "):  # no key of a job
        return raw.replace(" ", " \x1b[31m\x1b]0;x\x07\u202e\x00", 1)
    if isinstance(raw, list):
        return [spoiled(one) for one in raw]
    if isinstance(raw, dict):
        return {key: spoiled(one) for key, one in raw.items()}
    return raw


@pytest.mark.parametrize("name", ["logs", "recorder"])
def test_nothing_of_a_capture_reaches_the_terminal_as_an_escape_sequence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = gzip.decompress(path_of(name).read_bytes()).splitlines()
    made = b"\n".join(json.dumps(spoiled(json.loads(line))).encode() for line in lines)
    path = str(tmp_path / "a.hangtop")
    (tmp_path / "a.hangtop").write_bytes(gzip.compress(made + b"\n"))
    assert load(path).cut is None
    for command in (["logs"], ["diagnose"], ["dump", "--each"], ["flight", "-j"], ["numerics"]):
        main([*command, path])
        printed = capsys.readouterr()
        lines = (printed.out + printed.err).strip().split("\n")
        assert len(lines) > 1, command
        for line in lines:
            assert line.isprintable(), (command, line)


def test_a_job_whose_verdict_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where another job's is there and the rest is damaged, as one flipped bit makes of it."""
    lines = gzip.decompress(path_of("skip").read_bytes()).splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith(b'{"verdict":'))
    verdict = json.loads(lines[at])
    lines[at] = json.dumps({**verdict, "verdict": "another job"}).encode()
    path = tmp_path / "a.hangtop"
    path.write_bytes(gzip.compress(b"\n".join([*lines[: at + 1], b"{damaged", b""])))
    assert main(["diagnose", str(path)]) == 2
    told = capsys.readouterr().err
    assert "what was concluded of" in told
    assert "hangtop open" in told


def test_a_capture_is_named_so_that_a_shell_can_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, named in (("of monday", f"'{tmp_path}/of monday'"), ("of \x1b[31mmonday", "FILE")):
        path = tmp_path / name
        path.symlink_to(RECORDING)
        assert main(["flight", "--tui", str(path)]) == 2
        told = capsys.readouterr().err
        assert "\x1b" not in told
        assert f"`hangtop open {named}`" in told


class Pipe(io.TextIOWrapper):
    """Standard output that is no terminal."""

    def __init__(self) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, "utf-8")


def test_a_capture_goes_to_a_pipe_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stdout", pipe)
    monkeypatch.chdir(tmp_path)
    assert main(["capture", RECORDING, "-o", "-"]) == 0
    told = capsys.readouterr().err
    assert "standard output: " in told
    assert "hangtop open" not in told
    assert not [*tmp_path.iterdir()]
    (tmp_path / "a.hangtop").write_bytes(pipe.raw_bytes.getvalue())
    again = load(str(tmp_path / "a.hangtop"))
    assert again.newest.snapshot.jobs[0].key == load(RECORDING).newest.snapshot.jobs[0].key
    assert not again.cut


def test_a_capture_is_not_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", RECORDING, "-o", "-", "--json"]) == 2
    assert "both write to the standard output" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["capture", RECORDING, "-o", "-"]) == 2
    assert "not for a terminal" in capsys.readouterr().err


def test_a_dash_means_standard_output_to_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dump", RECORDING, "-o", "-"]) == 0
    assert "ranks" in capsys.readouterr().out
    main(["flight", RECORDING, "-o", "-"])
    assert json.loads(capsys.readouterr().out)["schema"] == "hangtop.diagnosis/1"
    assert not [*tmp_path.iterdir()]


def test_a_capture_taken_after_the_end_tells_of_the_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "over.hangtop"
    snapshot = hanging()
    pictures = [snapshot, with_gone(snapshot, 4.0, dict.fromkeys(range(4)))]
    judged = [
        Update(one, {one.jobs[0].key: msgspec.structs.replace(diagnose(one, one.jobs[0]))})
        for one in pictures
    ]
    old = msgspec.structs.replace(next(iter(judged[1].diagnoses.values())), ended=None)
    judged[1] = msgspec.structs.replace(judged[1], diagnoses={snapshot.jobs[0].key: old})
    save(path, judged, Facts(job=snapshot.jobs[0].key))
    assert main(["diagnose", str(path)]) == 10
    text = capsys.readouterr().out
    assert text.startswith("ENDED after hanging 5:0")
    assert "Verdict: missing-collective" in text
    assert main(["diagnose", "--json", str(path)]) == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["hung_for_s"]) == ("exited", None)
    assert told["ended"]["after_hanging_s"] > 300
    assert ht.diagnose(ht.open_capture(path)).hung_until_end
    assert not ht.diagnose(ht.open_capture(path).newest.snapshot).hung_until_end
