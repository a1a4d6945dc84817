"""No pattern of the packages is slow on text made for it, but those whose text is short: see `patterns.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BOUNDED = {
    "parsing.prefix:": "used by match, or on what another pattern with bounds has found",
    "parsing.blocks:": "used by match: each beginning costs as much as the text is long, and there is one",
    "verdict.callers:": "used by match, on lines of code: text.Code",
    "verdict.alone:": "lines of code have 1,000 characters: text.Code",
    "verdict.saving:": "names of files: on the last 255 characters of a path",
    "model.frames:": "lines of code have 1,000 characters: text.Code",
    "hangtop_probe.secrets.secretnames:": "names that are looked at have MAX_NAME characters",
    "hangtop_probe.secrets.mask:": "used by match",
    "capture.redact:": "used by fullmatch",
    "hangtop_probe.stacks.rankflags:": "_MAX_STATEMENT",
    "hangtop_probe.stacks.worklists:": "MAX_STATEMENT",
    "slurm.srun:": "used by match",
    "hangtop_probe.stacks.strace:": "texts that strace has cut have 64 characters",
}
"""Why what is slow for 4,096 characters is not where it is used."""


def test_none_is_slow_but_those_of_short_texts() -> None:
    """In a process of its own, which notes what modules compile when they are imported."""
    argv = [sys.executable, str(Path(__file__).with_name("patterns.py")), "units"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) > 3, "it finds those that it should find"
    assert [line for line in lines if not any(one in line for one in BOUNDED)] == []
