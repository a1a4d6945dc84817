"""Pods of a Kubernetes job as nodes, by `kubectl` in the user's own context."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hangtop_core.attach.clusters.pod_retries import without_earlier
from hangtop_core.attach.clusters.pods import NAME, Pod, PodList
from hangtop_core.attach.ways import subprocesses
from hangtop_core.attach.ways.command import CommandLauncher, Template
from hangtop_core.attach.ways.reasons import COMMANDS, Fix, KnownEnding
from hangtop_core.attach.ways.targets import MAX_NODES
from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean, plural
from hangtop_core.text.commands import Command, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.attach.connect.launcher import Ending
    from hangtop_core.attach.ways.ssh import Login

PATIENCE_S = 30.0
MAX_OUTPUT = 64 * 1024 * 1024
"""Maximum bytes of kubectl's output: some five thousand pods."""
MAX_LISTED = 20
_SELECTOR = re.compile(r"[A-Za-z0-9_./=!,() -]{1,1000}")
_RUNS_PYTHON = (
    "for p in /proc/[0-9]*; do readlink $p/exe; cat $p/comm; done 2>/dev/null | grep -q python"
)
"""Variables do not show it: operators give RANK to every container, and to commands in it."""

_FAILURES = (
    (
        r"localhost:8080|no configuration has been provided|current-context",
        "kubectl has no cluster to ask",
        "`kubectl config get-contexts` lists what it knows; KUBECONFIG names another file.",
    ),
    (
        r"\(Forbidden\)",
        "you may not list the pods",
        "It takes the right to list pods and to create pods/exec: kubectl auth can-i --list",
    ),
    (
        r"Unauthorized|must be logged in|x509|getting credentials",
        "the cluster does not accept your login",
        "Log in to it again; `kubectl get pods` has to work.",
    ),
    (
        r"Unable to connect|timeout|deadline exceeded|no such host|was refused",
        "the cluster does not answer",
        "`kubectl cluster-info` says which it is.",
    ),
)
_ENDINGS = (
    KnownEnding(
        re.compile(r"Error from server \(Forbidden\): (.{1,200})"),
        "denied",
        r"you may not execute anything in it: \1",
        Fix(
            "it takes the right to create pods/exec",
            ("kubectl", "auth", "can-i", "create", "pods/exec"),
        ),
    ),
    KnownEnding(
        re.compile(r"Unauthorized|must be logged in"),
        "denied",
        "the cluster does not accept your login",
        Fix("log in to it again; this has to work", ("kubectl", "get", "pods")),
    ),
    KnownEnding(
        re.compile(r'pods "[^"]*" not found'), "unreachable", "its pod is gone", retry=True
    ),
    KnownEnding(re.compile(r"in a completed pod"), "unreachable", "its pod has ended"),
    KnownEnding(
        re.compile(r"not have a host assigned"),
        "unreachable",
        "its pod waits for a node",
        retry=True,
    ),
    KnownEnding(
        re.compile(r"container not found|is not running|not created|is waiting to start"),
        "unreachable",
        "its container does not run",
        retry=True,
    ),
)


class Wanted(NamedTuple):
    """The pods that `--kube` names."""

    namespace: str | None
    """Namespace; None is that of the context."""
    name: str | None
    selector: str | None


def parse(text: str) -> Wanted:
    """Read ``[NAMESPACE/]NAME`` or ``[NAMESPACE/]SELECTOR``.

    The name of a label may also have a ``/``, but then a dot before it, which no namespace has.

    Raises:
        UsageError: the text is neither.
    """
    head, slash, tail = text.partition("/")
    has_namespace = bool(slash) and "." not in head and "=" not in head
    namespace, what = (head, tail) if has_namespace else (None, text)
    valid = namespace is None or NAME.fullmatch(namespace)
    if valid and NAME.fullmatch(what):
        return Wanted(namespace, what, None)
    if valid and _SELECTOR.fullmatch(what) and ("=" in what or " in " in what):
        return Wanted(namespace, None, what)
    raise UsageError(
        f"--kube: {clean(text, 80)!r} is no job, pod or label",
        "For example: --kube train, --kube team-a/train, --kube team-a/app=train",
    )


class KubeLauncher(CommandLauncher):
    """The probe in a container of a pod."""

    endings = (*_ENDINGS, *COMMANDS)

    def __init__(self, pod: Pod, container: str, login: Login) -> None:
        words = ["kubectl", "exec", "-i", "-n", pod.metadata.namespace, "-c", container, "%h", "--"]
        super().__init__(pod.name, login, Template(stored(words)))
        self.pod = pod
        self._trouble = pod.trouble(container)
        gpus = [plural(pod.gpus, "GPU")] if pod.gpus else []
        host = clean(pod.spec.node_name, 80) or "no node yet"
        self._where = ", ".join([f"on {host}", *gpus])

    @property
    def via(self) -> str:  # type: ignore[override]
        """Return kubectl, and where the pod runs."""
        return f"kubectl ({self._where})"

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return why kubectl ended: the pod's earlier trouble, if it had one."""
        ending = super().explain(code, stderr, was_ready)
        if self._trouble and not was_ready and ending.state == "unreachable":
            ending = ending._replace(reason=self._trouble, fix=None)
        if ending.fix is None and not was_ready:
            where = ("-n", self.pod.metadata.namespace, self.pod.name)
            return ending._replace(fix=Command("", ("kubectl", "describe", "pod", *where)))
        return ending


