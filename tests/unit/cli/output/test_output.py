"""Colour and exit status of the headless commands."""

from __future__ import annotations

import sys

import pytest

from hangtop.cli.jobs.observe import exit_status
from hangtop.cli.output import output
from hangtop_core.diagnosis import Diagnosis
from support.verdicts import diagnosis

TEXT = """HUNG for 31 s: 4 of 4 ranks seen on vm

Verdict: lock-wait   confidence 0.90 (high)
  rank 1 waits
  Evidence
    stacks      rank 1: in a lock
"""


class Terminal:
    """A stdout that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_no_colour_into_a_pipe() -> None:
    assert output.coloured(TEXT) == TEXT


def test_colour_on_a_terminal_changes_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = output.coloured(TEXT)
    assert shown.startswith("\x1b[1;31mHUNG for 31 s\x1b[0m: 4 of 4 ranks")
    assert "\x1b[1m  Evidence\x1b[0m\n" in shown
    plain = shown.replace("\x1b[0m", "").replace("\x1b[1;31m", "").replace("\x1b[1m", "")
    assert plain == TEXT


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    assert output.coloured(TEXT) == TEXT


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (diagnosis("hung", verdicts=1), 10),
        (diagnosis("hung"), 11),
        (diagnosis("progressing"), 0),
        (diagnosis("starting"), 0),
        (diagnosis("unknown", verdicts=1), 13),
    ],
    ids=lambda value: value.state if isinstance(value, Diagnosis) else str(value),
)
def test_exit_status(found: Diagnosis, status: int) -> None:
    assert exit_status(found) == status
