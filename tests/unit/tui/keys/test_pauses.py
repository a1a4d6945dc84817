"""What is said of how long a rank is paused is what the probe keeps to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangtop.cli.main import main
from hangtop.keys import pauses
from hangtop_probe.stacks.tracing import MAX_PAUSE_S

SECURITY = Path(__file__).parents[4] / "docs" / "security.md"


def test_the_longest_pause_is_that_of_the_probe(capsys: pytest.CaptureFixture[str]) -> None:
    longest = f"at most {MAX_PAUSE_S:g} s on a busy one"
    assert pauses.NATIVE.endswith(longest)
    assert longest in SECURITY.read_text()
    for command in ("dump", "diagnose"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert longest in " ".join(capsys.readouterr().out.split()), command
