"""`hangtop demo`: what it hands on to other commands. tests/real/test_demo.py has the jobs."""

from __future__ import annotations

import pytest

from hangtop.cli.demo import as_given
from hangtop.cli.main import build_parser


@pytest.mark.parametrize("command", ["diagnose", "dump"])
def test_every_option_of_the_command_has_its_value(command: str) -> None:
    own = build_parser().parse_args(["demo", "skip", f"--{command}", "--hang-after", "7"])
    told = as_given(command, own)
    assert vars(build_parser().parse_args([command])).keys() <= vars(told).keys()
    assert (told.subcommand, told.hang_after, told.capture) == (command, 7.0, None)
