"""The way to a node without logging in: what ssh would use, and whether its port answers."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.ways.reach import explore, way
from hangtop_core.attach.ways.ssh import Jumps, port_of, settings
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh on this machine")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of the user's, by an `ssh` that is found first."""
    file = tmp_path / "config"
    file.touch()
    wrapper = tmp_path / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {file} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return file


def test_the_port_and_name_are_those_of_the_configuration(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config.write_text(f"Host gpu1\n  HostName 127.0.0.1\n  Port {port}\n")
        found = way("gpu1", None, 5.0)
    assert (found.host, found.port, found.addresses) == ("127.0.0.1", port, ("127.0.0.1",))
    assert found.took is not None
    closed = way("gpu1", None, 5.0)
    assert (closed.took, closed.refused) == (None, "Connection refused")


def test_an_overloaded_port_is_given_up(config: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {port}\n")
        with socket.create_connection(("127.0.0.1", port)):  # its queue is full now
            assert way("n1", None, 0.3).refused == "no answer in 0.3 s"


@pytest.mark.parametrize("option", ["ProxyJump gate", "ProxyCommand nc %h %p"])
def test_behind_a_jump_host_nothing_is_tried(config: Path, option: str) -> None:
    config.write_text(f"Host n1\n  {option}\n")
    found = way("n1", None, 1.0)
    assert found.through == option.partition(" ")[2]
    assert (found.addresses, found.took) == ((), None)


def test_names_without_an_address_say_so() -> None:
    nodes = ["nowhere.invalid", "x" * 70 + ".invalid"]
    found = {node: future.result(PATIENCE) for node, future in explore(nodes, None, 1.0).items()}
    assert [node for node in nodes if found[node].unresolved] == nodes, found


@pytest.mark.parametrize("port", ["x", "99999", "\u00b2", "9" * 5000, ""])
def test_a_port_that_makes_no_sense_is_the_usual_one(port: str) -> None:
    assert port_of({"port": port}) == 22


def test_an_ssh_that_says_more_than_any_is_not_believed(tmp_path: Path) -> None:
    says = "echo port 2222; echo proxyjump gate; head -c 1048576 /dev/zero"
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{says}\n")
    assert (settings("n1", None), Jumps(None).of("n1")) == ({}, None)
    found = way("127.0.0.1", None, 1.0)
    assert (found.host, found.port, found.through) == ("127.0.0.1", 22, None)
