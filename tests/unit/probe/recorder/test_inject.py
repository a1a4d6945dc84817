"""What gdb leaves behind in a rank, without gdb."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hangtop_probe.recorder import inject
from hangtop_probe.recorder.recorderread import Told
from hangtop_probe.recorder.recorderways import Facts
from support.processes import PATIENCE, wait_until


def gdb_that(folder: Path, does: str) -> str:
    """A gdb that does what a shell is told."""
    gdb = folder / "gdb"
    gdb.write_text(f"#!/bin/sh\n{does}\n")
    gdb.chmod(0o700)
    return str(gdb)


def told_to_gdb(folder: Path) -> list[str]:
    """The arguments that gdb gets."""
    gdb = gdb_that(folder, 'printf "%s\\n" "$@" > "${0%/*}/argv"')
    assert inject._gdb(gdb, 7, "pass") == ""
    return (folder / "argv").read_text().splitlines()


def test_python_is_called_in_one_expression_that_ends_where_a_part_fails(tmp_path: Path) -> None:
    # gdb goes on with its next command after one that failed, and would call without the GIL.
    [call] = [one for one in told_to_gdb(tmp_path) if "Py" in one]
    at = [call.index(one) for one in ("exec(", "_Ensure", "_SimpleString", "_Release")]
    assert at == sorted(at)


def test_gdb_runs_no_script_of_whose_the_rank_is(tmp_path: Path) -> None:
    told = told_to_gdb(tmp_path)
    assert "-nx" in told
    assert told.index("set auto-load no") < told.index("-p")
    assert told[told.index("set auto-load no") - 1] == "-iex"


def rank_of(pid: int) -> Facts:
    return Facts(pid, 0, os.stat(f"/proc/{pid}").st_uid, {}, frozenset(), loaded=True)


def written(code: str) -> Path:
    """The file that a rank is told to write."""
    [path] = re.findall(r"os.open\('(/tmp/[^']+)'", code)
    return Path(path)


@pytest.mark.parametrize(("running", "code"), [(True, "nothing-written"), (False, "not-running")])
def test_a_rank_that_has_written_nothing_of_use_keeps_no_file_of_ours(
    monkeypatch: pytest.MonkeyPatch, running: bool, code: str
) -> None:
    made: list[Path] = []

    def gdb(path: str, pid: int, code: str) -> str:
        made.append(written(code))
        assert made[0].parent == Path("/tmp")
        assert not os.path.lexists(made[0]), "the rank makes it, with its own rights"
        if not running:
            made[0].touch()
        return ""

    monkeypatch.setattr(inject, "_gdb", gdb)
    monkeypatch.setattr(inject, "_running", lambda pid: running)
    with pytest.raises(Told) as told:
        inject.dump(rank_of(os.getpid()), "gdb")
    assert told.value.message["code"] == code
    assert made
    assert not made[0].exists()


def test_what_a_rank_wrote_is_found_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inject, "_gdb", lambda *said: str(written(said[-1]).write_text("x")))
    path = inject.dump(rank_of(os.getpid()), "gdb")
    assert Path(path).read_text() == "x"
    inject.forget(path)
    assert not Path(path).exists()
    inject.forget(path)


def test_a_gdb_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "full")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(Told) as told:
        inject.dump(rank_of(os.getpid()), "gdb")
    assert told.value.message["code"] == "not-started"
    assert told.value.message["args"] == {"why": os.strerror(errno.EAGAIN)}


def test_what_gdb_says_is_told_where_torch_wrote_nothing(tmp_path: Path) -> None:
    says = """echo "warning: by the way" >&2; printf "7\\tselect.c: No such file\\n" >&2"""
    for error, code, said in (
        (f"""{says}; echo "Could\tnot \033[1mread" >&2; {says}""", "gdb-said", "Could not [1mread"),
        (says, "nothing-written", None),
    ):
        with pytest.raises(Told) as told:
            inject.dump(rank_of(os.getpid()), gdb_that(tmp_path, error))
        assert told.value.message["code"] == code
        assert told.value.message["args"].get("said") == said


def test_a_gdb_that_says_more_than_anybody_reads_comes_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inject, "SECONDS", PATIENCE)
    gdb = gdb_that(tmp_path, "echo first >&2; yes | head -c 300000 >&2; touch ${0%/*}/ended")
    assert inject._gdb(gdb, 7, "pass")
    assert (tmp_path / "ended").exists()


def test_a_gdb_that_says_something_once_the_probe_is_gone_comes_to_its_end(tmp_path: Path) -> None:
    gdb = gdb_that(
        tmp_path,
        """cd ${0%/*}; touch begun; until [ -e go ]; do sleep 0.05; done
        echo word >&2 && touch ended""",
    )
    code = f"from hangtop_probe.recorder import inject; inject._gdb({gdb!r}, 7, 'pass')"
    with subprocess.Popen([sys.executable, "-c", code]) as probe:
        assert wait_until((tmp_path / "begun").exists)
        probe.kill()
    (tmp_path / "go").touch()
    assert wait_until((tmp_path / "ended").exists)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_link_in_place_of_the_ranks_tmp_leads_to_nothing_made_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "tmp").symlink_to(elsewhere)
    made: list[Path] = []

    def gdb(path: str, pid: int, code: str) -> str:
        made.extend(elsewhere.iterdir())
        return ""

    monkeypatch.setattr(inject, "_gdb", gdb)
    rank = "import os; os.chroot('.'); os.setuid(65534); print('ready', flush=True); os.read(0, 1)"
    with subprocess.Popen(
        [sys.executable, "-c", rank], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(Told) as told:
            inject.dump(rank_of(process.pid), "gdb")
        process.kill()
    assert told.value.message["code"] == "nothing-written"
    assert not made
