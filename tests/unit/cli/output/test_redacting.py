"""Other names for folders and hosts: in what commands print, and in a capture that is there."""

from __future__ import annotations

import gzip
import os
import re
import shlex
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.main import main
from hangtop.cli.output.redacting import Renamer
from hangtop_core.capture import load
from hangtop_core.model.numerics import First, Numerics
from support.record import path_of

if TYPE_CHECKING:
    from pathlib import Path

TRACEBACK = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ada/secret-project/train.py", line 24, in step
[rank1]:     data["labels"]
[rank1]: KeyError: 'labels'
[rank1]: cannot reach {host} at 10.1.0.7 from secret-project/train.py
"""


@pytest.mark.parametrize("how", [(), ("--json",), ("--rank", "1"), ("--around", "11:17:50")])
def test_logs_are_printed_with_other_names(
    how: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "secret-project"
    folder.mkdir()
    first = "2026-11-21 11:17:50,048 INFO start\n"
    text = first + TRACEBACK.format(host=os.uname().nodename)
    (folder / "train.log").write_text(text)
    assert main(["logs", str(folder), *how]) in (0, 10, 11)
    assert "secret-project" in capsys.readouterr().out
    main(["logs", str(folder), *how, "--redact-paths", "--redact-hosts"])
    shown = capsys.readouterr().out
    assert "train.py" in shown
    for name in ("secret-project", "ada", os.uname().nodename, "10.1.0.7"):
        assert name not in shown, name


def test_numbers_and_places_of_calls_stay() -> None:
    first = First(batch=3, module="layer.2", file="/home/ada/secret-project/net.py", line=7)
    found = [Numerics(1, "gpu7", 4001, "/home/ada/secret-project/runs/1.jsonl", firsts=(first,))]
    assert Renamer().several(found, Numerics) == found
    both = Renamer(paths=True, hosts=True)
    both.learn_hosts(["gpu7"])
    (one,) = both.several(found, Numerics)
    assert (one.rank, one.node, one.pid) == (1, "node-1", 4001)
    assert one.first is not None
    assert (one.first.batch, one.first.where, one.first.line) == (3, "layer.2", 7)
    assert one.first.file.endswith("/net.py")
    assert "secret-project" not in repr(one)


def test_a_capture_is_written_anew_with_more_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out, again = path_of("recorder"), tmp_path / "out", tmp_path / "again"
    assert main(["capture", str(given), "-o", str(out), "--redact-paths", "--redact-hosts"]) == 0
    assert main(["capture", str(out), "-o", str(again)]) == 0
    before = load(str(given))
    for path in (out, again):
        text = gzip.decompress(path.read_bytes()).decode()
        assert "/home/ada" not in text
        assert "node1" not in text
        found = load(str(path))
        assert found.header.redacted == ("secrets", "paths", "hosts")
        assert found.header.by == before.header.by
        assert [one.snapshot.at for one in found.pictures] == [
            one.snapshot.at for one in before.pictures
        ]
        assert len(found.commands) == len(before.commands)
        capsys.readouterr()
        assert main(["diagnose", str(path)]) == 10
        told = capsys.readouterr()
        assert "missing-collective" in told.out
        assert "node-1" in told.out
        assert told.err == "", "it concludes the same"


def test_the_command_that_opens_a_capture_can_be_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("deep" * 50) / ("er " * 40)
    folder.mkdir(parents=True)
    path = folder / "it's $hung.hangtop"
    assert main(["capture", str(path_of("skip")), "-o", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    for words, status in (
        (["core", str(path)], 2),
        (["flight", "--tui", str(path)], 2),
    ):
        assert main(words) == status
        assert told.removesuffix(" shows it").strip("`") in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(path)])
    assert told.removesuffix(" shows it") in capsys.readouterr().err
    command = told.partition("`")[2].rpartition("`")[0]
    assert shlex.split(command) == ["hangtop", "open", str(path)]


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose",),
        ("diagnose", "--json"),
        ("dump",),
        ("dump", "--each"),
        ("dump", "--json"),
        ("flight",),
        ("flight", "-j", "--stacks"),
        ("flight", "--json"),
        ("logs",),
        ("logs", "--rank", "0-3"),
    ],
    ids=" ".join,
)
def test_what_is_printed_of_a_job_has_other_names(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for options in ((), ("--redact-paths", "--redact-hosts")):
        status = main([words[0], str(path_of("recorder")), *words[1:], *options])
        told.append((status, capsys.readouterr().out))
    (before, plain), (after, renamed) = told
    assert before == after
    names = r"node1|/home/ada|\btraining/"
    assert re.search(names, plain) or words[0] == "logs" or "-j" in words
    assert len(plain.splitlines()) == len(renamed.splitlines()) or words == ("diagnose",)
    assert not re.search(names, renamed)
    assert renamed.count("all_reduce") == plain.count("all_reduce"), "nothing else is changed"


def test_messages_have_other_names_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "secret-project" / "train.log")
    assert main(["logs", missing]) == 12
    assert "secret-project" in capsys.readouterr().err
    assert main(["logs", missing, "--redact-paths"]) == 12
    told = capsys.readouterr().err
    assert "train.log" in told
    assert "secret-project" not in told


def test_secrets_in_logs_are_masked_without_being_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    secrets = ["hunter22", "hf_ABCDEFGHIJKLMNOPQRSTUVWX", "bm90IGEga2V5IG5vdCBhIGtleQ=="]
    path.write_text(
        "[rank0]: -----BEGIN PRIVATE KEY-----\n"
        f"[rank0]: {secrets[2]}\n"
        "[rank0]: -----END PRIVATE KEY-----\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/x/train.py", line 24, in step\n'
        f'[rank0]:     push("https://bob:{secrets[0]}@host/x")\n'
        f"[rank0]: KeyError: 'token={secrets[1]}'\n"
    )
    for how in ((), ("--json",), ("--rank", "0")):
        main(["logs", str(path), *how])
        shown = capsys.readouterr().out
        assert "KeyError" in shown
        assert [one for one in secrets if one in shown] == [], how


def test_what_cannot_be_read_from_a_capture_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, cut, pipe = str(path_of("skip")), str(tmp_path / "cut"), str(tmp_path / "pipe")
    lines = gzip.decompress(path_of("skip").read_bytes()).splitlines(keepends=True)
    (tmp_path / "cut").write_bytes(gzip.compress(b"".join(lines[:3])))
    os.mkfifo(pipe)
    for words, status, told in (
        (["capture", cut, "-o", str(tmp_path / "out")], 2, "holds too little to be written anew"),
        (["numerics", pipe], 12, "is no regular file"),
        (["numerics", __file__], 12, "is no numerics file of this version"),
        (["numerics", path], 12, "no rank of this capture's job looks for inf and nan"),
        (["core", path], 2, "is a capture, and no core"),
        (["flight", path, path], 2, "a capture, which is looked at by itself"),
        (["logs", path, "x"], 2, "a capture, which is looked at by itself"),
        (["capture", path, "-w", "n1"], 2, "without any node"),
    ):
        assert main(words) == status, words
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main([path])
    assert left.value.code == 2
    assert f"`hangtop open {path}`" in capsys.readouterr().err
