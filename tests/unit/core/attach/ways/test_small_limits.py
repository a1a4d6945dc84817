"""A node whose login may do too little says that its limits are too small, and how to see them."""

from __future__ import annotations

import pytest

from hangtop_core.attach.connect.launcher import ByHand
from hangtop_core.attach.ways.small_limits import fix_text
from hangtop_core.text.commands import Advice

BY_SSH = ByHand(("ssh", "gpu03"))
OTHER = Advice("look at it")
TOO_SMALL = [
    "the connection ended with status 1: MemoryError: Unable to allocate output buffer.",
    "the probe gave up watching: watch: RuntimeError: can't start new thread (threading.py:957)",
    "the connection ended with status 1: OSError: [Errno 24] Too many open files: '/dev/null'",
    "python3 does not start: python3: error while loading shared libraries: libm.so.6: cannot open "
    "shared object file: Error 24",
    "python3 does not start: libc.so.6: failed to map segment from shared object",
    "the connection ended with status 254: bash: fork: retry: Resource temporarily unavailable",
    "the probe gave up watching: watch: BlockingIOError: [Errno 11] x",
]


@pytest.mark.parametrize("reason", TOO_SMALL)
def test_what_says_that_a_limit_is_too_small(reason: str) -> None:
    told = fix_text(reason, OTHER, BY_SSH)
    assert told is not None
    assert told.startswith("limits there are too small")
    assert told.endswith("see them by: ssh gpu03 'ulimit -a'")


@pytest.mark.parametrize(
    "reason", ["python3 does not start: Error 2", "Connection refused", "[Errno 111] refused"]
)
def test_what_says_something_else(reason: str) -> None:
    assert fix_text(reason, OTHER, BY_SSH) == "look at it"
    assert fix_text(reason, None, BY_SSH) is None


def test_this_machine_is_not_reached_by_a_command() -> None:
    assert fix_text(TOO_SMALL[0], None, ByHand()) is None
