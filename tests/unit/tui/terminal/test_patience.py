"""What somebody types may take for ever; the screen waits for it only so long."""

from __future__ import annotations

import signal

import pytest

from hangtop.terminal.spans import line
from hangtop.views.logs import Shown, searched


def test_a_pattern_of_the_user_s_own_is_ended() -> None:
    shown = [Shown(line("a" * 2000))]
    with pytest.raises(TimeoutError):
        searched(shown, "(a+)+$x")
    assert searched(shown, "^a+$") == shown
    assert searched(shown, "a{9999999999}") == searched(shown, "(") == []
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0
