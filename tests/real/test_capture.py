"""A capture of a real job that hangs: nothing secret in it, and the same verdict out of it."""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from hangtop.cli.main import main
from hangtop_core.capture import load
from hangtop_probe.secrets.mask import MASK
from support.documents import misfits
from support.jobs import run_hangtop
from support.launch import SUPPORT, Started, free_port
from support.plants import leaks, plants
from support.processes import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
ALL = plants()


class Taken(NamedTuple):
    """A capture, and what the command said."""

    path: str
    done: subprocess.CompletedProcess[str]
    text: str
    """Everything in the file."""
    diagnosed: subprocess.CompletedProcess[str]
    """By `diagnose -o`, which kept what it was concluded from in `kept`."""
    kept: str


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    """Two ranks that leave secrets in arguments, variables, logs and locals; rank 1 sleeps."""
    folder = tmp_path_factory.mktemp("capture")
    planted, log = folder / "planted.json", folder / "train.out"
    planted.write_text(json.dumps({one.kind: one.text for one in ALL}))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
        *(f"--master-port={free_port()}", str(SUPPORT / "secret_job.py"), str(planted)),
        *(argument for one in ALL for argument in one.arguments),
    ]
    variables = {f"TORCH_PLANT_{number}": one.text for number, one in enumerate(ALL)}
    last = f"plant-{len(ALL) - 1} "
    with Started(*command, env=variables, output=log) as job:
        assert wait_until(lambda: log.read_text().count(last) == 2), log.read_text()
        path = str(folder / "hang.hangtop")
        pids = [str(pid) for pid in job.pids()]
        options = ["--observe", "3", "--hang-after", "4", "--locals", "--pid", *pids]
        done = run_hangtop("capture", "-o", path, *options)
        assert Path(path).exists(), done.stderr
        kept = str(folder / "kept.hangtop")
        told = run_hangtop("diagnose", "-o", kept, "--json", "--hang-after", "4", "--pid", *pids)
        yield Taken(path, done, gzip.decompress(Path(path).read_bytes()).decode(), told, kept)


def test_no_secret_is_in_the_file(taken: Taken) -> None:
    raw = taken.text
    plain = raw.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    found = {one.kind: [*leaks(one, raw), *leaks(one, plain)] for one in ALL}
    assert {kind: some for kind, some in found.items() if some} == {}
    assert not any(leaks(one, taken.done.stdout + taken.done.stderr) for one in ALL)


def test_what_held_the_secrets_is_there(taken: Taken) -> None:
    snapshot = load(taken.path).newest.snapshot
    rank = snapshot.jobs[0].ranks[0]
    log = next(one for one in snapshot.outputs if one.path.endswith("train.out"))
    for number, one in enumerate(ALL):
        assert f"plant-{number} " in log.text
        assert MASK in rank.process.env[f"TORCH_PLANT_{number}"], one.kind
    assert sum(MASK in argument for argument in rank.process.cmdline) >= len(ALL)
    assert rank.sample is not None
    names = {one.name: one.value for frame in rank.sample.threads[0].locals for one in frame}
    assert names["api_key"] == MASK
    assert {"config", "lines", "connection"} <= set(names)
    header = load(taken.path).header
    assert header.redacted == ("secrets",)
    assert sum(header.redactions.values()) > len(ALL)


def test_the_command_says_what_it_wrote(taken: Taken) -> None:
    assert taken.done.returncode == 10, taken.done.stderr
    assert "2 ranks" in taken.done.stdout
    assert "secrets masked in " in taken.done.stdout
    assert "on the nodes, before they were sent (" in taken.done.stdout
    assert stat.S_IMODE(os.stat(taken.path).st_mode) == 0o600


def test_a_file_that_is_there_is_not_even_looked_at(
    taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "-o", taken.path]) == 2
    assert "not overwritten" in capsys.readouterr().err


def test_what_a_diagnosis_was_made_of_is_kept_and_leads_to_the_same_one(
    taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"hangtop open {taken.kept}" in taken.diagnosed.stderr
    assert main(["diagnose", "--json", taken.kept]) == taken.diagnosed.returncode == 10
    again, live = json.loads(capsys.readouterr().out), json.loads(taken.diagnosed.stdout)
    for field in ("state", "verdicts"):
        assert again[field] == live[field]
    assert not any(
        leaks(one, gzip.decompress(Path(taken.kept).read_bytes()).decode()) for one in ALL
    )


@pytest.mark.parametrize("words", [("-o", "{kept}"), ("-o", "{kept}.new", "{path}")])
def test_what_cannot_be_kept_is_refused_at_once(
    taken: Taken, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [word.format(kept=taken.kept, path=taken.path) for word in words]
    assert main(["diagnose", *filled]) == 2
    assert "--output" in capsys.readouterr().err


def test_it_is_judged_again_as_it_was(taken: Taken, capsys: pytest.CaptureFixture[str]) -> None:
    capture = load(taken.path)
    assert capture.cut is None
    assert capture.header.cause == "missing-collective"
    assert main(["diagnose", taken.path, "--json"]) == 10
    out, wrong = capsys.readouterr()
    told = json.loads(out)
    stored = capture.newest.diagnoses[capture.header.job or ""]
    assert told["verdicts"][0]["culprits"][0]["rank"] == 1
    assert (told["state"], told["observed_at"]) == (stored.state, stored.observed_at)
    assert wrong == "", "it says the same as when it was taken"
    assert main(["diagnose", taken.path]) == 10
    assert "Verdict: missing-collective" in capsys.readouterr().out
    assert main(["dump", taken.path]) == 0
    assert "hold (support/secret_job.py" in capsys.readouterr().out
    assert main(["dump", taken.path, "--json", "--all-threads"]) == 0
    assert misfits(json.loads(capsys.readouterr().out)) == []
    assert main(["flight", taken.path, "--json"]) == 13
    flight = json.loads(capsys.readouterr().out)
    assert any(spot["what"] == "flight recorder" for spot in flight["blind_spots"])
    assert main(["logs", taken.path]) == 0
    assert "NO ERROR FOUND" in capsys.readouterr().out
    assert main(["logs", taken.path, "--grep", "plant-0 "]) == 0
    assert capsys.readouterr().out.count("plant-0 ") == 2
