"""Which processes are looked into for ranks that tell nothing by themselves."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from hangtop_probe import resolver

if TYPE_CHECKING:
    import pytest


def test_a_process_whose_memory_is_locked_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So while a page fault waits for a file server, and another thread for the lock."""
    given_back = threading.Event()
    monkeypatch.setattr(resolver.procfs, "read_all", lambda *_: given_back.wait())
    try:
        assert not resolver.has_torch(os.getpid())
    finally:
        given_back.set()


def test_who_has_mapped_torch_may_be_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver.procfs, "read_all", lambda *_: b"7f00-7f01 /x/libtorch_cpu.so")
    assert resolver.has_torch(os.getpid())
