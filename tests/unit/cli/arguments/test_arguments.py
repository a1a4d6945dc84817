"""The command line: what is understood, what is refused, and with which exit status."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.commands.screen import again
from hangtop.cli.jobs.targets import session_options
from hangtop.cli.main import build_parser, main
from support.arguments import options_of
from support.processes import PATIENCE


@pytest.mark.parametrize(
    "words",
    [("--all-users", "dump"), ("dump", "--all-users")],
    ids=["before", "after"],
)
def test_an_option_counts_before_and_after_the_command(words: tuple[str, ...]) -> None:
    assert options_of(*words).all_users is True
    assert options_of("dump").all_users is False


def test_the_same_words_for_the_same_things_in_every_command() -> None:
    """Options of one name have one metavar, and `--json` says which schema it prints."""
    spelt: dict[str, dict[str, str]] = {}
    subcommands = next(a for a in build_parser()._actions if isinstance(a.choices, dict))
    for name, parser in dict(subcommands.choices or {}).items():
        for action in parser._actions:
            for option in action.option_strings:
                if option == "--json":
                    assert "schema hangtop." in (action.help or ""), name
                if action.nargs != 0:
                    spelt.setdefault(option, {})[name] = str(action.metavar)
    for option in ("--output", "-o", "--rank"):
        spelt.pop(option)  # a folder or a file; one rank or several
    different = {option: found for option, found in spelt.items() if len(set(found.values())) > 1}
    assert not different
    seconds = {o for o, found in spelt.items() if "S" in found.values()}
    assert {"--for", "--observe", "--hang-after", "--limit"} <= seconds
    assert not [o for o, found in spelt.items() if "SECONDS" in found.values()]


def test_the_nodes_of_this_command_line_are_spelt_for_another() -> None:
    given = ["-w", "gpu[1-8]", "-x", "gpu3", "--via", "ssh", "--sudo", "--init", "module load a"]
    words = again(options_of(*given), "nettest")
    assert words[1:4] == ("-m", "hangtop", "nettest")
    parsed = options_of(*words[3:])
    assert (parsed.nodes, parsed.exclude, parsed.via) == (["gpu[1-8]"], ["gpu3"], "ssh")
    assert (parsed.sudo, parsed.init, parsed.connect_timeout) == (True, "module load a", 10.0)
    assert again(options_of(), "nettest")[3:] == ("nettest",)


def test_options_reach_the_session() -> None:
    found = session_options(
        options_of(
            "diagnose", "--pid", "7", "8", "--pid", "9", "--hang-after", "12.5", "--readonly"
        )
    )
    assert found.pids == (7, 8, 9)
    assert found.hang_after == 12.5
    assert found.readonly
    assert not found.all_users


def test_how_often_stacks_are_taken_is_the_users_word() -> None:
    parsed = build_parser().parse_args
    shown = session_options(complete(parsed([]), sample_early=1.0))
    assert (shown.sample_every, shown.sample_early) == (5.0, 1.0)
    asked = session_options(complete(parsed(["--sample-every", "9"]), sample_early=1.0))
    assert (asked.sample_every, asked.sample_early) == (9.0, None)


@pytest.mark.parametrize(
    "words",
    [
        ("--hang-after", "0"),
        ("--interval", "-1"),
        ("--interval", "nan"),
        ("dump", "--pid", "0"),
        ("dump", "--pid", "abc"),
        ("dump", "--each", "--json"),
        ("demo", "--list", "--diagnose"),
        ("nonsense",),
        ("--fanout", "0"),
        ("--via", "rsh"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("hangtop: ")
    assert "--help` shows every option" in said[1]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-w", "gpu[1-"), "--nodes"),
        (("-w", "n1;reboot"), "is no node name"),
        (("-w", "n1", "-x", "n1"), "all of them are excluded"),
        (("-w", "n1", "--python", "a b"), "is no path of a program"),
        (("-w", "n1", "-l", "a;b"), "is no user name"),
        (("-w", "n1", "--via", "local"), "n1 is another machine"),
        (("--sudo",), "--sudo needs nodes"),
        (("--hostfile", "/no/such/file"), "No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("command", [(), ("dump",), ("diagnose",)], ids=" ".join)
def test_targets_that_cannot_be_used_are_wrong_usage(
    command: tuple[str, ...], words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *words]) == 2
    assert said in capsys.readouterr().err


def test_the_app_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "hangtop diagnose" in capsys.readouterr().err


@pytest.mark.parametrize("command", [(), ("dump",), ("diagnose",), ("demo",)], ids=" ".join)
def test_help_has_examples(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["config", "--path"], ["--version"]])
def test_an_output_that_is_full_is_told_in_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hangtop", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    told = "hangtop: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_request_without_answer_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(arguments: object) -> int:
        raise TimeoutError

    monkeypatch.setattr("hangtop.cli.tools.configcmd.run", late)
    assert main(["config"]) == 1
    assert capsys.readouterr().err == "hangtop: no answer in time\n"


@pytest.mark.parametrize("columns", [80, 110])
def test_help_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but commands, which are to be copied."""
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = build_parser()
    texts = [parser.format_help()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts += [one.format_help() for one in action.choices.values()]
    lines = [line for text in texts for line in text.splitlines()]
    assert len(lines) > 500
    long = [line for line in lines if len(line) > columns]
    assert [line for line in long if not line.startswith("  hangtop ")] == []


@pytest.mark.parametrize("command", ["", "diagnose", "capture"])
def test_statuses_stand_in_lines_of_their_own(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns none is torn from its number."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*filter(None, [command]), "--help"])
    lines = capsys.readouterr().out.partition("exit status")[2].splitlines()[1:]
    assert lines
    assert all(one.strip()[0].isdecimal() for one in lines if one.strip()), lines
