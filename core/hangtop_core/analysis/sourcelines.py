"""What a line of code says, where no function of a library does: what it waits for, and more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangtop_core.model.frame import Frame
    from hangtop_core.stacks.kinds import Kind

_SOURCES: tuple[tuple[Kind, re.Pattern[str], str], ...] = (
    ("prompt", re.compile(r"\binput\s*\(|\bbreakpoint\s*\("), "waits for input at a prompt"),
    (
        "store",
        re.compile(
            r"\b(?=\w*store)\w++(?:\(\))?\.(wait|get|add|set|check|compare_set|multi_get)\s*\("
        ),
        "waits for a key in the store",
    ),
    ("lock", re.compile(r"\.acquire\s*\(|^\s*(async\s+)?with\b"), "waits for a lock"),
    (
        "work-wait",
        re.compile(r"\.wait\s*\(|\bwait_tensor\s*\(|\.synchronize\s*\(|\.item\s*\(|\.to_here\("),
        "waits for outstanding communication",
    ),
    ("join", re.compile(r"\.join\s*\("), "waits for a thread of its own"),
)
"""Calls into C leave no frame of their own: the line of code tells, when it could be read."""


_GPU_SYNC = re.compile(
    r"\.(item|tolist|cpu|numpy|nonzero|synchronize|empty_cache|_cuda_emptyCache"
    r"|set_runtime_stats_and_log)\s*\(|\.to\(\s*[\"']cpu"
)
"""The last one is DistributedDataParallel's: before a forward it waits for events of the backward
before (torch 1.8 to 2.15, nn/parallel/distributed.py and c10d/logger.cpp), so that a job over NCCL
hangs there which hung in its gradients."""


def waits_for_gpu(source: str | None) -> bool:
    """Whether a line of code copies from the GPU or waits for it: then a busy CPU only polls."""
    return source is not None and _GPU_SYNC.search(source) is not None


def by_source(source: str | None) -> tuple[Kind, str] | None:
    """What a line of user code waits for when its thread sleeps inside it."""
    if not source:
        return None
    for kind, pattern, text in _SOURCES:
        if pattern.search(source):
            return kind, text
    return None


_SLEEPS = re.compile(r"\btime\.sleep\s*\(|(?<![.\w])sleep\s*\(")
_NO_LOCK = re.compile(
    rf"{_SLEEPS.pattern}|\bos\.(read|write|wait|waitpid|fsync|listdir|stat)\s*\("
    r"|\bselect\.select\s*\(|\b_selector\.poll\s*\(|\b_sock\.\w+\s*\("
    r"|^(while\s+(True|1)\s*:|pass|continue|break)$"
)
"""Lines that sleep in another system call than futex, or not at all."""
_MATCHES = re.compile(r"\.(match|fullmatch|search|findall|finditer|subn?)\s*\(")


def may_backtrack(source: str | None) -> bool:
    """Whether a line looks for a regular expression, by the names of the calls of `re`."""
    return source is not None and _MATCHES.search(source) is not None


_STORE = re.compile(r"\bTCPStore\s*\(")


def makes_store(frame: Frame | None) -> bool:
    """Whether a frame makes a TCPStore: hosts it and waits for all others, or connects to it."""
    if frame is None:
        return False
    by_torch = frame.name == "_create_c10d_store"
    return by_torch or bool(frame.source and _STORE.search(frame.source))


def sleeps(source: str | None) -> bool:
    """Whether a line sleeps for a time that it says itself."""
    return source is not None and _SLEEPS.search(source) is not None


def needs_no_lock(source: str | None) -> bool:
    """Whether a thread asleep on a futex in this line wants the GIL back: nothing else is left."""
    return source is not None and by_source(source) is None and bool(_NO_LOCK.search(source))


def inner_while(frame: Frame | None) -> str | None:
    """The line of the innermost `while` that a frame is in."""
    within = frame.within if frame is not None else None
    return next((text for _, text in reversed(within or ()) if text.startswith("while ")), None)


_FOR_KEYS = re.compile(r"\.(?:wait|get|multi_get)\s*\(")
_AT_ONCE = re.compile(r"\.(?:add|set|check|compare_set|append|multi_set|delete_key|num_keys)\s*\(")
STORE_ANSWER = "waits for an answer of the store"


def store_text(frame: Frame | None) -> str:
    """What a rank waits for that asks the store: for a key, or for what is answered at once."""
    source = (frame.source if frame is not None else None) or ""
    if _AT_ONCE.search(source) and not _FOR_KEYS.search(source):
        return STORE_ANSWER
    return "waits for a key in the store"
