"""The rules as a whole: order, declarations, documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hangtop_core.analysis.flight import ways
from hangtop_core.analysis.flight.patterns import PATTERNS
from hangtop_core.analysis.verdict.document import page
from hangtop_core.analysis.verdict.rules import RULES
from hangtop_core.logs.meaning.steps import STEPS
from hangtop_core.text import fixes
from hangtop_core.text.commands import texts
from support.sentences import grammar, unpasted

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
    "child-process-wait",
    "long-phase",
    "io-wait",
    "output-pipe-full",
    "controller-stuck",
    "remote-service-wait",
    "teardown",
    "lock-wait",
    "queue-wait",
    "compiling",
    "checkpoint-slow",
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
    "p2p-chain",
    "missing-collective",
    "gpu-shared",
    "uneven-inputs",
    "group-order-inversion",
    "p2p-deadlock",
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


STEPS_AND_FIXES = [
    *(step for rule in RULES for step in rule.next_steps),
    *(step for steps in STEPS.values() for step in texts(steps)),
    *(step for pattern in PATTERNS for step in pattern.next_steps),
    *(fix for _, fix in ways._TEXTS.values()),
    *fixes.TEXTS.values(),
]


def test_what_is_copied_from_a_step_can_be_pasted() -> None:
    assert [fault for text in STEPS_AND_FIXES for fault in unpasted(text)] == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("df -h /dev/shm on that node; containers: --shm-size", "on that node: df -h /dev/shm"),
        ("scontrol show job (a suspended job)", "a suspended job: scontrol show job"),
        ("make it write one: hangtop flight --trigger, or R", "`hangtop flight` writes one, or R"),
        ("see what is there: lslocks | grep 'a", "see what is there: lslocks | grep 'a'"),
    ],
)
def test_steps_that_cannot_be_pasted_are_found(wrong: str, right: str) -> None:
    assert list(unpasted(wrong))
    assert not list(unpasted(right))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("ranks 0-1 has exited", "ranks 0-1 have exited"),
        ("ranks 0,4 are destroying its groups", "ranks 0,4 are destroying their groups"),
        ("rank 3 (n1, pid 7) wait in recv", "rank 3 (n1, pid 7) waits in recv"),
        ("the store that they wait for for 5:00", "the store that they waited for"),
        ("is compiling at x : pid 3", "is compiling at x: pid 3"),
    ],
)
def test_wrong_sentences_are_found(wrong: str, right: str) -> None:
    assert list(grammar(wrong))
    assert not list(grammar(right))


def test_the_documentation_of_causes_is_current() -> None:
    text = (ROOT / "docs" / "causes.md").read_text("utf-8")
    assert text == page(), "run: python -m hangtop_core.analysis.verdict.document > docs/causes.md"
