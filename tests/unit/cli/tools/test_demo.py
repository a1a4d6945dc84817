"""`hangtop demo`: its names, and what it hands on. tests/real/test_demo.py has the jobs."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.main import build_parser, main
from hangtop.cli.tools.demo import as_given
from hangtop.demo import runner
from hangtop.demo.gallery import BY_NAME, GALLERY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", ["diagnose", "dump"])
def test_every_option_of_the_command_has_its_value(command: str) -> None:
    own = build_parser().parse_args(["demo", "skip", f"--{command}", "--hang-after", "7"])
    told = as_given(command, own)
    assert vars(build_parser().parse_args([command])).keys() <= vars(told).keys()
    assert (told.subcommand, told.hang_after, told.capture) == (command, 7.0, None)


def test_an_unknown_scenario_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "nonsense"]) == 2
    assert "no scenario 'nonsense'" in capsys.readouterr().err


def test_demo_list_begins_with_the_promised_four(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names[:4] == ["skip", "dataloader-worker", "stopped", "lock"]
    assert names == [scenario.name for scenario in GALLERY]
    assert len(BY_NAME) == len(GALLERY), "no two have one name"


def test_demo_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hangtop.demo.runner.importlib.util.find_spec", lambda _: None)
    assert main(["demo", "--diagnose"]) == 1
    told = capsys.readouterr().err
    assert "pip install torch numpy" in told
    assert "Traceback" not in told


def test_nothing_is_left_of_a_demo_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(runner, "missing", lambda scenario: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runner.subprocess, "Popen", start)
    with pytest.raises(OSError, match="unavailable"), runner.Demo(BY_NAME["skip"]):
        pass
    assert not list(tmp_path.iterdir())
