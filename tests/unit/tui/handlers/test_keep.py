"""Clipboard, pager, palette and the generated documentation of keys."""

from __future__ import annotations

import base64
import inspect
import io
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hangtop.application import HangtopApp
from hangtop.docs import keydoc
from hangtop.keys import palette
from hangtop.keys.keymap import ACTIONS, Keymap
from hangtop.terminal import clipboard, pager


def test_keys_md_is_current() -> None:
    stored = (Path(__file__).parents[4] / "docs" / "keys.md").read_text()
    assert stored == keydoc.document(), "run python -m hangtop.docs.keydoc > docs/keys.md"


def test_every_action_is_documented() -> None:
    text = keydoc.document()
    assert all(action.help.replace("|", "\\|") in text for action in ACTIONS)


def test_copy_goes_by_osc52_and_into_a_private_file(tmp_path: Path) -> None:
    sent: list[str] = []
    told = clipboard.copy("rank 2", sent.append, environ={}, folder=tmp_path / "cache")
    assert sent == ["\x1b]52;c;cmFuayAy\a"]
    file = tmp_path / "cache" / "copied.txt"
    assert file.read_text() == "rank 2\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in told


def test_copy_in_gnu_screen_is_wrapped_in_pieces_that_it_passes_on(tmp_path: Path) -> None:
    sent: list[str] = []
    text = "rank 2 waits\n" * 50
    clipboard.copy(text, sent.append, environ={"STY": "4711.pts-3"}, folder=tmp_path)
    pieces = re.findall(r"\x1bP([^\x1b].*?|\x1b\].*?)\x1b\\", sent[0])
    assert len(pieces) > 3
    assert all(len(piece) < 256 for piece in pieces)
    assert "".join(f"\x1bP{piece}\x1b\\" for piece in pieces) == sent[0]
    encoded = base64.b64encode(text.encode()).decode()
    assert "".join(pieces) == f"\x1b]52;c;{encoded}\a"


def test_long_texts_only_go_into_the_file(tmp_path: Path) -> None:
    sent: list[str] = []
    told = clipboard.copy("x" * 60_000, sent.append, environ={}, folder=tmp_path)
    assert not sent
    assert "too long" in told


def test_copy_in_tmux_uses_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], bytes]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        ran.append((command, options["input"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    told = clipboard.copy("x", lambda text: None, environ={"TMUX": "/tmp/1"}, folder=tmp_path)
    assert ran == [(["tmux", "load-buffer", "-w", "-"], b"x")]
    assert "tmux" in told


def test_a_missing_tmux_and_a_full_disk_are_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    told = clipboard.copy(
        "x", lambda text: None, environ={"TMUX": "/nowhere", "PATH": ""}, folder=blocked / "sub"
    )
    assert "no file" in told


@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("vim", "+41 FILE"),
        ("vim.tiny", "+41 FILE"),
        ("sensible-editor", "+41 FILE"),
        ("emacsclient -t", "-t +41 FILE"),
        ("code --wait", "--wait --goto FILE:41"),
        ("code -g", "-g FILE:41"),
        ("hx", "FILE:41"),
        ("of-my-own", "FILE"),
    ],
)
def test_editor_opens_at_the_line(program: str, given: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    out = tmp_path / "out"
    editor = tmp_path / program.split()[0]
    editor.write_text(f'#!/bin/sh\necho "$@" > {out}\n')
    editor.chmod(0o755)
    assert pager.edit(str(file), 41, {"EDITOR": f"{tmp_path}/{program}"}) is None
    assert out.read_text() == given.replace("FILE", str(file)) + "\n"


@pytest.mark.parametrize("name", ["+!sh", "-cq", "--cmd"])
def test_a_name_of_a_file_is_no_option_of_the_editor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of files in stacks are whatever somebody else's code says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    ran: list[list[str]] = []
    monkeypatch.setattr(pager, "_run", ran.append)
    pager.edit(name, 3, {"EDITOR": "vi"})
    assert ran == [["vi", "+3", str(tmp_path / name)]]


def test_a_file_of_another_node_is_not_opened() -> None:
    assert pager.edit("/no/such/train.py", 1, {"EDITOR": "false"}) == (
        "/no/such/train.py is not on this machine"
    )


def test_a_missing_pager_is_told() -> None:
    assert "No such file" in (pager.page("text", {"PAGER": "/no/such/pager"}) or "")


def test_a_pager_or_editor_that_is_no_command_is_told(tmp_path: Path) -> None:
    assert pager.page("text", {"PAGER": "less '"}) == """$PAGER is "less '": No closing quotation"""
    file = tmp_path / "train.py"
    file.touch()
    assert "$VISUAL is" in (pager.edit(str(file), 1, {"VISUAL": '"', "EDITOR": "true"}) or "")
    assert pager.edit(str(file), 1, {"VISUAL": " ", "EDITOR": "true"}) is None, "as if not set"


def test_nothing_is_left_of_what_was_paged_when_hangtop_and_the_pager_are_killed(
    tmp_path: Path,
) -> None:
    folder, seen = tmp_path / "tmp", tmp_path / "seen"
    folder.mkdir()
    script = f"cat -- $1 >{seen}; kill -9 $PPID $$"
    program = f"""
        from hangtop.terminal import pager
        pager.page("two\\nlines", {{"PAGER": {f"sh -c {shlex.quote(script)} -"!r}}})
    """
    done = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(program)],
        env={**os.environ, "TMPDIR": str(folder)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert seen.read_text() == "two\nlines\n"
    assert not [*folder.iterdir()]


def test_a_full_disk_under_the_pager_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")
    told = pager.page("text", {"PAGER": "true"})
    assert told == "no file for the pager in /no/such/directory: No such file or directory"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3121", "rank", "3121"),
        ("rank 7", "rank", "7"),
        ("node gpu07", "node", "gpu07"),
        ("interval 5", "interval", "5"),
        ("sample all", "action", "sample_all"),
        ("nonsense", "unknown", "nonsense"),
    ],
)
def test_palette_reads(text: str, kind: str, value: str) -> None:
    assert palette.parse(text, Keymap().by_id) == palette.Command(kind, value)  # type: ignore[arg-type]


