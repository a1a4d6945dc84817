"""The process that plays nodes: real pipes, one loop, as many nodes as it is given.

    python -m simulated.play SOCKET STORY-AS-JSON FIRST STEP

It plays node FIRST and every STEP-th after it; they are made before it listens, as nodes are there
before somebody looks at them. Connections come over a unix socket with the descriptors of `pass`:
what it reads from and writes to are the very pipes the head made for this node. Standard input
brings what is to happen at once, whatever the story says: `hang`, or `churn SHARE`; with its end
the play is over.
"""

from __future__ import annotations

import array
import base64
import contextlib
import os
import selectors
import socket
import sys
import time
import zlib
from typing import TYPE_CHECKING

import msgspec

from hangtop_probe.wire import wire
from simulated.node import SimulatedNode
from simulated.story import Story

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulated.node import Message

LOOK_S = 0.05
"""Seconds between two looks at which of all nodes have something to say."""


class Connection:
    """One connection of the head to one node."""

    def __init__(
        self, control: socket.socket, fd_in: int, fd_out: int, node: SimulatedNode
    ) -> None:
        self.control, self.fd_in, self.fd_out, self.node = control, fd_in, fd_out, node
        self.opened = 0.0
        self._reader = wire.Reader()
        self._rest = b""
        self._out = bytearray()
        os.set_blocking(fd_in, False)
        os.set_blocking(fd_out, False)

    def read(self) -> list[Message] | None:
        """Requests that came; None at the end."""
        try:
            data = os.read(self.fd_in, 65536)
        except BlockingIOError:
            return []
        if not data:
            return None
        lines, self._rest = wire.split_lines(self._rest + data)
        return [message for line in lines if (message := self._reader.feed(line)) is not None]

    def say(self, message: Message) -> None:
        """Queue a message."""
        self._out += encoded(message)

    def flush(self) -> bool:
        """Write what the pipe takes; False when nobody reads any more."""
        while self._out:
            try:
                del self._out[: os.write(self.fd_out, self._out)]
            except BlockingIOError:
                return True
            except BrokenPipeError:
                return False
        return True

    def close(self, status: int) -> None:
        """Let the child of the head end with a status."""
        os.close(self.fd_in)
        os.close(self.fd_out)
        with contextlib.suppress(OSError):
            self.control.send(bytes([status]))
        self.control.close()


def encoded(message: Message) -> bytes:
    """The line that `wire.encode` makes, in a third of the time: who plays has no cores apart.

    What would have to be cut is not among what nodes of a story say.
    """
    body = msgspec.json.encode(message)
    if len(body) >= wire.COMPRESS_FROM:
        body = b'{"z":"' + base64.b64encode(zlib.compress(body, 1)) + b'"}'
    assert len(body) < wire.MAX_LINE - len(wire.MAGIC)
    return wire.MAGIC + body + b"\n"


class Player:
    """All nodes of one process."""

    def __init__(self, path: str, story: Story, numbers: Iterable[int]) -> None:
        self.story = story
        self._began = time.monotonic()
        self._epoch = time.time()
        self._nodes = {
            story.name(number): SimulatedNode(number, story, self._epoch) for number in numbers
        }
        self._live: dict[int, Connection] = {}
        self._late: list[tuple[float, Connection, Message]] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(4096)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, None)

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Play until standard input ends."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, "told")
        look = 0.0
        while True:
            for key, _ in self._selector.select(max(look - self.now(), 0.0)):
                if key.data == "told":
                    told = sys.stdin.readline()
                    if not told:
                        return
                    self._told(told.split())
                elif key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            if self.now() >= look:
                self._tick(self.now())
                look = self.now() + LOOK_S

    def _told(self, words: list[str]) -> None:
        changes = {"hang_at": self.now()} if words[0] == "hang" else {"churn": float(words[1])}
        self.story = msgspec.structs.replace(self.story, **changes)
        for node in self._nodes.values():
            node.story = self.story

    def _accept(self) -> None:
        control, _ = self._listening.accept()
        data, ancillary, _, _ = control.recvmsg(256, socket.CMSG_SPACE(8))
        fds = array.array("i")
        for _, _, content in ancillary:
            fds.frombytes(content[:8])
        node = self._nodes[data.decode()]
        node.connected()
        live = Connection(control, fds[0], fds[1], node)
        live.opened = self.now()
        self._live[live.fd_in] = live
        self._selector.register(live.fd_in, selectors.EVENT_READ, live)
        if node.number not in self.story.dead:
            self._say(live, node.hello(self.now()))
            live.flush()

    def _read(self, live: Connection) -> None:
        if live.fd_in not in self._live:
            return
        messages = live.read()
        if messages is None:
            self._drop(live, 0)
            return
        if live.node.number in self.story.dead:
            return
        for message in messages:
            for said in live.node.answer(message, self.now()):
                self._say(live, said)
        self._move(live, self.now())

    def _say(self, live: Connection, message: Message) -> None:
        if live.node.number in self.story.slow:
            self._late.append((self.now() + self.story.slow_s, live, message))
        else:
            live.say(message)

    def _tick(self, now: float) -> None:
        ripe = [one for one in self._late if one[0] <= now]
        self._late = [one for one in self._late if one[0] > now]
        for _, live, message in ripe:
            if live.fd_in in self._live:
                live.say(message)
        for live in list(self._live.values()):
            self._move(live, now)

    def _move(self, live: Connection, now: float) -> None:
        """Say and write what is due on one connection."""
        piece = live.node.tick(now)
        if piece is not None:
            self._say(live, piece)
        if not live.flush():
            self._drop(live, 0)
        elif live.node.number in self.story.flapping and now - live.opened > self.story.flap_s:
            self._drop(live, 255)

    def _drop(self, live: Connection, status: int) -> None:
        del self._live[live.fd_in]
        self._selector.unregister(live.fd_in)
        live.close(status)


def main() -> None:
    """Play the story of the command line."""
    path, told, first, step = sys.argv[1:5]
    story = msgspec.json.decode(told, type=Story)
    Player(path, story, range(int(first), story.nodes, int(step))).run()


if __name__ == "__main__":
    main()
