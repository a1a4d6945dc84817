"""Resource limits of a process."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, gc=False):
    """The limits that matter for hangs, soft values; None is unlimited or unknown."""

    open_files: int | None = None
    locked_memory: int | None = None
    core_size: int | None = None