def test_a_shell_says_what_runs_and_waits_only_when_there_is_none(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager.sys, "__stderr__", sys.stderr)
    assert pager.shell(["sh", "-c", "exit 1"], "your shell on n1") is None, "its last command's"
    assert "your shell on n1, leaving it comes back: sh -c 'exit 1'" in capfd.readouterr().err
    read: list[str] = []
    monkeypatch.setattr(pager.sys, "stdin", io.StringIO("\n"))
    monkeypatch.setattr(pager.sys.stdin, "readline", lambda: read.append("waited"))
    assert pager.shell(["sh", "-c", "exit 255"], "x") == "sh ended with status 255"
    assert pager.shell(["/no/such/ssh"], "x") == "/no/such/ssh: No such file or directory"
    assert read == ["waited", "waited"]


def test_ctrl_c_in_a_program_is_not_for_hangtop(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = signal.getsignal(signal.SIGINT)
    # What the terminal does: both get the signal. The child's own is as it always is.
    script = f"trap 'echo got it >{out}' INT; kill -INT $PPID $$; sleep 0.1"
    assert pager.page("text", {"PAGER": f"sh -c {shlex.quote(script)}"}) is None
    assert out.read_text() == "got it\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_the_fields_of_every_filter_are_told() -> None:
    told = keydoc.FILTERS
    for mode in HangtopApp.MODES.values():
        for field in mode.FIELDS:  # type: ignore[union-attr]
            assert f"`{field}`" in told, (mode, field)


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (
            "clipboard.copy(text, print, environ={}, folder=pathlib.Path(out).parent)",
            "├ \\udce4 1\n",
        ),
        ("assert pager.page(text, {'PAGER': 'cp -t ' + out}) is None", "? ? 1\n"),
    ],
)
def test_a_locale_that_lacks_the_characters_keeps_nobody_from_reading(
    call: str, left: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    program = f"out = {str(out)!r}; text = chr(0x251c) + ' ' + chr(0xdce4) + ' 1'; {call}"
    subprocess.run(
        [
            sys.executable,
            "-X",
            "utf8=0",
            "-c",
            f"import pathlib; from hangtop.terminal import clipboard, pager; {program}",
        ],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        check=True,
        capture_output=True,
    )
    (file,) = (*out.iterdir(), *tmp_path.glob("copied.txt"))
    assert file.read_text(encoding="utf-8") == left
