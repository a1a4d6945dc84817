"""The kinds of what a thread does, and which of them have something in common."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "collective",
    "backward",
    "work-wait",
    "send",
    "recv",
    "init",
    "new-group",
    "store",
    "rendezvous",
    "data",
    "inline-data",
    "pin-memory",
    "idle-worker",
    "lock",
    "join",
    "queue",
    "gil",
    "child",
    "prompt",
    "file-lock",
    "io",
    "output",
    "remote",
    "sleep",
    "busy",
    "compiling",
    "checkpoint",
    "teardown",
    "importing",
    "waiting",
    "stopped",
    "traced",
    "frozen",
    "core-dump",
    "exited",
    "zombie",
    "unknown",
]
"""What a main thread does. `waiting` is asleep on a futex in user code, for no visible reason."""

COMMUNICATION: frozenset[Kind] = frozenset(
    {"collective", "backward", "work-wait", "send", "recv", "init", "new-group", "store"}
)
"""Waits for other ranks."""

START_UP: frozenset[Kind] = frozenset({"init", "rendezvous", "importing"})
"""Before training."""

POLLING: frozenset[Kind] = frozenset(
    {
        "busy",
        "child",
        "data",
        "gil",
        "idle-worker",
        "init",
        "join",
        "lock",
        "new-group",
        "pin-memory",
        "prompt",
        "queue",
        "remote",
        "rendezvous",
        "sleep",
        "store",
        "teardown",
    }
)
"""Waits that may wake up again and again without having got anywhere."""

PEER_TO_PEER: frozenset[Kind] = frozenset({"send", "recv"})
