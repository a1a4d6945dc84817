"""Pods as the API server describes them: job, node, and why a pod does not run.

The output of `kubectl get -o json` is untrusted: it is decoded into these types, and names are
checked before they become words of a command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, field

from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

JOB_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels that hold the name of a pod's job: PyTorchJob and MPIJob (Kubeflow), TrainJob and JobSet,
RayJob, Volcano, LeaderWorkerSet, Job. Owners of a Job come before it."""
_OF_RAYJOB = r"-(?:raycluster-)?[a-z0-9]{5}"
"""Suffix that KubeRay adds to the name of a RayJob for its cluster."""
_GPUS = ("gpu", "gaudi")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of pods, namespaces and containers, and of their jobs."""


def _is_gpu(resource: str) -> bool:
    """Return whether a resource such as `nvidia.com/gpu` or `nvidia.com/mig-1g.5gb` is a GPU."""
    maker, _, kind = resource.rpartition("/")
    return bool(maker) and (kind in _GPUS or kind.startswith("mig-"))


class _Named(Struct):
    name: str = ""


class Metadata(Struct, rename="camel"):
    """Name, labels and owners of a pod."""

    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str = ""
    """Creation time, as `2026-01-31T12:00:00Z`."""
    owner_references: list[_Named] = []


class Resources(Struct):
    """Resource limits of a container."""

    limits: dict[str, str | int] = {}


class Container(Struct):
    """One container of a pod."""

    name: str = ""
    resources: Resources = field(default_factory=Resources)

    @property
    def gpus(self) -> int:
        """Return the number of its GPUs, or parts of GPUs."""
        limits = self.resources.limits.items()
        counts = (str(count) for key, count in limits if _is_gpu(key))
        return sum(int(count) for count in counts if re.fullmatch(r"[0-9]{1,4}", count))


class Spec(Struct, rename="camel"):
    """Node and containers of a pod."""

    node_name: str = ""
    containers: list[Container] = []


class Reason(Struct, rename="camel"):
    """The reason of a condition or of a container's state."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None

    def in_words(self) -> str:
        """Return ``CrashLoopBackOff: back-off 5m0s ...``."""
        code = f"status {self.exit_code}" if self.exit_code is not None else ""
        return ": ".join(clean(text, 160) for text in (self.reason, code, self.message) if text)


class ContainerState(Struct):
    """Why a container does not run, if it does not."""

    waiting: Reason | None = None
    terminated: Reason | None = None


class ContainerStatus(Struct):
    """The state of one container."""

    name: str = ""
    state: ContainerState = field(default_factory=ContainerState)


class Status(Struct, rename="camel"):
    """State of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Reason] = []
    container_statuses: list[ContainerStatus] = []


class Pod(Struct):
    """One pod."""

    metadata: Metadata = field(default_factory=Metadata)
    spec: Spec = field(default_factory=Spec)
    status: Status = field(default_factory=Status)

    @property
    def name(self) -> str:
        """Return its name."""
        return self.metadata.name

    @property
    def has_valid_names(self) -> bool:
        """Return whether its names can be words of a command."""
        containers = (container.name for container in self.spec.containers)
        names = (self.name, self.metadata.namespace, *containers)
        return bool(self.spec.containers) and all(NAME.fullmatch(name) for name in names)

    @property
    def job(self) -> str:
        """Return the name of its job, or its own."""
        labels = self.metadata.labels
        return next((labels[label] for label in JOB_LABELS if label in labels), self.name)

    def is_of(self, name: str) -> bool:
        """Return whether the name is that of this pod or of its job."""
        labels = self.metadata.labels
        names = {labels[label] for label in JOB_LABELS if label in labels}
        names.update((self.name, *(owner.name for owner in self.metadata.owner_references)))
        cluster = labels.get("ray.io/cluster", "")
        return name in names or re.fullmatch(re.escape(name) + _OF_RAYJOB, cluster) is not None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all its containers."""
        return sum(container.gpus for container in self.spec.containers)

    @property
    def has_ended(self) -> bool:
        """Return whether it is complete, so that nothing of it runs any more."""
        return self.status.phase == "Succeeded"

    def candidates(self) -> tuple[str, ...]:
        """Return the containers that ranks may run in, the likeliest first."""
        containers = self.spec.containers
        with_gpus = [container.name for container in containers if container.gpus]
        default = self.metadata.annotations.get("kubectl.kubernetes.io/default-container")
        names = with_gpus or [container.name for container in containers]
        return tuple(sorted(names, key=lambda name: name != default))

    def trouble(self, container: str) -> str:
        """Return why its ``container`` does not run; ``""`` if it does."""
        status = self.status
        states = [
            status_of.state
            for status_of in status.container_statuses
            if status_of.name == container
        ]
        blocked = _first_reason([state.waiting or state.terminated for state in states])
        if status.phase == "Running":
            return f"container {container} does not run: {blocked}" if blocked else ""
        unmet = [condition for condition in status.conditions if condition.status == "False"]
        scheduled = [condition for condition in unmet if condition.type == "PodScheduled"]
        own = Reason(reason=status.reason, message=status.message)
        why = blocked or _first_reason([*scheduled, own])
        return f"its pod is {clean(status.phase, 40) or 'in no known phase'}{why and f': {why}'}"


class PodList(Struct):
    """The output of `kubectl get pods`."""

    items: list[Pod] = []


def _first_reason(reasons: Sequence[Reason | None]) -> str:
    return next((text for reason in reasons if reason and (text := reason.in_words())), "")
