"""The kinds of activities of a thread, and sets of related kinds."""

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
"""Activity of a main thread. `waiting` is asleep on a futex in user code, for no visible reason."""

COMMUNICATION: frozenset[Kind] = frozenset(
    {"collective", "backward", "work-wait", "send", "recv", "init", "new-group", "store"}
)
"""Kinds that wait for other ranks."""

START_UP: frozenset[Kind] = frozenset({"init", "rendezvous", "importing"})
"""Kinds before training."""

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
"""Kinds that may wake up again and again without progress."""

PEER_TO_PEER: frozenset[Kind] = frozenset({"send", "recv"})
