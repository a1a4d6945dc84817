"""What gdb leaves behind in a rank, without gdb."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hangtop_probe import inject
from hangtop_probe.recorderread import Told
from hangtop_probe.recorderways import Facts


def told_to_gdb(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """The arguments that gdb gets."""
    gdb = folder / "gdb"
    gdb.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "${0%/*}/argv"\n')
    gdb.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert inject._gdb(7, "pass")
    return (folder / "argv").read_text().splitlines()


def test_python_is_called_in_one_expression_that_ends_where_a_part_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # gdb goes on with its next command after one that failed, and would call without the GIL.
    [call] = [one for one in told_to_gdb(monkeypatch, tmp_path) if "Py" in one]
    at = [call.index(one) for one in ("exec(", "_Ensure", "_SimpleString", "_Release")]
    assert at == sorted(at)


def test_gdb_runs_no_script_of_whose_the_rank_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = told_to_gdb(monkeypatch, tmp_path)
    assert "-nx" in told
    assert told.index("set auto-load no") < told.index("-p")
    assert told[told.index("set auto-load no") - 1] == "-iex"


@pytest.mark.parametrize(("running", "code"), [(True, "nothing-written"), (False, "not-running")])
def test_a_rank_that_has_written_nothing_keeps_no_folder_of_ours(
    monkeypatch: pytest.MonkeyPatch, running: bool, code: str
) -> None:
    made: list[str] = []
    make = tempfile.mkdtemp

    def noted(prefix: str, dir: str) -> str:  # noqa: A002  # as it is called
        made.append(make(prefix=prefix, dir=dir))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    monkeypatch.setattr(inject, "_gdb", lambda pid, code: True)
    monkeypatch.setattr(inject, "_running", lambda pid: running)
    rank = Facts(os.getpid(), 0, os.geteuid(), {}, frozenset(), loaded=True)
    with pytest.raises(Told) as told:
        inject.dump(rank)
    assert told.value.message["code"] == code
    assert made
    assert not Path(made[0]).exists()
