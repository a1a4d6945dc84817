"""Starting a fleet, and the launchers that let a session attach to it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from hangtop_core.attach.connect.launcher import ByHand, Ending, Wave

if TYPE_CHECKING:
    from simulated.story import Story

HERE = Path(__file__).parent
LOGIN = Wave("the fleet", 64, 5.0)
PLAYERS = 2
"""Processes that share the nodes, so that playing them is not what is measured."""


class FleetLauncher:
    """Reaches one simulated node by a child process of its own, as ssh would be."""

    channel = None
    via = "fleet"
    patience = 0.0
    by_hand = ByHand()
    wave = LOGIN

    def __init__(self, program: Path, path: Path, node: str) -> None:
        self._argv = [str(program), str(path), node]
        self.node = node

    def argv(self) -> list[str]:
        """The child that hands its pipes to the player."""
        return self._argv

    def opening(self) -> bytes:
        """Nothing has to be sent first."""
        return b""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """A connection that broke is made again."""
        return Ending("lost" if was_ready else "unreachable", "its connection broke", retry=True)

    def shell(self) -> list[str] | None:
        """There is no shell there."""
        return None


class Fleet:
    """Plays a story; a context manager."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self._room = tempfile.TemporaryDirectory(prefix="fleet-")
        self._players: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Compile the child, start the players, wait until they listen."""
        room = self.room
        subprocess.run(["cc", "-O2", "-static", "-o", room / "pass", HERE / "pass.c"], check=True)
        story = msgspec.json.encode(self.story).decode()
        for number in range(PLAYERS):
            argv = [sys.executable, "-m", "simulated.play", str(room / str(number)), story]
            argv += [str(number), str(PLAYERS)]
            self._players.append(subprocess.Popen(argv, stdin=subprocess.PIPE))
        while not all((room / str(number)).exists() for number in range(PLAYERS)):
            if any(player.poll() is not None for player in self._players):
                raise RuntimeError("a player of the fleet ended")
            time.sleep(0.01)
        return self

    @property
    def room(self) -> Path:
        """Where it listens."""
        return Path(self._room.name)

    def launchers(self) -> list[FleetLauncher]:
        """One for each node."""
        return launchers(self.room, self.story)

    def tell(self, what: str) -> None:
        """Let something happen now: `hang`, or `churn SHARE`."""
        for player in self._players:
            assert player.stdin is not None
            player.stdin.write(f"{what}\n".encode())
            player.stdin.flush()

    def pids(self) -> list[int]:
        """The processes that play the nodes."""
        return [player.pid for player in self._players]

    def __exit__(self, *_: object) -> None:
        for player in self._players:
            player.kill()
            player.communicate()
        self._room.cleanup()


def launchers(room: Path, story: Story) -> list[FleetLauncher]:
    """One for each node of a fleet that listens in a room."""
    return [
        FleetLauncher(room / "pass", room / str(number % PLAYERS), story.name(number))
        for number in range(story.nodes)
    ]
