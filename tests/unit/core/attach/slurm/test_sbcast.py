"""When large data goes by sbcast, and what happens when it cannot."""

from __future__ import annotations

import json
import resource
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.attach.slurm import sbcast
from hangtop_core.attach.slurm.sbcast import BULK_FROM, INSTEAD, ROOM_S
from hangtop_core.attach.slurm.srun import BroadcastStep
from hangtop_probe.wire import wire

if TYPE_CHECKING:
    from hangtop_core.attach.connect.channel import Action

NODES = ("n1", "n2", "n3", "n4")
BULK = bytes(range(256)) * (BULK_FROM // 256)


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something on PATH that is called sbcast; what it does is up to the tests."""
    path = tmp_path / "sbcast"
    path.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SBCAST_COMPRESS", "lz4")
    return path


class Step:
    """A broadcast step whose nodes speak as they are told."""

    def __init__(self, nodes: tuple[str, ...] = NODES) -> None:
        self.nodes = nodes
        self.shared = BroadcastStep(nodes, ["srun"], "12+1")
        for number in range(len(nodes)):
            self.say(number)

    def say(self, number: int, **more: Any) -> None:
        message = json.dumps({"id": 0, "relay": number, **more}).encode()
        assert self.shared.output_part(b"%d: " % number + wire.MAGIC + message) is None

    def waiting(self, data: bytes = BULK) -> list[str]:
        return [node for node in self.nodes if self.shared.waits(node, data)]

    def rooms(self) -> list[str] | None:
        """Ask for rooms and get them all; return the command that follows."""
        return self.roomed().argv

    def roomed(self) -> Action:
        """Return all that follows."""
        assert self.waiting() == list(self.nodes)
        assert self.shared.act(0.0).write.startswith(b"* r 32\n")
        for number in range(len(self.nodes)):
            self.say(number, room="3")
        return self.shared.act(0.1)


def test_it_is_sent_once_all_have_a_room_and_used_by_who_took_it() -> None:
    step = Step()
    argv = step.rooms()
    assert argv is not None
    assert argv[:3] == ["env", "-u", "SBCAST_COMPRESS"]
    at = argv.index("sbcast")
    assert argv[at + argv[at:].index("-j") + 1] == "12+1.3"
    file, target = Path(argv[-2]), argv[-1]
    assert file.read_bytes() == BULK
    assert file.stat().st_mode & 0o777 == 0o600
    assert target.startswith("/tmp/hangtop-")
    assert step.waiting() == list(NODES)
    step.shared.acted(0, "")
    assert not file.exists()
    action = step.shared.act(0.2)
    assert action.write.startswith(b"* f ")
    assert action.outcomes == ["done"]
    step.say(0, kept=0)
    step.say(1, kept=0, why="it is damaged")
    assert step.waiting() == ["n3", "n4"]
    frame = step.shared.frame(["n1", "n2"], BULK)
    assert frame == b"* k %d\n" % len(BULK) + BULK + b"0 u 0\n1 u 1\n"
    step.say(2, kept=0, why="damaged here, too")
    assert step.shared.frame(["n3"], BULK) == b"2 u 1\n", "what is kept is not sent again"
    assert step.shared.act(0.3).outcomes[0] == f"n2: it is damaged; {INSTEAD}"


def test_two_nodes_mean_no_more_than_they_say() -> None:
    step = Step()
    step.rooms()
    step.shared.acted(0, "")
    step.say(0, kept=7)
    step.say(9, kept=0)
    assert step.waiting() == list(NODES)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"room": None, "why": "File exists"}, "no room on n2: File exists"),
        ({"room": "3; reboot"}, "no room on n2"),
        ({"room": "4"}, "nodes name different steps"),
    ],
)
def test_without_a_room_on_every_node_nothing_is_sent(said: dict[str, Any], why: str) -> None:
    step = Step()
    step.waiting()
    step.shared.act(0.0)
    for number in (0, 2, 3):
        step.say(number, room="3")
    step.say(1, **said)
    action = step.shared.act(0.1)
    assert action.argv is None
    assert why in " ".join(action.outcomes) + " ".join(step.shared.act(0.2).outcomes)
    assert step.waiting() == []
    # The room is given up on all nodes, and that counts as a number.
    assert step.shared.frame(NODES, BULK).endswith(b"* u 1\n")


def test_a_node_that_says_nothing_is_not_waited_for() -> None:
    step = Step()
    step.waiting()
    step.shared.act(0.0)
    step.say(0, room="3")
    step.shared._carrier._bulk.heard = 1.0  # type: ignore[union-attr]
    assert step.shared.act(1.0 + ROOM_S - 0.1).outcomes == []
    action = step.shared.act(1.0 + ROOM_S + 0.1)
    assert action.outcomes == [f"no answer from n[2-4]; {INSTEAD}"]
    assert action.argv is None


def test_without_sbcast_and_with_one_that_fails_srun_carries_it(program: Path) -> None:
    step = Step()
    step.rooms()
    step.shared.acted(1, "sbcast: error: first\nsbcast: error: No space left on device\n")
    action = step.shared.act(0.2)
    assert action.write == b"* f 4\nnull"
    assert action.outcomes == [f"sbcast: error: No space left on device; {INSTEAD}"]
    assert step.waiting() == []
    program.unlink()
    step = Step()
    assert step.waiting() == list(NODES)
    assert step.shared.act(0.0).outcomes == [f"sbcast is not on PATH; {INSTEAD}"]
    assert step.waiting() == []


def test_without_room_for_its_file_srun_carries_it_and_the_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a disk that is full once the file is there
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    step = Step()
    try:
        action = step.roomed()
        assert action.argv is None
        assert action.outcomes == [f"{folder}: File too large; {INSTEAD}"]
        assert list(folder.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert step.waiting() == []


def test_without_a_folder_for_its_file_srun_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    step = Step()
    action = step.roomed()
    assert action.argv is None
    assert action.outcomes[0].startswith("No usable temporary directory found in ['/nowhere']")
    assert step.waiting() == []


def test_what_is_small_and_what_few_need_goes_as_it_always_did() -> None:
    assert Step().waiting(BULK[:-1]) == []
    assert Step(NODES[: sbcast.NODES_FROM - 1]).waiting() == []
    step = Step()
    assert not step.shared.waits("n1", None)
    step.waiting()
    assert step.waiting(BULK[::-1]) == [], "nor a second thing beside the first"
