"""Pods by a real kubectl, against a stand-in for the API server: `support.kube_api` says what of it
is a double."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.main import main
from support.kube_api import KubeApi, pod
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


def _has_websockets() -> bool:
    """Whether there is a kubectl that executes over WebSockets."""
    if shutil.which("kubectl") is None:
        return False
    argv = ["kubectl", "version", "--client", "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    minor = json.loads(done.stdout or "{}").get("clientVersion", {}).get("minor", "0")
    return int(minor.strip("+") or 0) >= 31


pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of processes need root"),
    pytest.mark.skipif(not _has_websockets(), reason="needs kubectl 1.31 or later"),
]
LABEL = {"training.kubeflow.org/job-name": "train"}
RANK = "import time; print(flush=True); time.sleep(1000)"


class Container:
    """Processes of their own: a rank that sleeps, or a shell that does."""

    def __init__(self, rank: int | None) -> None:
        program, variables = ["sh", "-c", "echo; sleep 999"], {}
        if rank is not None:
            program = [sys.executable, "-c", RANK]
            store = {"MASTER_ADDR": "train-0", "MASTER_PORT": "29500"}
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", **store}
        own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
        self._process = subprocess.Popen(
            [*own, *program], stdout=subprocess.PIPE, env={**os.environ, **variables}
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        assert wait_until(lambda: bool(children.read_text().split()))
        self.prefix = ["nsenter", "-t", children.read_text().split()[0], "-m", "-p", "--"]

    def end(self) -> None:
        """End it with all that runs in it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """Two pods with a rank each, beside a container without Python; one waits, one is complete."""
    folder = tmp_path_factory.mktemp("kube")
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    containers = {
        ("train-0", "proxy"): Container(None),
        ("train-0", "main"): Container(0),
        ("train-1", "main"): Container(1),
    }
    with KubeApi(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(server.config))
        patch.setenv("KUBECACHEDIR", str(folder / "cache"))
        server.prefixes = {where: one.prefix for where, one in containers.items()}
        two = {"proxy": 0, "main": 0}
        server.pods = [
            pod("train-0", LABEL, two, "gpu-7"),
            pod("train-1", LABEL, {"main": 8}, "gpu-8"),
            pod("train-2", LABEL, {"main": 8}, phase="Pending", conditions=[waits]),
            pod("train-done", LABEL, {"main": 0}, "gpu-7", phase="Succeeded"),
            pod("other-0", {"app": "other"}, None, "gpu-9", phase="Failed", reason="Evicted"),
        ]
        yield server
    for container in containers.values():
        container.end()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_ranks_of_a_job_are_seen_in_their_containers(
    api: KubeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "dump", "--json", "--kube", "train")
    assert code == 0, err
    assert "hangtop: looking at 3 pods in namespace ml, on 2 nodes with 16 GPUs" in err
    ranks = {rank["rank"]: rank["node"] for rank in json.loads(out)["ranks"]}
    assert ranks == {0: "train-0", 1: "train-1"}
    assert "its pod is Pending: Unschedulable" in out + err


def test_a_label_and_a_choice_of_pods(api: KubeApi, capsys: pytest.CaptureFixture[str]) -> None:
    label = f"ml/{next(iter(LABEL))}=train"
    code, out, err = run(capsys, "dump", "--json", "--kube", label, "-w", "train-1")
    assert code == 0, err
    assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [1]


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ("nothing", "There is: train (4 pods), other-0 (1 pod)"),
        ("other-0", "  other-0: its pod is Failed: Evicted"),
        ("away/train", "It has no pods at all."),
    ],
)
def test_pods_that_do_not_run_are_said_to(
    api: KubeApi, pods: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "diagnose", "--kube", pods)
    assert code == 2
    assert told in err


def test_who_may_not_list_pods_is_told_what_it_takes(
    api: KubeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = 'pods is forbidden: User "u" cannot list resource "pods"'
    monkeypatch.setattr(api, "refusal", (403, "Forbidden", message))
    code, _, err = run(capsys, "diagnose", "--kube", "train")
    assert code == 2
    assert "you may not list the pods" in err
    assert "create pods/exec" in err
    monkeypatch.setattr(api, "refusal", (401, "Unauthorized", "Unauthorized"))
    assert "does not accept your login" in run(capsys, "diagnose", "--kube", "train")[2]


def test_without_a_cluster_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, _, err = run(capsys, "diagnose", "--kube", "train")
    assert code == 2
    assert "kubectl has no cluster to ask" in err
