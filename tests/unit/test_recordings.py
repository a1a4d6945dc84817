"""The captures that tests and pictures are made from, and what real jobs left for tests: whole,
small, and of nobody's machine."""

from __future__ import annotations

import gzip
import ipaddress
import re
from typing import TYPE_CHECKING

import pytest

from support.record import FOLDER, capture, path_of

if TYPE_CHECKING:
    from pathlib import Path

OF_NCCL = [*sorted(FOLDER.glob("logs/nccl_*.out")), *sorted(FOLDER.glob("nccl/*/rank_*"))]
NAMES = sorted(path.stem for path in FOLDER.glob("*.hangtop"))
OURS = re.compile(
    r"(?<![\w./*-])/(?:(?:root|work|mnt|media|srv|data|Users)\b(?!\.)|home/(?!ada\b|folder-)|tmp/(?!folder-|fr_|hangtop-0/))"
)
NOBODYS = [
    ipaddress.ip_network(one)
    for one in ("127.0.0.0/8", "0.0.0.0/32", "192.0.2.0/24", "198.18.0.0/15")
]


def test_there_are_some() -> None:
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_says_nothing_of_the_machine_it_was_made_on(name: str) -> None:
    data = path_of(name).read_bytes()
    assert len(data) < 100_000
    text = gzip.decompress(data).decode()
    assert OURS.search(text) is None
    assert set(re.findall(r'"user":"([^"]*)"', text)) == {"ada"}
    for found in re.findall(r"(?<![\d.])\d+\.\d+\.\d+\.\d+(?![\d.])", text):
        assert any(ipaddress.ip_address(found) in network for network in NOBODYS), found
    assert capture(name).header.targets in ("node1", "node-[1-4]")
    assert len(capture(name).pictures) > 10, "with its history"


@pytest.mark.parametrize("path", OF_NCCL, ids=lambda path: str(path.relative_to(FOLDER)))
def test_what_jobs_over_nccl_left_says_nothing_of_the_machine_either(path: Path) -> None:
    text = path.read_bytes().decode("latin-1")
    assert OURS.search(text) is None
    assert len(text) < 20_000
    for found in re.findall(r"(?<![\d.])\d+\.\d+\.\d+\.\d+(?=[<:])", text):
        assert any(ipaddress.ip_address(found) in network for network in NOBODYS), found


def test_jobs_over_nccl_left_logs_and_dumps() -> None:
    assert len(OF_NCCL) == 5 + 4 * 4 - 1
