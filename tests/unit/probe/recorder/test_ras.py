"""NCCL's RAS is asked of a process that has all that marks one (a double, see support.ras)."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from hangtop_probe.node import permission
from hangtop_probe.recorder import ras
from hangtop_probe.wire.requests import Refused
from support.probe_client import ProbeClient
from support.processes import PATIENCE
from support.ras import document, double, free_port, rank

if TYPE_CHECKING:
    from pathlib import Path

RIGHTS = permission.rights()


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("2.24.3", "makes a communicator"),
        ("2.26.5", "makes a communicator"),
        ("2.27.3", "corrupts the memory"),
        ("2.28.9", "corrupts the memory"),
        ("2.29.1", "corrupts the memory"),
        ("2.29.2", None),
        ("2.29.7", None),
        ("2.30.7", None),
        ("2.30", None),
    ],
)
def test_versions_that_end_jobs(version: str, told: str | None) -> None:
    hazard = ras.hazard_of(ras.parse_version(version))
    assert hazard is None if told is None else hazard is not None and told in hazard


def test_asked_once_and_sent_in_parts(tmp_path: Path) -> None:
    report = document(([rank(n, 100 + n) for n in range(4000)], []))
    assert len(report) > ras.PART
    with double(tmp_path, report) as other, ProbeClient() as probe:
        *parts, end = probe.ask(op="ras", pids=[other.pid])
        assert "".join(part["data"]["text"] for part in parts) == report
        assert len(parts) == -(-len(report) // ras.PART)
        assert other.asked == ["status"]
    said = end["end"]
    assert (said["pid"], said["form"], said["version"]) == (other.pid, "json", "2.29.7")
    assert said["start"]
    assert said["took"] < PATIENCE


def test_what_is_not_asked(tmp_path: Path) -> None:
    with double(tmp_path, "never", library="libnccl.so.2.27.5", format="ERROR: no") as old:
        with pytest.raises(Refused, match=r"NCCL 2\.27\.5 is not asked: it corrupts"):
            ras.find([old.pid], RIGHTS)
        found = ras.find([old.pid], RIGHTS, anyway=True)
        assert found.version == "2.27.5"
        assert old.asked == []
        # Asked all the same, it is asked for the text: JSON came later.
        assert ras.ask(found) == ("text", b"never")
        assert old.asked == ["verbose status"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"env": {"NCCL_RAS_ENABLE": "0"}}, "NCCL_RAS_ENABLE=0"),
        ({"env": {"NCCL_RAS_ADDR": "localhost:1"}}, "listens to nothing at localhost:1"),
        ({"library": "libnccl.so.2.21.5"}, "has no RAS"),
        ({"library": "libother.so"}, "no NCCL loaded"),
    ],
)
def test_reasons(tmp_path: Path, options: dict[str, object], why: str) -> None:
    with double(tmp_path, "never", **options) as other:  # type: ignore[arg-type]
        with pytest.raises(Refused, match=why):
            ras.find([other.pid], RIGHTS)
        assert other.asked == []


def test_the_usual_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(ras, "DEFAULT", f"localhost:{port}")
    with double(tmp_path, "x", port=port, env={"NCCL_RAS_ADDR": ""}) as other:
        assert ras.find([other.pid], RIGHTS).address == f"127.0.0.1:{port}"


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_a_rank_in_a_network_of_its_own(tmp_path: Path) -> None:
    inside = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    with double(tmp_path, "never", prefix=inside) as other:
        with pytest.raises(Refused, match="in a network of its own"):
            ras.find([other.pid], RIGHTS)
        assert other.asked == []


def test_another_job_on_the_same_port_is_not_asked(tmp_path: Path) -> None:
    port = free_port()
    with (
        double(tmp_path / "a", "mine", port=port) as mine,
        double(tmp_path / "b", "not mine", port=port) as stranger,
    ):
        with pytest.raises(Refused, match="another job listen"):
            ras.find([mine.pid], RIGHTS)
        # As ranks of one job they answer for each other.
        assert ras.find([mine.pid, stranger.pid], RIGHTS).pid == mine.pid
        assert mine.asked + stranger.asked == []


def test_a_stopped_rank_beside_it_does_not_get_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN so many greetings that chance will not send all of them to the stopped one
    monkeypatch.setattr(ras, "GREETING_S", 0.1)
    monkeypatch.setattr(ras, "GREETINGS", 60)
    port = free_port()
    with (
        double(tmp_path / "a", "mine", port=port) as mine,
        double(tmp_path / "b", "mine", port=port) as stopped,
    ):
        os.kill(stopped.pid, signal.SIGSTOP)
        found = ras.find([mine.pid, stopped.pid], RIGHTS)
        for _ in range(4):
            assert ras.ask(found, 30.0) == ("json", b"mine")
        assert len(mine.asked) == 4


def test_a_stopped_rank_beside_it_that_takes_no_more_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ras, "GREETING_S", 0.1)
    monkeypatch.setattr(ras, "GREETINGS", 60)
    port = free_port()
    with double(tmp_path / "b", "mine", port=port) as stopped, ExitStack() as open_ones:
        os.kill(stopped.pid, signal.SIGSTOP)
        with suppress(TimeoutError):
            while True:
                connecting = socket.create_connection(("127.0.0.1", port), timeout=0.1)
                open_ones.enter_context(connecting)
        with double(tmp_path / "a", "mine", port=port) as mine:
            found = ras.find([mine.pid, stopped.pid], RIGHTS)
            for _ in range(4):
                assert ras.ask(found, 30.0) == ("json", b"mine")


def test_a_gone_rank_and_none(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        ras.find([], RIGHTS)
    with pytest.raises(Refused):
        ras.find([2**30], RIGHTS)


def test_an_answer_that_does_not_end(tmp_path: Path) -> None:
    with double(tmp_path, "{", hang=True) as other:
        began = time.monotonic()
        with pytest.raises(Refused, match=r"no whole answer in 0\.5 s") as refused:
            ras.ask(ras.find([other.pid], RIGHTS), 0.5)
        assert refused.value.kind == "timeout"
        assert time.monotonic() - began < PATIENCE / 2


def test_an_answer_without_limit(tmp_path: Path) -> None:
    with double(tmp_path, "x" * (1 << 20), times=100) as other:
        with pytest.raises(Refused, match="more than 32 MiB"):
            ras.ask(ras.find([other.pid], RIGHTS))
        assert other.asked == ["status"]


def test_an_answer_in_another_language(tmp_path: Path) -> None:
    with double(tmp_path, "x", format="ERROR: Invalid format") as other:
        with pytest.raises(Refused, match="it says ERROR"):
            ras.ask(ras.find([other.pid], RIGHTS))
        # What says no to JSON is not what its version says: it is asked nothing more.
        assert other.asked == []
