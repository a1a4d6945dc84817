"""Reading the kernel log: records, what is kept of them, and what cannot be read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.node import kernellog

if TYPE_CHECKING:
    from pathlib import Path

SEGFAULT = b"python3[4711]: segfault at 0 ip 00007f sp 00007ffc error 4 in libc.so.6[1]"


def test_record() -> None:
    record = b"6,1234,5000000,-;" + SEGFAULT + b"\n SUBSYSTEM=x\n DEVICE=+y\n"
    assert kernellog.parse(record, 1000.0) == (1005.0, SEGFAULT.decode())


@pytest.mark.parametrize("record", [b"", b"6;x", b"6,1,two,-;x", b"no semicolon", b"\xff\xfe"])
def test_garbage_is_no_line(record: bytes) -> None:
    assert kernellog.parse(record, 0.0) is None


def test_text_of_others_is_bounded_and_decodes() -> None:
    line = kernellog.parse(b"6,1,0,-;\xff\x1b[2J " + b"x" * 9000, 0.0)
    assert line is not None
    assert line[1].startswith("\\xff\x1b[2J"), "cleaned on the head"
    assert len(line[1]) == kernellog.MAX_TEXT


def test_only_telling_lines_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"6,1,1,-;usb 1-1: new device\n")
    assert kernellog.KernelLog(str(log)).read() == []
    log.write_bytes(b"6,1,1,-;" + SEGFAULT + b"\n")
    reader = kernellog.KernelLog(str(log))
    assert [text for _, text in reader.read()] == [SEGFAULT.decode()]
    assert len(reader.read()) == 1, "kept, not read again"
    reader.close()


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert kernellog.KernelLog(missing).read() == []
    assert kernellog.fact(missing)["ok"] is False
    assert missing in kernellog.fact(missing)["why"]


@pytest.mark.skipif(not kernellog.fact()["ok"], reason="the kernel log cannot be read here")
@pytest.mark.skipif(shutil.which("dmesg") is None, reason="dmesg is missing")
def test_same_faults_as_dmesg() -> None:
    told = subprocess.run(["dmesg", "--time-format", "raw"], capture_output=True, check=False)
    if told.returncode:
        told = subprocess.run(["dmesg"], capture_output=True, check=True)
    faults = re.findall(rb"\S+\[\d+\]: segfault at .*", told.stdout)
    read = [text for _, text in kernellog.KernelLog().read() if "]: segfault at" in text]
    kept = [fault.decode()[: kernellog.MAX_TEXT] for fault in faults]
    assert read == kept[-len(read) :] if read else not kept


def test_a_log_that_nobody_reads_any_more_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"6,1,1,-;" + SEGFAULT + b"\n")
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        assert kernellog.KernelLog(str(log)).read()
    assert len(os.listdir("/proc/self/fd")) == len(before)
