"""Which pods and containers are meant, why some do not run, and names that must not be words."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop.cli.jobs.targets import launchers
from hangtop.cli.main import main
from hangtop.cli.output import redacting
from hangtop_core.attach.clusters import kube
from hangtop_core.attach.clusters.kube import KubeLauncher, Wanted, parse
from hangtop_core.attach.clusters.pods import Pod
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.errors import UsageError
from support.arguments import options_of
from support.kube_api import pod

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hangtop_core.attach.connect.launcher import Launcher


def made(*args: Any, **status: Any) -> Pod:
    return msgspec.convert(pod(*args, **status), Pod)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A double of kubectl: prints `pods`; in containers that `python` names it finds a Python."""
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >>{tmp_path}/asked\n'
        f'[ "$1" = get ] && exec cat {tmp_path}/pods\n'
        f'while [ "$1" != -c ]; do shift; done; grep -q "^$2$" {tmp_path}/python\n'
    )
    program.chmod(0o755)
    (tmp_path / "python").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def nodes(folder: Path, pods: Sequence[dict[str, Any]], *words: str) -> list[Launcher]:
    (folder / "pods").write_text(json.dumps({"kind": "List", "items": pods}))
    return launchers(options_of("dump", *words))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("train", Wanted(None, "train", None)),
        ("team-a/train.v2", Wanted("team-a", "train.v2", None)),
        ("app=train", Wanted(None, None, "app=train")),
        ("team-a/app=train,tier!=web", Wanted("team-a", None, "app=train,tier!=web")),
        ("ray.io/cluster=x", Wanted(None, None, "ray.io/cluster=x")),
        ("ml/ray.io/cluster=x", Wanted("ml", None, "ray.io/cluster=x")),
        ("ml/app in (a, b)", Wanted("ml", None, "app in (a, b)")),
    ],
)
def test_a_job_or_a_label_with_or_without_a_namespace(text: str, wanted: Wanted) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "-l", "--all", "A", "a b", "a;b", "$(x)=y", "a/b/c", "a\n", "\x1b"],
)
def test_what_is_neither_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is no job, pod or label"):
        parse(text)


@pytest.mark.parametrize(
    "labels",
    [
        {"training.kubeflow.org/job-name": "train", "job-name": "train-launcher"},
        {"jobset.sigs.k8s.io/jobset-name": "train", "batch.kubernetes.io/job-name": "train-rj-0"},
        {"ray.io/cluster": "train"},
        {"ray.io/cluster": "train-raycluster-x7k2p"},
        {"ray.io/cluster": "train-x7k2p"},
        {"volcano.sh/job-name": "train"},
        {"leaderworkerset.sigs.k8s.io/name": "train"},
        {"job-name": "train"},
    ],
)
def test_a_pod_is_of_its_job_by_the_label_of_any_operator(labels: dict[str, str]) -> None:
    assert made("train-0", labels).is_of("train")
    assert not made("train-0", labels).is_of("trai")
    assert not made("train-0", labels).is_of("t.*")


def test_a_pod_is_of_itself_and_of_its_owner() -> None:
    document = pod("x-0")
    document["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "x", "uid": "1"}]
    owned = msgspec.convert(document, Pod)
    assert owned.is_of("x")
    assert owned.is_of("x-0")
    assert not owned.is_of("y")


def container_state(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "state": state, "ready": False}]}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({}, ""),
        (container_state(running={"startedAt": "x"}), ""),
        (
            container_state(waiting={"reason": "CrashLoopBackOff", "message": "back-off\x1b[2J"}),
            "container main does not run: CrashLoopBackOff: back-off",
        ),
        (
            container_state(terminated={"reason": "OOMKilled", "exitCode": 137}),
            "container main does not run: OOMKilled: status 137",
        ),
        (
            {"phase": "Pending", **container_state(waiting={"reason": "ImagePullBackOff"})},
            "its pod is Pending: ImagePullBackOff",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                     "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."},
                ],
            },
            "its pod is Pending: Unschedulable: 0/3 nodes are available",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
         "its pod is Failed: Evicted: low on memory"),
        ({"phase": ""}, "its pod is in no known phase"),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_run(status: dict[str, Any], told: str) -> None:
    trouble = made("a", **status).trouble("main")
    assert trouble.startswith(told)
    assert bool(trouble) == bool(told)
    assert trouble.isprintable()


def test_the_container_with_gpus_is_meant_without_asking(kubectl: Path) -> None:
    (one,) = nodes(kubectl, [pod("a", {}, {"proxy": 0, "main": 8}, "gpu-7")], "--kube", "a")
    assert one.via == "kubectl (on gpu-7, 8 GPUs)"
    words = ["kubectl", "exec", "-i", "-n", "ml", "-c", "main", "a", "--", "python3"]
    assert one.argv()[: len(words)] == words
    assert (kubectl / "asked").read_text().count("exec") == 0


