"""Which way leads to a node, by what is asked for and what is on this machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.jobs.targets import launchers
from hangtop_core.attach.ways import ways as by
from hangtop_core.attach.ways.command import CommandLauncher
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.attach.ways.pdsh import PdshLauncher
from hangtop_core.attach.ways.ssh import SshLauncher
from hangtop_core.errors import UsageError
from support.arguments import options_of

if TYPE_CHECKING:
    from hangtop_core.attach.connect.launcher import Launcher

HERE = socket.gethostname()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The programs that are on this machine."""
    there = {"ssh", "pdsh", "env"}
    monkeypatch.setattr(by.shutil, "which", lambda name: name if name in there else None)
    return there


def ways(*words: str) -> list[type[Launcher]]:
    return [type(one) for one in launchers(options_of("dump", *words))]


def test_auto_is_this_machine_then_ssh_then_pdsh(programs: set[str]) -> None:
    nodes = f"n1.invalid,{HERE}"
    assert sorted(map(str, ways("-w", nodes))) == sorted(map(str, [SshLauncher, LocalLauncher]))
    programs.remove("ssh")
    assert sorted(map(str, ways("-w", nodes))) == sorted(map(str, [PdshLauncher, LocalLauncher]))
    programs.remove("pdsh")
    with pytest.raises(UsageError, match="there is no ssh and no pdsh on this machine") as caught:
        ways("-w", nodes)
    assert "--command" in caught.value.help
    assert ways("-w", HERE) == [LocalLauncher], "nothing is needed for this machine"
    assert ways("-w", "n1", "--command", "env NODE=%h") == [CommandLauncher]


def test_what_is_asked_for_and_is_not_there_is_said(programs: set[str]) -> None:
    programs.remove("pdsh")
    with pytest.raises(UsageError, match="there is no pdsh on this machine"):
        ways("-w", "n1", "--via", "pdsh")


def test_a_way_that_is_asked_for_is_taken_to_this_machine_too(programs: set[str]) -> None:
    assert ways("-w", HERE, "--via", "ssh") == [SshLauncher]
    assert ways("-w", HERE, "--via", "pdsh") == [PdshLauncher]
    assert ways("-w", HERE, "--command", "env %h") == [CommandLauncher]


def test_pdsh_says_its_limits(programs: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ways("-w", "n[1-3]", "--via", "pdsh") == [PdshLauncher] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "py-spy is not sent along" in line
    assert "nothing is traced" in line


def test_all_nodes_share_one_pdsh_that_watches_as_asked(programs: set[str]) -> None:
    words = ["-w", "n[1-3]", "--via", "pdsh", "--pid", "7", "--interval", "9", "--all-users"]
    found = launchers(options_of("dump", *words))
    channels = {id(one.channel) for one in found}
    assert len(channels) == 1
    asked = found[0].channel._asked[0]  # type: ignore[union-attr]
    assert (asked["op"], asked["id"], asked["interval"]) == ("watch", 1, 9.0)
    assert (asked["pids"], asked["all_users"]) == ([7], True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-w", "n1", "--via", "command"), "needs the command"),
        (("-w", "n[1-2]", "--command", "env x"), "no %h in it, so 2 nodes would be one"),
        (("-w", "n1", "-l", "me", "--command", "env %h"), "say it in the command"),
        (("-w", "fe80::1", "--via", "pdsh"), "is no name for pdsh"),
    ],
)
def test_what_does_not_go_together(programs: set[str], words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ways(*words)
