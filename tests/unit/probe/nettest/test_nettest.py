"""A node's part of a test of the network, on loopback: ports, names, interfaces."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hangtop_probe.nettest import (
    nettest,
    nettest_links,
    nettest_names,
    nettest_ports,
    nettest_ranks,
)
from hangtop_probe.node import permission
from hangtop_probe.wire.requests import FIRST_CREDIT, Refused
from hangtop_probe.wire.tools import Tools
from support.probe_client import ProbeClient
from support.processes import PATIENCE, wait_until

HERE = "127.0.0.1"
TOKEN = "t" * 48


class Listening:
    """An open port of a probe."""

    def __init__(self, probe: ProbeClient, name: str, port: int = 0, address: str = HERE) -> None:
        self.probe, self.name = probe, name
        params: dict[str, Any] = {"address": address, "ports": [port], "token": TOKEN}
        self.id = probe.send(op="nettest", do="listen", name=name, seconds=30, **params)
        self.opened = probe.receive(self.id)["data"]["opened"][0]

    def stop(self) -> dict[str, Any]:
        self.probe.ask(op="nettest", do="stop", name=self.name)
        end: dict[str, Any] = self.probe.receive(self.id)["end"]
        return end


def call(probe: ProbeClient, port: int, token: str = TOKEN, **more: Any) -> str:
    params = {"targets": [[1, HERE, port]], "token": token, "limit": 0.5, **more}
    (piece,) = probe.pieces(op="nettest", do="connect", **params)
    how: str = piece["calls"][0]["how"]
    return how


def test_a_port_answers_who_knows_the_token_and_closes(probe: ProbeClient) -> None:
    listening = Listening(probe, "a")
    port = listening.opened["port"]
    assert call(probe, port) == "ok"
    assert call(probe, port, source=HERE) == "ok"
    # Whoever does not know the token is cut off, and learns nothing.
    assert call(probe, port, token="u" * 48) == "stranger"
    with socket.create_connection((HERE, port)) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: all\r\n\r\n".ljust(48))
        caller.settimeout(PATIENCE)
        assert not received(caller)
    assert listening.stop() == {"strangers": 2}
    assert call(probe, port) == "refused"


def received(caller: socket.socket) -> bytes:
    try:
        return caller.recv(100)
    except ConnectionResetError:
        return b""


def test_a_port_that_is_taken_has_an_owner(probe: ProbeClient) -> None:
    with socket.create_server((HERE, 0)) as holder:
        listening = Listening(probe, "b", holder.getsockname()[1])
        assert listening.opened["why"] == "Address already in use"
        assert "pid " in listening.opened["owner"]
        listening.stop()


def test_the_command_line_of_an_owner_is_masked(probe: ProbeClient, tmp_path: Path) -> None:
    code = "import socket, sys\ndoor = socket.create_server(('127.0.0.1', 0))\n"
    code += "print(door.getsockname()[1], flush=True)\nsys.stdin.read()\n"
    (tmp_path / "hold.py").write_text(code)
    words = ["python", "hold.py", "--password", "hunter22"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, executable=sys.executable, cwd=tmp_path, stdin=pipe, stdout=pipe
    ) as owner:
        assert owner.stdout is not None
        listening = Listening(probe, "b", int(owner.stdout.readline()))
        owner.communicate()
    owned = f"python hold.py --password *** (pid {owner.pid})"
    assert listening.opened["owner"] == owned
    listening.stop()


def test_somebody_else_who_answers_is_no_success(probe: ProbeClient) -> None:
    with socket.create_server((HERE, 0)) as other:
        threading.Thread(target=greet, args=(other,), daemon=True).start()
        assert call(probe, other.getsockname()[1]) == "stranger"


def greet(server: socket.socket) -> None:
    caller, _ = server.accept()
    with caller:
        caller.sendall(b"SSH-2.0-OpenSSH_9.2 and something to make it longer".ljust(64))
        caller.recv(1)


def test_who_says_nothing_times_out(probe: ProbeClient) -> None:
    with socket.create_server((HERE, 0)) as silent:
        assert call(probe, silent.getsockname()[1]) == "timed-out"


def test_a_node_that_takes_all_and_does_not_answer_is_late() -> None:
    with socket.create_server((HERE, 0)) as server:
        done = threading.Event()

        def answer() -> None:
            caller, _ = server.accept()
            with caller:
                said = nettest_ports._receive(caller, nettest_ports.NONCE + nettest_ports.MAC)
                nonce = said[: nettest_ports.NONCE]
                caller.sendall(nettest_ports.mac(TOKEN.encode(), b"called", nonce))
                done.wait(10)

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        assert nettest_ports.call(HERE, port, TOKEN.encode(), None, 0.3) == "late"
        done.set()


@pytest.mark.parametrize(
    ("acknowledged", "how"), [(49, "stalled"), (20_000, "lossy"), (65_585, "late")]
)
def test_why_a_load_gets_no_answer(acknowledged: int, how: str) -> None:
    class Asked(socket.socket):
        def getsockopt(self, *_: int) -> bytes:  # type: ignore[override]
            return struct.pack("=120xQ", acknowledged)

    with Asked() as one:
        assert nettest_ports._held_up(one) == how


def test_a_port_closes_with_the_connection() -> None:
    with ProbeClient() as client:
        client.hello()
        port = Listening(client, "c").opened["port"]
        socket.create_connection((HERE, port)).close()
        client.process.kill()
        assert wait_until(lambda: refuses(port))


def refuses(port: int) -> bool:
    try:
        socket.create_connection((HERE, port), 1).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"do": "listen", "address": HERE, "ports": [0], "token": "short", "name": "x"}, "error"),
        ({"do": "listen", "address": HERE, "ports": [0], "token": TOKEN}, "error"),
        ({"do": "job", "name": "nobody", "job": {}}, "gone"),
        ({"do": "dance"}, "unsupported"),
    ],
)
def test_what_cannot_be_done_is_refused(
    probe: ProbeClient, params: dict[str, Any], kind: str
) -> None:
    assert probe.ask(op="nettest", **params)[-1]["err"]["kind"] == kind


@pytest.mark.skipif(shutil.which("ip") is None, reason="there is no ip to compare with")
def test_interfaces_are_those_of_ip() -> None:
    links = {link["name"]: link for link in nettest_links.read()}
    lo = links["lo"]
    assert (lo["kind"], lo["up"]) == ("loopback", True)
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    theirs = {(words[1], words[3]) for words in map(str.split, shown.splitlines())}
    ours = {
        (name, f"{one['address']}/{one['length']}")
        for name, link in links.items()
        for one in link["addresses"]
    }
    assert ours == theirs
    assert nettest_links.ephemeral_ports()[0] < nettest_links.ephemeral_ports()[1]


def test_names_routes_and_what_has_none(probe: ProbeClient) -> None:
    names = ["localhost", "nowhere.invalid"]
    pieces = probe.pieces(op="nettest", do="names", names=names, addresses=[HERE])
    told: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        for key, value in piece.items():
            told.setdefault(key, {}).update(value)
    assert HERE in told["names"]["localhost"]
    assert isinstance(told["names"]["nowhere.invalid"], str)
    assert told["sources"] == {HERE: HERE}
    assert told["reverse"][HERE] == nettest_names.reverse(HERE)


def test_a_python_without_torch_is_told_as_such(probe: ProbeClient) -> None:
    (look,) = probe.pieces(op="nettest", do="look", python="/nowhere/python")
    assert look["pythons"] == [{"path": "/nowhere/python", "why": "there is no such program"}]
    (look,) = probe.pieces(op="nettest", do="look", python=sys.executable)
    assert look["pythons"][0]["version"] == sys.version.split()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the ranks of others")
@pytest.mark.parametrize("user", [0, 65534])
def test_nothing_is_started_that_the_rank_of_another_user_names(
    user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nettest, "MAX_PYTHONS", 1000)
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": HERE, "MASTER_PORT": "29500"}
    # GIVEN a rank that says it was started as some program; what we start ourselves is no rank
    named = f"/tmp/named-by-{user}"
    program = "import os, sys, time; os.setuid(int(sys.argv[1])); print(flush=True); time.sleep(99)"
    inner = [os.path.realpath(sys.executable), "-c", program, str(user)]
    argv = ["bash", "-c", '(exec -a "$0" "$@") & wait', named, *inner]
    env = {**told, "PYTHONHOME": sys.base_prefix}
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, start_new_session=True
    ) as launcher:
        try:
            assert launcher.stdout is not None
            assert launcher.stdout.readline()
            found = nettest.pythons(None, permission.rights())
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
    assert (named in found) is (user == 0)


def test_how_a_process_ended_is_told_where_its_pipes_end_first(
    probe: ProbeClient, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no room >&2\nexec >&- 2>&-\nsleep 0.3\nexit 7\n")
    script.chmod(0o755)
    said = probe.ask(op="nettest", do="start", name="rank 0", python=str(script))
    assert said[-1]["end"] == {"code": 7, "lines": ["no room"]}


@pytest.mark.parametrize("said", [b"", b"12", b"12\nimport"])
def test_a_process_whose_input_ends_early_goes(said: bytes) -> None:
    command = [sys.executable, "-c", nettest_ranks.BOOT]
    done = subprocess.run(command, input=said, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_process_that_takes_no_program_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec <&-\nexec sleep 600\n")
    script.chmod(0o755)
    # More than a pipe holds: it is surely still being written when nobody reads any more.
    monkeypatch.setattr(nettest_ranks, "program", lambda: bytes(1 << 20))
    tools = Tools()
    with pytest.raises(Refused, match="has ended"):
        nettest_ranks.Worker(tools, str(script))
    assert not tools.pids()


def test_a_process_waits_while_the_head_takes_nothing(probe: ProbeClient, tmp_path: Path) -> None:
    script, pid = tmp_path / "python", tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ >{pid}\nexec yes '{{\"done\": true}}'\n")
    script.chmod(0o755)
    # GIVEN something that never stops talking, and a head that gives no more credit
    ident = probe.send(op="nettest", do="start", name="rank 0", python=str(script))
    for _ in range(FIRST_CREDIT):
        assert probe.receive(ident)["data"] == {"say": {"done": True}}
    # THEN it comes to a stop, once its pipe is full
    process = Path(f"/proc/{pid.read_text().strip()}")
    written = [0]

    def stands() -> bool:
        told = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
        written.append(int(told["wchar"]))
        return written[-1] == written[-2]

    assert wait_until(stands)
    assert written[-1] < 1 << 20
    probe.send(op="cancel", id=ident)
    assert wait_until(lambda: not process.exists())
