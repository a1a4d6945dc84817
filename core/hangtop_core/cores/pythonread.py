"""A process that reads the stacks of one core by pystack, and prints them as JSON.

Started by `python` as `python -I -c '...; main(CORE, EXECUTABLE, NATIVE)'`: native code that walks
through the memory of an untrusted core ends with this process, and has its limits. Imports pystack
only here; it is an optional package (`pip install 'hangtop[core-files]'`).
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from typing import Any

MAX_DATA = 4 << 30
"""Maximum number of bytes of memory of its own: setrlimit(2), RLIMIT_DATA."""
MAX_CPU_S = 120
MAX_FRAMES = 400
"""Frames kept at either end of a deep stack."""
MAX_THREADS = 2000


def main(core: str, executable: str, native: bool) -> None:
    """Print the result of pystack: `{"threads": [...]}`, or `{"error": why}`."""
    for what, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, MAX_DATA),
        (resource.RLIMIT_CPU, MAX_CPU_S),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))
    try:
        result: dict[str, Any] = {"threads": threads(core, executable, native)}
    except ImportError as error:
        result = {"missing": True, "error": str(error)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write(json.dumps(result))


def threads(core: str, executable: str, native: bool) -> list[dict[str, Any]]:
    """Return the threads that run Python, or with ``native`` all; frames are innermost first."""
    from pystack.engine import NativeReportingMode, StackMethod, get_process_threads_for_core

    error: Exception | None = None
    mode = NativeReportingMode.ALL if native else NativeReportingMode.OFF
    for method in (StackMethod.AUTO, StackMethod.ALL):
        try:
            rows = get_process_threads_for_core(
                core, executable, native_mode=mode, locals=True, method=method
            )
        except Exception as failure:
            error = error or failure
            continue
        return [_thread(row) for row in rows[:MAX_THREADS]]
    raise error or ValueError("pystack found nothing")


def _thread(thread: Any) -> dict[str, Any]:
    frames = [
        {
            "name": frame.code.scope,
            "filename": frame.code.filename,
            "line": frame.code.location.lineno,
            "is_entry": bool(frame.is_entry),
            "locals": [
                {"name": str(name), "repr": str(value), "arg": arguments}
                for variables, arguments in ((frame.arguments, True), (frame.locals, False))
                for name, value in variables.items()
            ],
        }
        for frame in thread.frames
    ]
    native = [
        {
            # Without the version of a symbol and the mark of an inlined call.
            "name": frame.symbol.split("@")[0].removesuffix(" (inlined)").strip("?") or "??",
            "filename": frame.path.strip("?") or frame.library,
            "line": max(frame.linenumber, 0),
        }
        for frame in thread.native_frames
    ]
    return {
        "os_thread_id": thread.tid,
        "thread_name": thread.name,
        "owns_gil": thread.holds_the_gil > 0,
        "frames": _innermost_first(frames),
        "native": _innermost_first(native),
    }


def _innermost_first(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    frames.reverse()
    left = len(frames) - 2 * MAX_FRAMES
    if left > 0:
        frames[MAX_FRAMES:-MAX_FRAMES] = [{"name": f"({left} frames are left out)"}]
    return frames
