"""The captures that tests and pictures are made from: whole, small, and of nobody's machine."""

from __future__ import annotations

import gzip
import ipaddress
import re

import pytest

from support.record import FOLDER, capture, path_of

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
