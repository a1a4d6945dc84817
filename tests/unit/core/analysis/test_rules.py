"""The rules as a whole: order, declarations, documentation."""

from __future__ import annotations

import re
from pathlib import Path

from hangtop_core.analysis.verdict.document import page
from hangtop_core.analysis.verdict.rules import RULES

ROOT = Path(__file__).parents[4]

ORDER = [
    "node-unreachable",
    "gpu-lost",
    "gpu-ecc",
    "gpu-nvlink",
    "gpu-xid",
    "rank-dumping-core",
    "rank-oom-killed",
    "rank-crashed",
    "nccl-ib-error",
    "ib-port-down",
    "wrong-interface",
    "store-port-taken",
    "store-unreachable",
    "mismatched-size",
    "shm-too-small",
    "rank-exited",
    "rank-stopped",
    "rank-traced",
    "cgroup-frozen",
    "launch-misconfigured",
    "rendezvous-incomplete",
    "rank-never-joined",
    "debugger-prompt",
    "gil-held",
    "dataloader-worker-dead",
    "fork-deadlock",
    "pin-memory-stuck",
    "dataloader-worker-stuck",
    "data-starved",
    "file-lock",
    "disk-full",
    "long-phase",
    "io-wait",
    "output-pipe-full",
    "child-process-wait",
    "remote-service-wait",
    "lock-wait",
    "queue-wait",
    "compiling",
    "checkpoint-slow",
    "teardown",
    "subset-new-group",
    "memory-thrash",
    "straggler",
    "cuda-alloc-behind-collective",
    "busy-in-python",
    "gpu-throttled",
    "gpu-kernel-stuck",
    "tcp-peer-dead",
    "store-dead",
    "port-blocked",
    "nccl-init-incomplete",
    "missing-collective",
    "gpu-shared",
    "uneven-inputs",
    "group-order-inversion",
    "p2p-deadlock",
    "p2p-chain",
    "rank-conditional-collective",
    "mismatched-dtype",
    "all-joined-transport",
    "mismatched-collective",
    "version-mismatch",
    "launch-blocking-known-hang",
    "device-sync-on-stuck-stream",
    "unknown",
]


def test_causes_are_asked_in_the_order_of_decision() -> None:
    assert list(dict.fromkeys(rule.cause for rule in RULES)) == sorted(
        {rule.cause for rule in RULES}, key=ORDER.index
    )
    assert {rule.cause for rule in RULES} == set(ORDER)


def test_every_rule_is_declared_whole() -> None:
    for rule in RULES:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.cause)
        assert rule.title
        assert rule.seen
        assert rule.excluded
        assert rule.next_steps
        assert 0.0 < rule.confidence <= 1.0


def test_the_documentation_of_causes_is_current() -> None:
    text = (ROOT / "docs" / "causes.md").read_text("utf-8")
    assert text == page(), "run: python -m hangtop_core.analysis.verdict.document > docs/causes.md"
