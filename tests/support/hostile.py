"""Captures in which every text is meant to do harm."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from support.record import path_of

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[31m\u202e\u200b\u3164\x9b2J\r\n;touch${IFS}/tmp/evil;#"
KEPT = frozenset({
    "schema", "node", "name", "key", "job", "stack", "trace", "recorder", "state", "kind", "role",
    "mode", "way", "code", "source", "std", "origin", "boot_id", "hostname", "started",
    "observed_at", "part", "how", "family", "nodes", "fabric",
})  # fmt: skip
"""Keys whose values have a form, or are one of a few words: what else stands there is refused."""


def lines_of(name: str) -> list[Any]:
    """The lines of a recording, as plain data."""
    with gzip.open(path_of(name), "rt") as file:
        return [json.loads(line) for line in file]


def written(lines: list[Any], path: Path) -> Path:
    """A capture of these lines."""
    path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in lines).encode(), 1))
    return path


def spoiled(raw: Any, evil: str, key: str = "") -> Any:
    """Plain data in which every text is spoiled but those that have a form of their own."""
    if isinstance(raw, str):
        return raw if key in KEPT else raw + evil
    if isinstance(raw, list):
        return [spoiled(one, evil, key) for one in raw]
    if isinstance(raw, dict):
        return {name: spoiled(value, evil, name) for name, value in raw.items()}
    return raw


def spoiled_capture(name: str, evil: str, path: Path) -> Path:
    """A recording in which every text is spoiled that may hold anything."""
    return written([spoiled(line, evil) for line in lines_of(name)], path)
