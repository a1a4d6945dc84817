"""A double of NVIDIA's library for tests, since no GPU is at hand: see `double.c`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("double.c")
LIBRARY = "libnvidia-ml.so.1"
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the double of NVML")


def build(folder: Path) -> Path:
    """Build the double into a folder; return its path."""
    target = folder / LIBRARY
    argv = [str(COMPILER), "-shared", "-fPIC", "-O1", "-w", "-o", str(target), str(SOURCE)]
    subprocess.run(argv, check=True)
    return target


class Double:
    """The double in use: what it says is changed by `say`, at any time."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._file = folder / "gpus.txt"
        self._said: dict[str, str] = {}
        self.environment = {
            "LD_LIBRARY_PATH": os.fspath(library.parent),
            "HANGTOP_NVML_DOUBLE": os.fspath(self._file),
        }
        self.say()

    def say(self, **values: object) -> None:
        """Set values: `count=8`, `g3_power=118000` for GPU 3, `g3_all="hang"`; None takes away."""
        for name, value in values.items():
            gpu, _, rest = name.partition("_")
            key = f"{gpu[1:]}.{rest}" if gpu[:1] == "g" and gpu[1:].isdigit() else name
            self._said.pop(key, None)
            if value is not None:
                self._said[key] = str(value)
        part = self._file.with_suffix(".new")
        part.write_text("".join(f"{key}={value}\n" for key, value in self._said.items()))
        part.replace(self._file)
