"""Jobs over NCCL that really ran, four ranks on one H200 (tests/gpu/record.py), judged now.

Torch 2.11 with NCCL 2.28.9, over sockets; of a rank that shares no GPU the GPUs are made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.node.hardware import GpuProcess
from support.gpus import BUSY, SPINS, gpu
from support.record import capture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Snapshot

HANG_AFTER_S = 9.0


def judged(snapshot: Snapshot) -> Diagnosis:
    return diagnose(snapshot, snapshot.jobs[0], HANG_AFTER_S)


def of(name: str) -> Snapshot:
    return capture(f"nccl-{name}").newest.snapshot


def apart(snapshot: Snapshot, does: Mapping[int, Mapping[str, Any]]) -> Snapshot:
    """The same with a GPU of its own for each rank, which spins unless told otherwise."""
    (node,) = snapshot.nodes
    gpus = tuple(
        gpu(
            rank.rank,
            processes=(GpuProcess(rank.process.pid, 60 << 30),),
            at=snapshot.at,
            **does.get(rank.rank, SPINS),
        )
        for rank in snapshot.jobs[0].ranks
    )
    return replace(snapshot, nodes=(replace(node, gpus=gpus),))


@pytest.mark.parametrize(
    ("name", "cause", "culprits"),
    [
        ("skip", "missing-collective", [2]),
        ("prepared", "missing-collective", [2]),
        ("barrier", "missing-collective", [2]),
        ("absent", "rank-never-joined", [2]),
        ("kernel", "busy-in-python", [2]),
        ("alone", "gpu-kernel-stuck", [0]),
        ("stop", "rank-stopped", [2]),
        ("leave", "rank-exited", [2]),
        ("order", "group-order-inversion", [0, 1, 2, 3]),
        ("group", "missing-collective", [2]),
        ("recv", "missing-collective", [0, 1]),
        ("sizes", "mismatched-size", [2]),
    ],
)
def test_the_rank_to_blame(name: str, cause: str, culprits: list[int]) -> None:
    found = judged(of(name))
    first = found.verdicts[0]
    assert found.state == "hung"
    assert (first.cause, [one.rank for one in first.culprits]) == (cause, culprits)


def test_training_gets_on() -> None:
    found = judged(of("healthy"))
    assert (found.state, found.verdicts) == ("progressing", ())


@pytest.mark.parametrize("name", ["stop", "skip", "leave"])
def test_ranks_that_run_all_the_time_hang_also_on_gpus_of_their_own(name: str) -> None:
    found = judged(apart(of(name), {2: {"util": 0, "power_w": 90}}))
    assert found.state == "hung"
    assert [one.rank for one in found.verdicts[0].culprits] == [2]


def test_a_rank_whose_gpu_takes_no_more_kernels_waits_for_it() -> None:
    # GIVEN rank 2, which stands in `torch.linalg.vector_norm` since its GPU has thousands to do
    found = judged(apart(of("kernel"), {2: {**BUSY, "power_peak_w": 640}}))
    first = found.verdicts[0]
    assert (first.cause, [one.rank for one in first.culprits]) == ("gpu-kernel-stuck", [2])
    # AND where that GPU only spins, it waits for others, as all do
    found = judged(apart(of("kernel"), {}))
    assert "busy-in-python" not in [one.cause for one in found.verdicts]


def test_a_gpu_that_others_use_does_not_tell_that_a_job_gets_on() -> None:
    # GIVEN the same job twice: once its GPU moved data, and once one of another job was there, too
    snapshot = of("skip")
    (node,) = snapshot.nodes
    (one,) = node.gpus
    moved = replace(one, worked_at=snapshot.at - 0.5)
    assert judged(replace(snapshot, nodes=(replace(node, gpus=(moved,)),))).state == "progressing"
    strange = replace(moved, processes=(*(moved.processes or ()), GpuProcess(77, 1 << 30, "other")))
    found = judged(replace(snapshot, nodes=(replace(node, gpus=(strange,)),)))
    assert found.state == "unknown"
    (spot,) = [one for one in found.blind_spots if one.what == "GPUs"]
    assert spot.why.startswith("pid 77 (other) of no rank of this job use GPU 0, too")


def test_a_shared_gpu_counts_once_and_says_who_is_on_it() -> None:
    found = judged(of("skip"))
    (failed,) = [one for one in found.ruled_out if one.text == "a GPU that failed"]
    assert failed.looked_at == "1 GPU answers, and has had no Xid"
    texts = [one.text for one in found.verdicts[0].evidence if one.source == "gpu"]
    assert texts[0].endswith("ranks 0-1,3 are on it, too")
    assert "the GPUs of ranks 0-1,3 wait for" in found.verdicts[0].summary


def test_what_torch_prints_of_our_server_is_no_evidence() -> None:
    texts = [one.text for one in judged(of("prepared")).verdicts[0].evidence]
    assert not [text for text in texts if "WorkerServer" in text]