def launchers(text: str, login: Login) -> list[KubeLauncher]:
    """Return a launcher for each pod that ``text`` names.

    Completed pods, and failed ones that were replaced, are left out.

    Raises:
        UsageError: kubectl cannot be asked, or there is no such pod, or none of them runs.
    """
    wanted = parse(text)
    pods = without_earlier([pod for pod in _pods(wanted) if not pod.has_ended])
    chosen: dict[tuple[str, ...], str] = {}
    pod_launchers = []
    for pod in sorted(pods, key=lambda pod: pod.status.phase != "Running"):
        names = pod.candidates()
        if names not in chosen:
            chosen[names] = _container(pod, names)
        pod_launchers.append(KubeLauncher(pod, chosen[names], login))
    order = {pod.name: number for number, pod in enumerate(pods)}
    return sorted(pod_launchers, key=lambda launcher: order[launcher.node])


def summary(pod_launchers: Sequence[KubeLauncher]) -> str:
    """Return which pods are observed, and where they run."""
    pods = [launcher.pod for launcher in pod_launchers]
    hosts = {pod.spec.node_name for pod in pods if pod.spec.node_name}
    gpus = sum(pod.gpus for pod in pods)
    where = f"on {plural(len(hosts), 'node')}" + (f" with {plural(gpus, 'GPU')}" if gpus else "")
    return f"{plural(len(pods), 'pod')} in namespace {pods[0].metadata.namespace}, {where}"


def _pods(wanted: Wanted) -> list[Pod]:
    pods = _listed(wanted)
    invalid = next((pod for pod in pods if not pod.has_valid_names), None)
    if invalid is not None:
        raise UsageError(f"kubectl printed a pod with no usable name: {clean(invalid.name, 80)!r}")
    named = [pod for pod in pods if wanted.name is None or pod.is_of(wanted.name)]
    if not named:
        raise _none(wanted, pods)
    if len(named) > MAX_NODES:
        raise UsageError(f"--kube: {len(named)} pods, {MAX_NODES} at most")
    if not any(pod.status.phase == "Running" for pod in named):
        lines = [f"  {pod.name}: {pod.trouble(pod.candidates()[0])}" for pod in named[:MAX_LISTED]]
        raise UsageError(f"no pod of {_what(wanted)} runs", "\n".join(lines))
    return named


def _listed(wanted: Wanted) -> list[Pod]:
    namespace = [f"--namespace={wanted.namespace}"] if wanted.namespace else []
    selector = [f"--selector={wanted.selector}"] if wanted.selector else []
    done = _kubectl("get", "pods", "-o", "json", *namespace, *selector)
    if done.code:
        raise _failure(done.err)
    try:
        return msgspec.json.decode(done.out, type=PodList).items
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(
            f"kubectl printed what cannot be read: {clean(str(error), 120)}"
        ) from error


def _kubectl(*words: str) -> subprocesses.Done:
    try:
        return subprocesses.run(["kubectl", *words], PATIENCE_S, MAX_OUTPUT, os.environ)
    except FileNotFoundError:
        raise UsageError(
            "--kube needs kubectl, and there is none on this machine",
            "https://kubernetes.io/docs/tasks/tools/ says how to get it.",
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"the cluster does not answer: kubectl took more than {PATIENCE_S:.0f} s",
            "`kubectl cluster-info` says which it is.",
        ) from None
    except subprocesses.TooMuchOutputError:
        raise UsageError(
            f"kubectl printed more than {MAX_OUTPUT >> 20} MiB of pods",
            "Name a label that fewer pods have: --kube NAMESPACE/LABEL=VALUE",
        ) from None
    except OSError as error:
        raise UsageError(f"kubectl cannot be run: {error.strerror}") from error


def _failure(printed: str) -> UsageError:
    last = clean(printed.strip().rpartition("\n")[2], 300)
    for pattern, text, fix in _FAILURES:
        if re.search(pattern, printed):
            return UsageError(f"{text}: {last}", fix)
    return UsageError(f"kubectl failed: {last}", "`kubectl get pods` has to work.")


def _what(wanted: Wanted) -> str:
    return f"{wanted.name or wanted.selector} in namespace {wanted.namespace or 'of the context'}"


def _none(wanted: Wanted, pods: Sequence[Pod]) -> UsageError:
    counts: dict[str, int] = {}
    for pod in pods:
        counts[pod.job] = counts.get(pod.job, 0) + 1
    jobs = [f"{clean(job, 80)} ({plural(count, 'pod')})" for job, count in counts.items()]
    more = f", and {len(jobs) - MAX_LISTED} more" if len(jobs) > MAX_LISTED else ""
    jobs_line = (
        f"There is: {', '.join(jobs[:MAX_LISTED])}{more}" if jobs else "It has no pods at all."
    )
    hint = "Another namespace: --kube NAMESPACE/NAME"
    return UsageError(f"no pod of {_what(wanted)}", f"{jobs_line}\n{hint}")


def _container(pod: Pod, names: tuple[str, ...]) -> str:
    """Return the container that runs Python; the first of ``names`` if none is found."""
    if len(names) > 1 and pod.status.phase == "Running":
        for name in names:
            where = ("-n", pod.metadata.namespace, pod.name, "-c", name)
            if _kubectl("exec", *where, "--", "sh", "-c", _RUNS_PYTHON).code == 0:
                return name
    return names[0]
