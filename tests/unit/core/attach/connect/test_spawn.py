"""Programs are started with no descriptor of ours, whatever hangtop itself was given."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, resource, sys
from hangtop_core.attach.connect.child import Child
os.dup2(1, 200, inheritable=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
child = Child(["ls", "/proc/self/fd"])
os.set_blocking(child.stdout, True)
print(b"".join(iter(lambda: os.read(child.stdout, 999), b"")).decode().split(), child.end())
"""


@pytest.mark.parametrize("limit", [64, 1024])
def test_a_descriptor_beyond_the_limit_keeps_nothing_from_starting(limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(limit)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "['0', '1', '2', '3'] 0\n", done.stderr
