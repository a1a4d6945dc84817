"""Transfer of large data to the nodes of a broadcast srun by Slurm's sbcast, from node to node.

srun itself sends its input to every node; sbcast sends a file to a few, which pass it on. It writes
one path on all nodes, so every relay first makes a directory with an unguessable name: the room.
When all have one, sbcast runs beside the srun; then every relay takes the file out of its room,
confirms that, and removes both. If anything fails, the data go through srun's input.

`Carrier` does not wait and starts nothing itself: the `router` asks it what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any, Literal

from hangtop_core.attach.connect.channel import Action
from hangtop_core.attach.slurm.slurm_reasons import UNREACHED
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean
from hangtop_probe.wire import rooms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BULK_FROM = 1 << 20
"""Bytes from which sbcast is worth the two exchanges with all nodes that it takes."""
NODES_FROM = 4
"""Nodes from which it is faster: see docs/performance.md."""
ROOM_S = 2.0
"""Seconds without any answer after which missing rooms are not waited for."""
SEND_S = 15.0
"""Seconds that sbcast may take."""
MESSAGE_S = 5
"""Seconds that a node may take to answer sbcast, which fails after that."""

INSTEAD = "sent through srun's own input instead"
WITHOUT = "started again without it"
_STEP = re.compile(r"\d{1,10}")


class _Bulk:
    """The data to be brought to all nodes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.token = secrets.token_hex(16)
        self.state: Literal["new", "rooms", "sending", "sent", "failed"] = "new"
        self.heard = 0.0
        """When a node last confirmed a room, or was first asked."""
        self.steps: dict[str, str] = {}
        """By node with a room: the step that it reports."""
        self.index = 0
        """Index at which relays keep the data, once sent."""
        self.took: set[str] = set()
        self.refused: set[str] = set()


class Carrier:
    """Carries large data to all nodes of one step, and knows which nodes have them."""

    def __init__(self, job: str, nodes: Sequence[str], kept: list[bytes | None]) -> None:
        """``job`` is in sbcast's form: ``123``, or ``123+1`` for a component.

        ``kept`` has the data that relays keep, in their order; None for data sent by sbcast.
        """
        self._job = job
        self._nodes = frozenset(nodes)
        self._kept = kept
        self._bulk: _Bulk | None = None
        self._file: IO[bytes] | None = None
        self._write = b""
        self._outcomes: list[str] = []

    def waits(self, node: str, data: bytes) -> bool:
        """Return whether ``data`` is yet to be brought to this node by sbcast."""
        if len(data) < BULK_FROM or len(self._nodes) < NODES_FROM:
            return False
        if self._bulk is None:
            self._bulk = _Bulk(data)
        bulk = self._bulk
        if bulk.data != data or bulk.state == "failed":
            return False  # only one block is so large; any other goes through srun's input
        return bulk.state != "sent" or node not in bulk.took | bulk.refused

    def index(self, node: str, data: bytes) -> int | None:
        """Return where this node keeps ``data``; None if they did not come by sbcast."""
        bulk = self._bulk
        return bulk.index if bulk and node in bulk.took and bulk.data == data else None

    def heard(self, node: str, report: Mapping[str, Any]) -> None:
        """Handle a relay's report about its room."""
        bulk = self._bulk
        if bulk is None:
            return
        why = clean(str(report.get("why")), 200)
        if bulk.state == "rooms" and "room" in report:
            step = report["room"]
            if isinstance(step, str) and _STEP.fullmatch(step):
                bulk.steps[node] = step
                bulk.heard = time.monotonic()
            else:
                self._fail(bulk, f"no room on {node}: {why}")
        elif bulk.state == "sent" and report.get("kept") == bulk.index:
            if report.get("why") is None:
                bulk.took.add(node)
            else:
                bulk.refused.add(node)
                self._outcomes.append(f"{node}: {why}; {INSTEAD}")

    def act(self, mono: float) -> Action:
        """Return the work that is due."""
        bulk, argv = self._bulk, None
        if bulk is not None and bulk.state == "new":
            bulk.state, bulk.heard = "rooms", mono
            self._write += _frame("r", bulk.token.encode())
            if shutil.which("sbcast") is None:
                self._fail(bulk, "sbcast is not on PATH")
        elif bulk is not None and bulk.state == "rooms":
            missing = self._nodes - bulk.steps.keys()
            if not missing:
                argv = self._sbcast(bulk)
            elif mono - bulk.heard > ROOM_S:
                self._fail(bulk, f"no answer from {nodesets.fold(missing)}")
        write, self._write = self._write, b""
        outcomes, self._outcomes = self._outcomes, []
        what = f"sbcast of {len(bulk.data) / 1e6:.1f} MB" if bulk is not None else ""
        return Action(write, argv, SEND_S, what, outcomes)

    def _sbcast(self, bulk: _Bulk) -> list[str] | None:
        """Write the file and return the command that sends it."""
        steps = set(bulk.steps.values())
        if len(steps) != 1:
            self._fail(bulk, "nodes name different steps")
            return None
        try:
            self._file = tempfile.NamedTemporaryFile(prefix="hangtop-")  # noqa: SIM115
            self._file.write(bulk.data)
            self._file.flush()
        except OSError as error:
            self._close()
            where = (
                f"{tempfile.tempdir}: " if tempfile.tempdir else ""
            )  # None where no directory is usable
            self._fail(bulk, f"{where}{clean(error.strerror or str(error), 200)}")
            return None
        bulk.state = "sending"
        step = f"{self._job}.{steps.pop()}"
        target = f"{rooms.ROOM}{bulk.token}/{rooms.FILE}"
        return ["sbcast", "-f", "-t", f"{MESSAGE_S}", "-j", step, self._file.name, target]

    def acted(self, code: int | None, stderr: str) -> list[bytes]:
        """Handle the end of the command that `act` returned; see `channel.Carrying`."""
        self._close()
        bulk = self._bulk
        if bulk is None or bulk.state != "sending":
            return []
        if code != 0:
            last = clean(stderr.strip().rpartition("\n")[2], 200) or f"sbcast ended with {code}"
            unreached = [line.encode() for line in stderr.splitlines() if UNREACHED.search(line)]
            self._fail(bulk, last, WITHOUT if unreached else INSTEAD)
            return unreached
        bulk.state, bulk.index = "sent", len(self._kept)
        digest = hashlib.sha256(bulk.data).hexdigest()
        self._announce({"size": len(bulk.data), "sha256": digest})
        self._outcomes.append("done")
        return []

    def _close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # data that could not be written are tried once more
                self._file.close()
            self._file = None

    def _announce(self, what: object) -> None:
        self._kept.append(None)
        self._write += _frame("f", json.dumps(what).encode())

    def _fail(self, bulk: _Bulk, why: str, then: str = INSTEAD) -> None:
        """Let the data go through srun's input; rooms are removed."""
        bulk.state = "failed"
        self._announce(None)
        self._outcomes.append(f"{why}; {then}")


def _frame(kind: str, data: bytes) -> bytes:
    """Return a frame of `hangtop_probe.wire.relay` for all nodes."""
    return f"* {kind} {len(data)}\n".encode() + data