def test_of_other_containers_the_one_with_a_python_is_meant(kubectl: Path) -> None:
    (kubectl / "python").write_text("worker\n")
    names = {"proxy": 0, "logs": 0, "worker": 0}
    pods = [pod("a-0", {"job-name": "a"}, names), pod("a-1", {"job-name": "a"}, names)]
    found = nodes(kubectl, pods, "--kube", "a")
    assert [one.argv()[6] for one in found] == ["worker", "worker"]
    assert (kubectl / "asked").read_text().count("exec") == 3, "asked in one of equal pods"
    (kubectl / "python").write_text("")
    assert nodes(kubectl, pods, "--kube", "a")[0].argv()[6] == "proxy", "the first, for want of any"


def test_names_of_their_machines_are_redacted_like_their_own(kubectl: Path) -> None:
    pods = [pod(f"train-{n}", {"job-name": "a"}, None, f"gpu-{n // 2}.site") for n in range(4)]
    (kubectl / "pods").write_text(json.dumps({"items": pods}))
    arguments = options_of("capture", "-o", "x", "--redact-hosts", "--kube", "a")
    vias = [one.via for one in launchers(arguments)]
    assert vias[3] == "kubectl (on gpu-1.site)"
    masked = redacting.of(arguments).text(f"train-3 by {vias[3]}, train-0 by {vias[0]}")
    assert masked == "node-4 by kubectl (on node-6), node-1 by kubectl (on node-5)"


def test_who_chooses_pods_gets_those(kubectl: Path) -> None:
    pods = [pod(f"a-{n}", {"job-name": "a"}) for n in range(4)]
    named = ("--kube", "ml/a", "-w", "a-[1-3]", "-x", "a-2", "--python", "/opt/python")
    found = nodes(kubectl, pods, *named)
    assert [one.node for one in found] == ["a-1", "a-3"]
    assert "/opt/python" in found[0].argv()
    assert "--namespace=ml" in (kubectl / "asked").read_text()
    with pytest.raises(UsageError, match="a-7 is none of these pods"):
        nodes(kubectl, pods, "--kube", "a", "-w", "a-7")


def test_a_pod_that_waits_is_a_node_with_its_reason(kubectl: Path) -> None:
    pods = [pod("a-0", {"job-name": "a"}), pod("a-1", {"job-name": "a"}, phase="Pending")]
    ready, waits = nodes(kubectl, pods, "--kube", "a")
    said = 'error: unable to upgrade connection: container not found ("main")'
    assert waits.explain(1, said, False).reason == "its pod is Pending"
    assert waits.explain(1, said, False).fix_text == "kubectl describe pod -n ml a-1"
    assert ready.explain(1, said, False).reason == "its container does not run"
    assert waits.explain(1, said, True).state == "lost"


INDEX, PART = "batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-type"


def started(name: str, second: int, phase: str = "Running") -> dict[str, Any]:
    """A pod of the job `a` that was created so many seconds after the others."""
    one = pod(name, {"job-name": "a"}, phase=phase)
    one["metadata"]["creationTimestamp"] = f"2026-01-31T12:00:{second:02}Z"
    return one


def indexed(name: str, second: int, index: int, phase: str = "Running") -> dict[str, Any]:
    one = started(name, second, phase)
    one["metadata"]["labels"][INDEX] = str(index)
    return one


@pytest.mark.parametrize(
    ("pods", "left"),
    [
        # The newest of an index, whatever came before it.
        ([indexed("a-x", 0, 0, "Failed"), indexed("a-y", 5, 0)], ["a-y"]),
        (
            [indexed("a-x", 0, 0, "Failed"), indexed("a-y", 5, 0, "Failed"), indexed("b", 9, 0)],
            ["b"],
        ),
        ([indexed("a-x", 9, 0, "Failed"), indexed("a-y", 5, 1)], ["a-x", "a-y"]),
        ([indexed("a-x", 0, 0, "Failed"), indexed("a-y", 5, 0, "Pending"), indexed("b", 0, 1)],
         ["a-y", "b"]),
        # Without an index, each failed pod has given way to one that was started after it.
        ([started("a", 0, "Failed"), started("b", 5, "Failed"), started("c", 9)], ["c"]),
        ([started("a", 0, "Failed"), started("b", 0), started("c", 0)], ["a", "b", "c"]),
        ([started("a", 0, "Failed"), started("b", 0, "Failed"), started("c", 9)], ["b", "c"]),
    ],
)  # fmt: skip
def test_a_pod_in_whose_place_another_was_started_is_history(
    kubectl: Path, pods: list[dict[str, Any]], left: list[str]
) -> None:
    assert [one.node for one in nodes(kubectl, pods, "--kube", "a")] == left


