"""Standard streams that are closed, full or not for writing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.output.streams import check_stdout

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = [">&-", "2>&-", "<&-", "<&- >&- 2>&-"]


def hangtop(words: str, streams: str) -> subprocess.CompletedProcess[str]:
    line = f'exec "$0" -m hangtop {words} {streams}'
    command = ["sh", "-c", line, sys.executable]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("streams", CLOSED)
@pytest.mark.parametrize("words", ["demo --list", "flight ."])
def test_a_closed_stream_is_as_if_it_led_nowhere(
    words: str, streams: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual, closed = hangtop(words, ""), hangtop(words, streams)
    assert closed.returncode == usual.returncode
    assert closed.stdout == ("" if ">&-" in streams.split() else usual.stdout)
    assert closed.stderr == ("" if "2>&-" in streams else usual.stderr)


def test_what_is_started_has_open_streams_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first file would else be its standard output."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = hangtop("run --no-logs -- sh -c 'ls -l /proc/$$/fd >&2'", "<&- >&-")
    assert done.stderr.count("/dev/null") == 2, done.stderr


@pytest.mark.parametrize(
    ("words", "streams"),
    [("diagnose --observe 60", ">/dev/full"), ("watch", ">/dev/full"), ("dump", "1</dev/null")],
)
def test_output_that_cannot_be_written_is_told_before_anything_is_observed(
    words: str, streams: str
) -> None:
    began = time.monotonic()
    done = hangtop(f"{words} -w 192.0.2.1 --connect-timeout 90", streams)
    assert done.returncode == 1
    assert done.stderr.startswith("hangtop: the output cannot be written: ")
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - began < 30


def test_a_character_that_the_locale_lacks_costs_no_result() -> None:
    code = "from hangtop.cli.output.streams import *; open_standard_streams(); "
    code += "print('a\\u2026\\udcff')"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "a??\n"


def test_a_full_disk_below_stderr_costs_no_result() -> None:
    assert hangtop("diagnose none-such", "2>/dev/full").returncode == 2


def test_a_file_on_a_disk_with_room_will_do(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        code = "from hangtop.cli.output.streams import check_stdout; check_stdout()"
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    check_stdout()
