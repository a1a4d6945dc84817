"""Replaced pods: of pods with one index only the newest counts.

A Job starts another pod in place of a failed one (backoffLimit), under another name, and keeps the
failed one; so do JobSet and the operators that create Jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.attach.clusters.pods import Pod

_INDICES = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "jobset.sigs.k8s.io/job-index",
    "leaderworkerset.sigs.k8s.io/group-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "volcano.sh/task-index",
    "apps.kubernetes.io/pod-index",
)
"""Labels that number the pods of one part of a job."""
_PARTS = (
    "training.kubeflow.org/replica-type",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "volcano.sh/task-spec",
)
"""Labels that name the part: of a PyTorchJob the master, or the workers."""
_FAILED = "Failed"

Seat = tuple[str, ...]


def without_earlier(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods without those that were replaced, in their order."""
    seats: dict[Seat, list[Pod]] = {}
    for pod in pods:
        seats.setdefault(_seat(pod), []).append(pod)
    left: list[Pod] = []
    for seat, seat_pods in seats.items():
        left += _earlier(seat_pods) if _has_index(seat) else _replaced(seat_pods)
    earlier = {id(pod) for pod in left}
    return [pod for pod in pods if id(pod) not in earlier]


def _seat(pod: Pod) -> Seat:
    """Return what a pod and its replacement have in common: job, part and index."""
    labels = pod.metadata.labels
    indices = [labels.get(name, "") for name in _INDICES]
    return (pod.job, *(labels.get(name, "") for name in _PARTS), *indices)


def _has_index(seat: Seat) -> bool:
    return any(seat[-len(_INDICES) :])


def _earlier(pods: Iterable[Pod]) -> list[Pod]:
    """Return all failed pods but the newest pod; running ones are kept."""
    ordered = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
    return [pod for pod in ordered[:-1] if pod.status.phase == _FAILED]


def _replaced(pods: Iterable[Pod]) -> list[Pod]:
    """Return the failed pods without an index that a later pod replaces."""
    ordered = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
    failed = [pod for pod in ordered if pod.status.phase == _FAILED]
    free, replaced = list(ordered), []
    for pod in failed:
        born = pod.metadata.creation_timestamp
        later = next(
            (candidate for candidate in free if candidate.metadata.creation_timestamp > born), None
        )
        if later is not None:
            free.remove(later)
            replaced.append(pod)
    return replaced
