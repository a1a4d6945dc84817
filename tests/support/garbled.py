"""A probe whose stream other things print into, as login scripts and daemons do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hangtop_core.attach.ways.local import LocalLauncher

if TYPE_CHECKING:
    from pathlib import Path

_WRAPPER = r"""
import os, subprocess, sys
print("Welcome to n1! \x1b[31mred\x1b[0m\nLast login: today", flush=True)
probe = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
out = sys.stdout.buffer
for number, line in enumerate(probe.stdout):
    out.write(line)
    if number == 4:
        out.write(b"a daemon says hello\n\xff\xfe\x00 binary\n")
    if number == 6 and os.path.exists(sys.argv[1]):
        os.unlink(sys.argv[1])
        out.write(b"\x1eHT1 {damaged\n")
    out.flush()
"""


class Garbled(LocalLauncher):
    """A probe behind a login that prints a banner, and garbage in the middle of its stream."""

    def __init__(self, folder: Path, *, damaged: bool = False) -> None:
        """With ``damaged``, its first connection has a line that says what a probe never says."""
        super().__init__("garbled")
        self._script, self._damage = folder / "wrapper.py", folder / "damage"
        self._script.write_text(_WRAPPER)
        if damaged:
            self._damage.touch()

    def argv(self) -> list[str]:
        return [sys.executable, str(self._script), str(self._damage), *super().argv()]
