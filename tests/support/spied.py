"""What `py-spy dump --json` prints of one thread (0.4.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def frame(name: str, file: str, line: int = 1, **variables: str) -> dict[str, Any]:
    """A frame with the variables it was called with."""
    return {
        "name": name,
        "filename": file,
        "short_filename": Path(file).name,
        "module": None,
        "line": line,
        "locals": [{"name": n, "addr": 1, "arg": True, "repr": v} for n, v in variables.items()]
        or None,
    }


def dump(*frames: dict[str, Any], **fields: Any) -> bytes:
    """The main thread with these frames, innermost first."""
    thread = {"thread_name": "MainThread", "os_thread_id": 7, "active": True, "owns_gil": False}
    return json.dumps([{**thread, "frames": frames, **fields}]).encode()
