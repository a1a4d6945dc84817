"""The relay as a real process, with the boot line a node's shell runs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.slurm.srun import KEEP_FROM, BroadcastStep
from hangtop_core.text import rank_sets
from hangtop_probe.wire import relay, rooms, wire
from hangtop_probe.wire.boot import BOOT
from support.booted import Piped
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NODES = ("n1", "n2", "n3")
ECHO = """
import os
print(dict(short=os.environ.get("HANGTOP_SHORT_LINES")), flush=True)
while True:
    data = r.read1(100000)
    print(len(data), data[:20], flush=True)
    if not data: break
"""


def run(
    name: str, frames: Sequence[bytes], nodes: Sequence[str] = NODES
) -> tuple[int, list[str], str]:
    """Run the relay as the node ``name``; return exit status, lines and standard error."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-u", "-c", BOOT],
        input=bundle.relay(nodes) + b"".join(frames),
        env={"PATH": os.environ["PATH"], "SLURMD_NODENAME": name},
        capture_output=True,
        timeout=20,
        check=False,
    )
    return done.returncode, done.stdout.decode().split("\n")[:-1], done.stderr.decode()


def step() -> BroadcastStep:
    return BroadcastStep(NODES, ["srun"])


def boot(code: str) -> bytes:
    return bundle._block(code.encode())


def test_a_node_gets_its_share_only_and_in_order() -> None:
    one = step()
    frames = [
        one.frame(NODES, boot(ECHO)),
        one.frame(["n1"], b"not for n2\n"),
        one.frame(["n2", "n3"], b"first,"),
        one.frame(["n2"], b"second"),
        one.frame(["n2"], None),
        one.frame(["n2"], b"after its end\n"),
    ]
    code, lines, _ = run("n2", frames)
    assert json.loads(lines[0].partition("HT1 ")[2]) == {"id": 0, "relay": 1}
    assert lines[1] == "{'short': '1'}"
    heard = "".join(lines[2:])
    assert code == 0
    assert "not for" not in heard
    assert "after" not in heard
    assert heard.endswith("0 b''")
    assert 0 < heard.index("first") < heard.index("second")


def test_what_many_need_is_sent_once_and_kept() -> None:
    one = step()
    big = os.urandom(3 * KEEP_FROM)
    first, second = one.frame(["n1"], big), one.frame(["n2"], big)
    assert len(first) > len(big)
    assert len(second) < 20
    frames = [one.frame(NODES, boot(ECHO)), first, second]
    for name in ("n1", "n2", "n3"):
        _, lines, _ = run(name, frames)
        got = sum(int(line.split()[0]) for line in lines[2:])
        assert got == (0 if name == "n3" else len(big)), name


def test_a_node_nobody_asked_for_says_so() -> None:
    code, lines, stderr = run("n9", [])
    assert (code, lines) == (5, [])
    assert "n9 is none of the nodes" in stderr


@pytest.mark.parametrize(
    "bad", [b"junk\n", b"* d 100\nshort", b"* x 1\n", b"* u 7\n", b"a-b d 1\nx"]
)
def test_a_damaged_stream_is_the_end_of_input(bad: bytes) -> None:
    code, lines, _ = run("n1", [step().frame(NODES, boot(ECHO)), bad])
    assert code == 0
    assert lines[-1] == "0 b''"


BULK = os.urandom(3 * KEEP_FROM)
TOKEN = "0123456789abcdef" * 2


