"""The config file: what it may say, what is refused, and that the command line wins."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.arguments.arguments import DEFAULTS, NOT_IN_FILE, in_file
from hangtop.cli.commands.screen import again
from hangtop.cli.config import MAX_FILE
from hangtop.cli.jobs.targets import launchers
from hangtop.cli.main import main
from hangtop_core.attach.ways.command import CommandLauncher
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.attach.ways.ssh import SshLauncher
from hangtop_core.errors import UsageError
from support.arguments import options_of

if TYPE_CHECKING:
    from pathlib import Path


def options(*words: str) -> dict[str, Any]:
    return vars(options_of(*words))


VALUES = {
    "nodes": ('["gpu[1-2]", "login"]', ["gpu[1-2]", "login"]),
    "exclude": ('"gpu2"', ["gpu2"]),
    "via": ('"ssh"', "ssh"),
    "command": ('"kubectl exec -i %h --"', "kubectl exec -i %h --"),
    "user": ('"alice"', "alice"),
    "python": ('"/opt/bin/python3"', "/opt/bin/python3"),
    "init": ('"module load python"', "module load python"),
    "sudo": ("true", True),
    "fanout": ("8", 8),
    "connect_timeout": ("2.5", 2.5),
    "fast_kex": ("true", True),
    "all_users": ("true", True),
    "hang_after": ("60", 60.0),
    "interval": ("2", 2.0),
    "sample_every": ("9.5", 9.5),
    "readonly": ("true", True),
    "ascii": ("true", True),
    "light": ("true", True),
    "mouse": ("true", True),
}


@pytest.mark.parametrize("key", VALUES)
def test_every_option_can_be_set(file: Path, key: str) -> None:
    text, value = VALUES[key]
    file.write_text(f"{key} = {text}\n")
    assert options()[key] == value
    assert options()["from_file"] == {key}


def test_no_option_is_forgotten() -> None:
    assert {*VALUES, "hostfile"} <= set(in_file())
    assert set(DEFAULTS) == {*in_file(), *NOT_IN_FILE}


def test_a_host_file_is_found_from_where_the_file_is(file: Path) -> None:
    file.write_text('hostfile = ["hosts", "/etc/hosts-of-mine"]\n')
    found = [str(path) for path in options()["hostfile"]]
    assert found == [str(file.parent / "hosts"), "/etc/hosts-of-mine"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fanout = 0", "fanout: '0' is not a number from 1 to 9999"),
        ("fanout = 2.5", "fanout: '2.5' is not a number from 1 to 9999"),
        ("fanout = 10000", "fanout: '10000' is not a number from 1 to 9999"),
        ('fanout = "8"', "fanout: '8' is not a number"),
        ("fanout = true", "fanout: True is not a number"),
        ("interval = -1", "interval: -1 is not a number of seconds above 0"),
        ("interval = nan", "interval: nan is not a number of seconds above 0"),
        (
            "interval = 2e6",
            "interval: 2000000.0 is not a number of seconds above 0 and below 1000000",
        ),
        ("sudo = 1", "sudo: 1 is not true or false"),
        ('sudo = "yes"', "sudo: 'yes' is not true or false"),
        ("nodes = 5", "nodes: 5 is not a text"),
        ('nodes = ["n1", 5]', "nodes: 5 is not a text"),
        ('via = "rsh"', "via: 'rsh' is none of auto, ssh"),
        (
            "hang-after = 5",
            "'hang-after' is no option that a file can set\nDid you mean hang_after",
        ),
        ("pid = [4]", "'pid' is no option that a file can set"),
        ("[sites.a]\nnodes = 'n1'", "'sites' is no option that a file can set"),
        ("nodes = ", "Invalid value (at end of document)"),
    ],
)
def test_what_cannot_be_used_names_file_and_key(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file.write_text(text)
    for command in ((), ("dump",), ("diagnose",)):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"hangtop: {file}: "), told
        assert said in told


def test_a_file_that_is_no_text_is_wrong_usage(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b"\xff\xfe")
    assert main(["dump"]) == 2
    assert str(file) in capsys.readouterr().err


def test_the_command_line_wins(file: Path) -> None:
    file.write_text('nodes = "n[1-9]"\nexclude = "n9"\nsudo = true\nfanout = 4\nuser = "alice"\n')
    assert options()["nodes"] == ["n[1-9]"]
    assert options("dump", "-x", "n8")["exclude"] == ["n8"]
    taken = options("dump", "-w", "m1", "--no-sudo", "--fanout", "5")
    assert (taken["nodes"], taken["exclude"]) == (["m1"], [])
    assert (taken["sudo"], taken["fanout"], taken["user"]) == (False, 5, "alice")


def test_another_way_puts_away_that_of_the_file(file: Path) -> None:
    file.write_text('command = "env %h"\n')
    assert options("--via", "ssh")["command"] is None
    file.write_text('via = "ssh"\n')
    assert options("--command", "env %h")["via"] == "auto"


def test_what_the_command_line_took_back_stays_so_in_what_the_app_starts(file: Path) -> None:
    file.write_text(
        'sudo = true\nfast_kex = true\nvia = "srun"\nfanout = 4\npython = "python3.11"\n'
        'user = "alice"\nconnect_timeout = 3\n'
    )
    given = ["--no-sudo", "--via", "auto", "--fanout", "32", "--python", "python3"]
    words = again(options_of(*given), "nettest")
    parsed = options(*words[3:])
    assert (parsed["sudo"], parsed["via"], parsed["fanout"]) == (False, "auto", 32)
    assert (parsed["python"], parsed["user"]) == ("python3", "alice")
    # What was not given is read from the file there, too, and is not said.
    assert (parsed["fast_kex"], parsed["connect_timeout"]) == (True, 3.0)
    assert not [word for word in words if "kex" in word or "timeout" in word]


def test_how_to_reach_nodes_does_not_get_in_the_way_of_this_machine(file: Path) -> None:
    file.write_text('user = "alice"\nsudo = true\ninit = "module load python"\nvia = "ssh"\n')
    (here,) = launchers(options_of("dump"))
    assert isinstance(here, LocalLauncher)


def test_who_logs_in_elsewhere_is_nobody_where_that_cannot_be(file: Path) -> None:
    file.write_text('user = "alice"\nsudo = true\nvia = "ssh"\n')

    def way(*words: str) -> object:
        (one,) = launchers(options_of("dump", *words))
        return type(one)

    assert way("-w", "localhost") is LocalLauncher
    assert way("-w", "localhost", "-l", "bob") is SshLauncher
    assert way("-w", "n1") is SshLauncher
    assert way("-w", "n1", "--command", "env %h") is CommandLauncher


def test_numbers_are_printed_as_the_file_has_them(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "hang_after = 123456.75\ninterval = 0.1234567\nsample_every = 86400\n"
    file.write_text(text)
    assert main(["config"]) == 0
    assert capsys.readouterr().out == f"# {file}\n{text}"


def test_help_says_where_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert str(file) in capsys.readouterr().out


def test_a_file_that_is_larger_than_any_is_not_read_whole(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("#".ljust(MAX_FILE, "-"))
    assert main(["config"]) == 0
    file.write_text("#".ljust(MAX_FILE + 1, "-"))
    assert main(["config"]) == 2
    assert f"{file}: has over 1 MiB" in capsys.readouterr().err


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket"])
def test_what_is_no_file_is_neither_read_nor_waited_for(file: Path, kind: str) -> None:
    make = {
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "device": lambda: file.symlink_to("/dev/zero"),
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(file)),
    }
    make[kind]()
    with pytest.raises(UsageError, match=re.escape(f"{file}: ")):
        options()


def test_no_file_is_meant_by_dev_null(file: Path) -> None:
    file.symlink_to(os.devnull)
    assert options()["interval"] == 1.0
