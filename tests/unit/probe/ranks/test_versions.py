"""Versions and addresses, from files as real nodes have them."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from hangtop_probe.node import node
from hangtop_probe.ranks import versions

WHEEL = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.9.1+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = None
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WHEEL, {"torch": "2.9.1+cu128", "cuda": "12.8"}),
        ("__version__ = '1.13.1'\ncuda = '11.6'\n", {"torch": "1.13.1", "cuda": "11.6"}),
        ('__version__ = "2.7.0"\nhip: Optional[str] = "6.3"', {"torch": "2.7.0", "hip": "6.3"}),
        ("import os; __version__ = f()", {}),
    ],
)
def test_a_version_file(text: str, found: dict[str, str]) -> None:
    assert versions.parse_version_file(text) == found


def test_a_process_without_torch_has_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert versions.read(process.pid) == {}
        process.communicate()
    assert versions.read(2**22 + 1) == {}


def test_a_process_with_torch_is_told_from_outside() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch on this machine")
    code = "import torch, sys; print(torch.__version__, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        version = process.stdout.readline().strip()
        found = versions.read(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert found["torch"] == version
    assert platform.python_version().startswith(found["python"] + ".")


def test_nccl_is_told_by_the_library_or_its_wheel(tmp_path: Path) -> None:
    (tmp_path / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    folder = str(tmp_path / "torch")
    mounts = versions.procfs.parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())
    pid = os.getpid()
    wheel = "/x/nvidia/nccl/lib/libnccl.so.2"
    assert versions._nccl(pid, wheel, folder, mounts) == "2.27.5"
    assert versions._nccl(pid, "/usr/lib/libnccl.so.2.26.2", folder, mounts) == "2.26.2"
    assert versions._nccl(pid, wheel, "/nowhere/torch", mounts) is None


def test_nothing_is_read_from_a_network_file_system() -> None:
    mounts = versions.procfs.parse_mountinfo(
        b"24 1 254:0 / / rw - ext4 /dev/vda rw\n31 24 0:45 / /nfs rw - nfs4 filer:/export rw\n"
    )
    folder = "/nfs/envs/a/lib/python3.11/site-packages/torch"
    assert versions._torch(os.getpid(), folder, mounts) == {"torch_folder": folder}


def test_addresses_of_this_machine() -> None:
    found = node.addresses()
    assert found == sorted(set(found))
    assert not [one for one in found if one.startswith(("127.", "fe80:")) or one == "::1"]
    done = subprocess.run(
        ["hostname", "-I"], capture_output=True, text=True, check=False
    ).stdout.split()
    assert set(done) <= set(found)
