"""`hangtop config`, `hangtop completion`, `hangtop --version --verbose` and the man page."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hangtop.cli import config
from hangtop.cli.arguments.arguments import in_file
from hangtop.cli.main import build_parser, main
from hangtop.cli.tools import version
from hangtop.docs import mandoc
from hangtop.keys.keymap import ACTIONS
from hangtop_core.errors import UsageError
from support.processes import PATIENCE

ROOT = Path(__file__).parents[4]
ENVIRON = re.compile(r"\benviron\b")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+[A-Z0-9]")
NOT_OWN = {"analysis", "demo", "nettest", "prepare.py"}
"""What deals with variables of jobs."""


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_file_with_everything_sets_nothing_until_it_is_changed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "config", "--default")
    assert "SUPPRESS" not in text, "a flag is told by its own words, not by those of its --no-..."
    assert tomllib.loads(text) == {"keys": {}}
    file.write_text(text)
    assert said(capsys, "config") == f"# {file}: sets nothing\n"


def test_the_file_with_everything_is_right_in_every_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "config", "--default")
    # Of nodes, hostfile and job the file may hold all: only the command line chooses.
    file.write_text(re.sub(r"(?m)^#(?=\w+ = )", "", text))
    assert set(config.read(file, in_file())) == set(in_file())
    assert config.keymap(file).actions == ACTIONS
    told = said(capsys, "config")
    assert 'nodes = ["gpu[01-16]"]' in told
    assert "[keys]" not in told, "keys as they are without the file are not told"


def test_keys_of_ones_own_are_told_as_they_are_written(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('[keys]\nquit = ["Ctrl-q", "q"]\nmouse = []\n')
    told = said(capsys, "config")
    assert 'quit = ["Ctrl-q", "q"]' in told
    assert "mouse = []" in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('keys = "q"', "keys: 'q' is not a table"),
        ('[keys]\nfly = "f"', "keys: 'fly' is no action"),
        ('[keys]\nquit = "Hyper-q"', "keys: 'Hyper-q' is no key"),
        ("[keys]\nquit = 3", "keys: 3 is not a text"),
    ],
)
def test_a_table_of_keys_that_makes_no_sense_is_refused(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(says)) as error:
        config.keymap(file)
    assert str(file) in str(error.value)
    assert main(["config"]) == 2


def test_where_the_file_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "config", "--path") == f"{file}\n"
    assert "there is none" in said(capsys, "config")


def test_a_report_about_a_bug_has_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version").startswith("hangtop ")
    told = said(capsys, "--version", "--verbose")
    for name in ("python", "textual", "py-spy", "system", "config file", "strace"):
        assert re.search(rf"(?m)^  {name} +\S", told), name


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("head -c 65537 /dev/zero", "prints over 64 KiB"),
        ("sleep 1000", "does not end within 0.5 s"),
        ("exit 3", "fails with status 3"),
        ("echo 5.1 >&2", "5.1"),
    ],
)
def test_a_program_that_does_not_tell_its_version_is_told_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    says: str,
    told: str,
) -> None:
    (tmp_path / "strace").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "strace").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(version, "PROGRAMS", {"strace": ("-V",)})
    if "sleep" in says:
        monkeypatch.setattr(version, "LIMIT_S", 0.5)
    assert f"strace        {told} {tmp_path}/strace" in said(capsys, "--version", "--verbose")


def complete_in_bash(script: str, words: list[str]) -> list[str]:
    """What bash offers for the last word."""
    fill = f"""
{script}
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
[ -z "${{COMP_WORDS[COMP_CWORD]}}" ] && COMP_WORDS[COMP_CWORD]=''
$(complete -p hangtop | sed 's/.*-F \\([^ ]*\\).*/\\1/') hangtop '{words[-1].strip("'")}' ''
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", fill],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    script = said(capsys, "completion", "bash")
    assert "diagnose" in complete_in_bash(script, ["hangtop", "dia"])
    assert complete_in_bash(script, ["hangtop", "dump", "--nat"]) == ["--native"]
    assert "srun" in complete_in_bash(script, ["hangtop", "dump", "--via", "s"])
    assert complete_in_bash(script, ["hangtop", "demo", "loc"]) == ["lock"]


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_the_other_shells_take_their_scripts(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = tmp_path / "_hangtop"
    script.write_text(said(capsys, "completion", shell))
    checks = {"zsh": ["-fn"], "fish": ["--no-config", "-n"], "tcsh": ["-f", "-n"]}
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, *checks[shell], str(script)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environ,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish")
    script = tmp_path / "hangtop.fish"
    script.write_text(said(capsys, "completion", "fish"))
    ask = f"source {script}; complete -C 'hangtop dump --nat'; complete -C 'hangtop numer'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", ask],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    option, command = done.stdout.splitlines()
    assert option.startswith("--native"), done.stderr
    assert command.startswith("numerics\t")
    assert len(command) < 100


def variables_read(path: Path) -> set[str]:
    """Names of variables that functions of a module with an environment in them have."""
    found: set[str] = set()
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(function, ast.FunctionDef) and ENVIRON.search(ast.unparse(function)):
            texts = (one.value for one in ast.walk(function) if isinstance(one, ast.Constant))
            found |= {one for one in texts if isinstance(one, str) and VARIABLE.fullmatch(one)}
    return found


def test_the_man_page_tells_of_every_variable_that_is_read() -> None:
    told = {name for names in mandoc.ENVIRONMENT for name in names.split(", ")}
    modules = [*(ROOT / "tui/hangtop").rglob("*.py"), *(ROOT / "core/hangtop_core").rglob("*.py")]
    read = {
        name
        for path in modules
        if not NOT_OWN.intersection(path.parts)
        for name in variables_read(path)
    }
    assert {"NO_COLOR", "SLURM_JOB_ID"} <= read
    assert read - told <= {"HOME"}


def test_the_man_page_is_current_and_groff_takes_it() -> None:
    page = ROOT / "docs" / "hangtop.1"
    assert page.read_text() == mandoc.document(), "python -m hangtop.docs.mandoc > docs/hangtop.1"
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("there is no groff")
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-b", str(page)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    plain = re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)
    for name in ("hangtop diagnose", "--hang-after", "EXIT STATUS"):
        assert name in plain


def test_neither_help_nor_completion_loads_the_screens() -> None:
    code = (
        "import sys\nfrom hangtop.cli.main import build_parser, main\n"
        "build_parser().format_help()\n"
        "main(['completion', 'bash'])\nassert 'textual' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=PATIENCE)
    assert build_parser().prog == "hangtop"
