"""Asking NVIDIA's driver, here a double: a tiny shared library with the four calls of NVML.

No GPU and no driver is needed; that the real library answers alike has to be seen where one is.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe import nvml
from hangtop_probe.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the double of NVML")

DOUBLE = r"""
#include <string.h>
#include <unistd.h>
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "GPU is lost"; }
int nvmlInit_v2(void) { sleep(SLEEP); return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    strncpy(text, "575.51.03", size);
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return COUNT; }
"""


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    def build(**defines: int) -> dict[str, Any]:
        source = tmp_path / "double.c"
        source.write_text(DOUBLE)
        values = {"SLEEP": 0, "INIT": 0, "COUNT": 0, **defines}
        options = [f"-D{name}={value}" for name, value in values.items()]
        argv = [str(COMPILER), "-shared", "-fPIC", *options, "-o"]
        subprocess.run([*argv, str(tmp_path / nvml.LIBRARY), str(source)], check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        return nvml.ask(Tools(), threading.Event())

    return build


def test_a_driver_that_answers(ask: Callable[..., dict[str, Any]]) -> None:
    said = ask()
    assert (said["driver"], said["gpus"]) == ("575.51.03", 8)


def test_a_driver_that_refuses_says_why(ask: Callable[..., dict[str, Any]]) -> None:
    assert ask(INIT=9)["error"] == "nvmlInit_v2: Driver Not Loaded (9)"
    assert ask(COUNT=15)["error"] == "nvmlDeviceGetCount_v2: GPU is lost (15)"


def test_a_driver_that_hangs_is_given_up(
    ask: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "_SECONDS", 0.5)
    assert ask(SLEEP=600)["error"] == "NVML gave no answer in 0.5 s"


def test_a_machine_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml-is-not-here.so.1")
    said = nvml.ask(Tools(), threading.Event())
    assert "cannot open shared object file" in said["missing"]
