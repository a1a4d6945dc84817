"""Programs at a terminal, as a person would see them."""

from __future__ import annotations

import os
import select
import time

from support.processes import PATIENCE


def read_until(terminal: int, text: bytes | None) -> bytes:
    """Read what a program tells the terminal, up to ``text`` or its end."""
    told, deadline = b"", time.monotonic() + PATIENCE
    while text is None or text not in told:
        left = deadline - time.monotonic()
        assert left > 0, told
        if not select.select([terminal], [], [], left)[0]:
            continue
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            assert text is None, told
            break
        told += part
    return told