def test_a_master_and_a_worker_of_one_index_are_two_pods(kubectl: Path) -> None:
    pods = [indexed("m", 0, 0, "Failed"), indexed("w", 9, 0)]
    for one, part in zip(pods, ("master", "worker"), strict=True):
        one["metadata"]["labels"][PART] = part
    assert [one.node for one in nodes(kubectl, pods, "--kube", "a")] == ["m", "w"]


FORBIDDEN = 'Error from server (Forbidden): pods "a" is forbidden: User "u" cannot create pods/exec'


@pytest.mark.parametrize(
    ("code", "stderr", "state", "reason", "again"),
    [
        (1, FORBIDDEN, "denied", "you may not execute anything in it: pods", False),
        (1, "error: You must be logged in to the server (Unauthorized)", "denied", "login", False),
        (1, 'Error from server (NotFound): pods "a" not found', "unreachable", "pod is gone", True),
        (1, "error: cannot exec into a container in a completed pod; current phase is Failed",
         "unreachable", "its pod has ended", False),
        (1, "Error from server (BadRequest): pod a does not have a host assigned", "unreachable",
         "waits for a node", True),
        (126, 'OCI runtime exec failed: exec: "python3": executable file not found in $PATH\n'
         "command terminated with exit code 126", "no-python", "there is no python3 in it", False),
        (1, "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout", "unreachable",
         "i/o timeout", True),
    ],
)  # fmt: skip
def test_an_exec_that_ends_says_why(
    kubectl: Path, code: int, stderr: str, state: str, reason: str, again: bool
) -> None:
    ending = KubeLauncher(made("a"), "main", Login()).explain(code, stderr, False)
    assert (ending.state, ending.retry) == (state, again), ending
    assert reason in ending.reason
    assert ending.fix_text
    assert "{" not in ending.fix_text


HOSTILE = ["-oX", "--help", "a b", "a;id", "$(id)", "a\x1b[2J", "A", "a%h", "a/b", "x" * 300, ""]


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
@pytest.mark.parametrize("place", ["pod", "namespace", "container"])
def test_a_name_that_is_none_is_no_word_of_a_command(kubectl: Path, word: str, place: str) -> None:
    document = pod("a", {"app": "x"})
    if place == "container":
        document["spec"]["containers"][0]["name"] = word
    else:
        document["metadata"]["name" if place == "pod" else "namespace"] = word
    with pytest.raises(UsageError, match="no usable name"):
        nodes(kubectl, [document], "--kube", "app=x")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"items": 1}', '{"items": [{"metadata": []}]}'])
def test_what_kubectl_prints_must_be_pods(kubectl: Path, text: str) -> None:
    (kubectl / "pods").write_text(text)
    with pytest.raises(UsageError, match="what cannot be read"):
        kube.launchers("a", Login())


def test_a_kubectl_that_says_nothing_or_too_much_is_ended(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "PATIENCE_S", 0.2)
    (kubectl / "kubectl").write_text("#!/bin/sh\nexec sleep 100\n")
    with pytest.raises(UsageError, match="the cluster does not answer"):
        kube.launchers("a", Login())
    monkeypatch.setattr(kube, "PATIENCE_S", 20.0)
    monkeypatch.setattr(kube, "MAX_OUTPUT", 1 << 20)
    (kubectl / "kubectl").write_text("#!/bin/sh\nexec yes\n")
    with pytest.raises(UsageError, match="more than 1 MiB"):
        kube.launchers("a", Login())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="needs kubectl"):
        kube.launchers("a", Login())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--job", "7"), "--job has no effect with --kube"),
        (("--via", "ssh"), "--via has no effect with --kube"),
        (("-l", "bob"), "--user has no effect with --kube"),
        (("--command", "env %h"), "--command has no effect with --kube"),
    ],
)
def test_what_does_not_go_with_it_is_wrong_usage(
    kubectl: Path, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", "--kube", "a", *words]) == 2
    assert told in capsys.readouterr().err
    assert not (kubectl / "asked").exists()


def test_in_the_config_file_it_gives_way_to_what_is_named(
    kubectl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "hangtop").mkdir()
    (tmp_path / "hangtop" / "config.toml").write_text('kube = "a"\nuser = "bob"\n')
    assert [one.node for one in nodes(kubectl, [pod("a")])] == ["a"]
    (tmp_path / "ssh").symlink_to("/bin/true")
    assert nodes(kubectl, [pod("a")], "-w", "n1")[0].via == "ssh"
