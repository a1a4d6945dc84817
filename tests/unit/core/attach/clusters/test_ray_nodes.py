"""The nodes of a Ray cluster, as Ray 2.60 prints them, and what is said where there are none."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.jobs.targets import launchers
from hangtop.cli.main import main
from hangtop_core.attach.clusters import ray_nodes
from hangtop_core.attach.clusters.ray_nodes import ask
from hangtop_core.errors import UsageError
from support.arguments import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ID = "265b8bab962326885e45960209881259f8324bea8a142cab11105401"


def node(address: str, state: str = "ALIVE", **more: Any) -> dict[str, Any]:
    """One node of `ray list nodes --format json`, as a cluster of two printed it."""
    return {
        "node_id": ID, "node_ip": address, "is_head_node": False, "state": state,
        "state_message": None, "node_name": address,
        "resources_total": {"memory": "20.083 GiB", "GPU": 2.0, f"node:{address}": 1.0},
        "labels": {"ray.io/node-id": ID}, "start_time_ms": None, "end_time_ms": None,
    } | more  # fmt: skip


TWO = [node("10.9.0.2"), node("10.9.0.1", is_head_node=True)]


@pytest.fixture(autouse=True)
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A double of the command `ray`: prints `nodes`, or fails with what is in `failure`."""
    program = tmp_path / "ray"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >>{tmp_path}/asked\n'
        f"[ -e {tmp_path}/failure ] && {{ cat {tmp_path}/failure >&2; exit 1; }}\n"
        f"cat {tmp_path}/nodes\n"
    )
    program.chmod(0o755)
    (tmp_path / "ssh").symlink_to("/bin/true")
    (tmp_path / "nodes").write_text(json.dumps(TWO))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def ways(*words: str) -> list[tuple[str, str]]:
    return [(one.node, one.via) for one in launchers(options_of("dump", *words))]


def test_its_nodes_are_reached_by_ssh(ray: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ways("--ray") == [("10.9.0.1", "ssh"), ("10.9.0.2", "ssh")]
    assert capsys.readouterr().err == "hangtop: looking at the 2 nodes of Ray\n"
    assert (ray / "asked").read_text() == "list nodes --format=json --limit=10000\n"
    assert ways("--ray", "head:6379", "-x", "10.9.0.2", "-l", "bob") == [("10.9.0.1", "ssh")]
    assert "--address=head:6379" in (ray / "asked").read_text()
    assert ways("--ray", "-w", "10.9.0.2", "--command", "env %h") == [("10.9.0.2", "command")]
    with pytest.raises(UsageError, match=r"10\.9\.0\.7 is not of this cluster"):
        ways("--ray", "-w", "10.9.0.7")


def test_a_node_that_died_is_told_unless_it_came_back(ray: Path) -> None:
    nodes = [*TWO, node("10.9.0.3", "DEAD"), node("10.9.0.1", "DEAD"), node("\x1b[2J", "DEAD")]
    (ray / "nodes").write_text("some log line\n" + json.dumps(nodes))
    found = ask("auto")
    assert found.names == ("10.9.0.2", "10.9.0.1")
    assert found.notice.startswith("looking at the 2 nodes of Ray; dead: ")
    assert "10.9.0.3" in found.notice
    assert "10.9.0.1" not in found.notice
    assert found.notice.isprintable()


@pytest.mark.parametrize(
    "address", ["dump", "-x:1", "http://a b:1", "$(id):1", "a:b", "", "file:///etc"]
)
def test_what_is_no_address_is_wrong_usage(ray: Path, address: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        ask(address)
    assert not (ray / "asked").exists()


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("ConnectionError: Could not find any running Ray instance. Please specify", "no Ray runs"),
        ("ray.exceptions.RpcError: Timed out while waiting for GCS to become available.", "no Ray "
         "answers at that address"),
        ("Error: Failed to make request to http://127.0.0.1:8265/api/v0/nodes. Failed to connect "
         "to API server.", "Ray's dashboard does not answer"),
        ("Error: Unauthorized: invalid token", "does not accept your login"),
        ("what\nelse\x1b[2J", "`ray list nodes` failed: else"),
    ],
)  # fmt: skip
def test_a_ray_that_cannot_be_asked_says_why(
    ray: Path, printed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ray / "failure").write_text(printed)
    assert main(["dump", "--ray"]) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "\x1b" not in printed
    assert len(printed.splitlines()) == 2, "with what to do"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '[{"state": "ALIVE"}]', "[]", json.dumps([node("10.9.0.1", "DEAD")]),
     json.dumps([node("-oProxyCommand=x")]), json.dumps([node("a b")]), "[" * 100_000],
)  # fmt: skip
def test_what_is_no_list_of_nodes_is_an_error(ray: Path, text: str) -> None:
    (ray / "nodes").write_text(text)
    with pytest.raises(UsageError):
        ask("auto")


def test_a_ray_that_says_nothing_or_too_much_is_ended(
    ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "PATIENCE_S", 0.2)
    (ray / "ray").write_text("#!/bin/sh\nexec sleep 100\n")
    with pytest.raises(UsageError, match="Ray does not answer"):
        ask("auto")
    monkeypatch.setattr(ray_nodes, "PATIENCE_S", 20.0)
    monkeypatch.setattr(ray_nodes, "MAX_OUTPUT", 1 << 20)
    (ray / "ray").write_text("#!/bin/sh\nexec yes\n")
    with pytest.raises(UsageError, match="more than 1 MiB"):
        ask("auto")


class Dashboard(BaseHTTPRequestHandler):
    """A double of Ray's dashboard: what it answered for a cluster of two."""

    def do_GET(self) -> None:
        """Answer."""
        inner = {"total": 2, "num_filtered": 2, "result": TWO, "warnings": None}
        body = json.dumps({"result": True, "msg": "", "data": {"result": inner}}).encode()
        known = self.path == "/api/v0/nodes?limit=10000"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def dashboard() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_without_the_command_the_dashboard_itself_is_asked(
    dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert ask(f"{dashboard}/").names == ("10.9.0.2", "10.9.0.1")
    with pytest.raises(UsageError, match="needs the `ray` command") as error:
        ask("head:6379")
    assert "--ray http://HEAD:8265" in error.value.help
    with pytest.raises(UsageError, match="dashboard does not answer"):
        ask("http://127.0.0.1:1")


@pytest.mark.parametrize("words", [("--job", "7"), ("--kube", "a")])
def test_what_names_all_nodes_goes_alone(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", "--ray", "auto", *words]) == 2
    assert "leave out all but one" in capsys.readouterr().err
