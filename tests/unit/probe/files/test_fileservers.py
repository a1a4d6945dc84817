"""Connections to file servers, as Linux 6.1 showed them while an NFS server was cut off."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from hangtop_core.model.descriptors import FileServer
from hangtop_probe.descriptors import descriptors, nodewide
from hangtop_probe.files import fileservers
from hangtop_probe.net.sockets import parse_inet
from hangtop_probe.node import permission
from hangtop_probe.proc import procfs

RECORDED = Path(__file__).parents[3] / "recordings" / "kernel-6.1"


def mounted(**changed: str) -> procfs.Mount:
    found = procfs.parse_mountinfo((RECORDED / "mountinfo").read_bytes())
    return next(m for m in found if m.fstype == "nfs4")._replace(**changed)


def server(name: str, whole: bool = True) -> FileServer | None:
    sockets = parse_inet((RECORDED / name).read_bytes(), "tcp") if name else []
    rows = fileservers.stand([(mounted(), "10.88.0.2:2049")], sockets, whole)
    return msgspec.convert(rows[0], FileServer) if rows else None


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("tcp-up", None),
        (
            "tcp-unanswered",
            "does not answer: what was sent to 10.88.0.2:2049 is not acknowledged, sent 7 times "
            "again",
        ),
        (
            "tcp-connecting",
            "does not answer: the connection to 10.88.0.2:2049 is in SYN_SENT",
        ),
        ("", "is not connected: the node has no connection to 10.88.0.2:2049"),
    ],
)
def test_how_the_connection_of_a_mount_stands(name: str, trouble: str | None) -> None:
    found = server(name)
    assert found is not None
    assert (found.mount, found.fstype, found.server) == ("/mnt/data", "nfs4", "filer")
    assert found.trouble == trouble


def test_that_there_is_none_says_nothing_in_a_network_of_its_own() -> None:
    assert server("", whole=False) is None


def test_of_several_connections_the_worst_that_stands_counts() -> None:
    lines = (RECORDED / "tcp-unanswered").read_bytes() + (RECORDED / "tcp-up").read_bytes()
    both = parse_inet(lines, "tcp")
    for sockets in (both, both[::-1]):
        (row,) = fileservers.stand([(mounted(), "10.88.0.2:2049")], sockets, True)
        assert row["retransmits"] == 7


@pytest.mark.parametrize(
    ("changed", "remote"),
    [
        ({}, "10.88.0.2:2049"),
        ({"options": "rw,proto=tcp6,port=20490,addr=fd00::2"}, "[fd00::2]:20490"),
        ({"fstype": "cifs", "options": "rw,vers=3.1.1,addr=10.0.0.9"}, "10.0.0.9:445"),
        ({"options": "rw,proto=rdma,addr=10.0.0.9"}, ""),
        ({"options": "rw"}, ""),
        ({"fstype": "lustre"}, ""),
        ({"fstype": "ext4", "options": "rw,addr=10.0.0.9"}, ""),
    ],
)
def test_where_the_server_of_a_mount_is(changed: dict[str, str], remote: str) -> None:
    assert fileservers._remote(mounted(**changed)) == remote


def test_a_process_tells_of_its_servers() -> None:
    piece = descriptors.describe(os.getpid(), nodewide.Node(), permission.Rights(0, True, 0))
    assert isinstance(msgspec.convert(piece["servers"], tuple[FileServer, ...]), tuple)