class Told(Piped):
    """A relay that is spoken to step by step, with its rooms under a directory of the test."""

    def __init__(self, folder: Path) -> None:
        self.room = folder / f"room-{TOKEN}"
        frames = step().frame(NODES, boot(ECHO))
        first = zlib.decompress(bundle.relay(NODES).partition(b"\n")[2]).decode()
        assert rooms.ROOM in first
        first = first.replace(f'"{rooms.ROOM}"', repr(f"{folder}/room-"))
        super().__init__(
            [sys.executable, "-I", "-S", "-u", "-c", BOOT],
            {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n2", "SLURM_STEP_ID": "3"},
        )
        self.send(bundle._block(first.encode()) + frames)
        self.lines: list[str] = []
        assert self.message() == {"id": 0, "relay": 1}

    def message(self) -> dict[str, Any]:
        while True:
            line = self.line().decode()
            assert line
            if "HT1" in line:
                return json.loads(line.partition("HT1 ")[2])  # type: ignore[no-any-return]
            self.lines.append(line)

    def make_room(self) -> dict[str, Any]:
        self.send(b"* r 32\n" + TOKEN.encode())
        return self.message()

    def take(self, data: bytes = BULK) -> dict[str, Any]:
        told = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        told_bytes = json.dumps(told).encode()
        self.send(b"* f %d\n" % len(told_bytes) + told_bytes)
        return self.message()

    def got(self) -> int:
        """End its input; return how many bytes came for this node."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.lines += out.decode().splitlines()
        return sum(int(line.split()[0]) for line in self.lines[1:])


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path)
    yield told
    told.process.kill()
    told.process.communicate()


def test_what_lies_in_its_room_is_taken_as_if_it_had_been_sent(told: Told) -> None:
    assert told.make_room() == {"id": 0, "relay": 1, "room": "3"}
    assert told.room.stat().st_mode & 0o777 == 0o700
    (told.room / rooms.FILE).write_bytes(BULK)
    assert told.take() == {"id": 0, "relay": 1, "kept": 0}
    told.send(b"1 u 0\n0 u 0\n")
    assert told.got() == len(BULK)
    assert not told.room.exists()


def plant_damage(file: Path) -> None:
    file.write_bytes(BULK[:-1] + bytes([BULK[-1] ^ 1]))


def plant_link(file: Path) -> None:
    (file.parent.parent / "elsewhere").write_bytes(BULK)
    file.symlink_to(file.parent.parent / "elsewhere")


def plant_pipe(file: Path) -> None:
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (plant_damage, "not what was sent"),
        (plant_link, "Too many levels of symbolic links"),
        (plant_pipe, "not ours"),
        (lambda file: None, "No such file"),
    ],
)
def test_what_is_not_what_was_sent_is_not_taken(
    told: Told, plant: Callable[[Path], None], why: str
) -> None:
    told.make_room()
    plant(told.room / rooms.FILE)
    said = told.take()
    assert said["kept"] == 0
    assert why in said["why"]
    assert not told.room.exists()
    told.send(b"* k 5\nagain1 u 1\n")
    assert told.got() == 5
    left = {file.name: file.read_bytes() for file in told.room.parent.iterdir()}
    assert left == ({"elsewhere": BULK} if plant is plant_link else {}), "a link is not followed"


def test_a_room_that_is_there_already_is_nobody_s(told: Told, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / rooms.FILE).write_text("kept")
    told.room.symlink_to(tmp_path / "victim")
    said = told.make_room()
    assert said["room"] is None
    assert "File exists" in said["why"]
    told.send(b"* f 4\nnull")
    assert told.got() == 0
    assert (tmp_path / "victim" / rooms.FILE).read_text() == "kept"


@pytest.mark.parametrize("how", [b"", b"* f 4\nnull", b"1 e 0\n", b"junk\n"])
def test_a_room_goes_with_its_relay(told: Told, how: bytes) -> None:
    told.make_room()
    (told.room / rooms.FILE).write_bytes(BULK)
    told.send(how)
    told.got()
    assert not told.room.exists()


def test_the_probe_behind_it_speaks_in_short_lines() -> None:
    one = step()
    request = wire.encode({"op": "watch", "id": 1, "interval": 1.0, "pids": None})
    probe = Piped(
        [sys.executable, "-I", "-S", "-u", "-c", BOOT],
        {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n3", "HOME": os.environ["HOME"]},
    )
    with probe.process:
        probe.send(bundle.relay(NODES) + one.frame(NODES, bundle.opening()))
        reader = wire.Reader()
        seen = []
        while not any("data" in message for message in seen):
            line = probe.line()
            assert line
            assert len(line) <= wire.SHORT_LINE
            message = reader.feed(line.rstrip(b"\n"))
            if message is not None:
                seen.append(message)
                if "hello" in message:
                    probe.send(one.frame(["n3"], request[0]))
        probe.process.communicate(timeout=PATIENCE)
        assert probe.process.returncode == 0
    assert [key for message in seen for key in message if key != "id"][:3] == [
        "relay",
        "boot",
        "boot",
    ]
    assert any("hello" in message for message in seen)


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(0, 40))
def test_ranges_name_those_they_hold(numbers: set[int], own: int) -> None:
    assert relay.names_me(rank_sets.fold(numbers), own) == (own in numbers)
    assert relay.names_me("*", own)
