"""One simulated node: answers the head as a probe would, from what a real one said.

Process rows, stacks and hello are those of `recorded.json`, for other process ids, ranks and nodes;
meters move as those of ranks that train, until the story lets them hang. Pieces are deltas, and
stacks are sent once per connection, as by the probe.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangtop_probe.table.watch import HELD_S, MAX_REST_S, quiet_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulated.story import Story

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
FIRST_PID = 4000
STEP_NS = 40_000_000
"""CPU time of a main thread in a second of training."""
CREDIT = 64
Message = dict[str, Any]


def _row(rank: int | None) -> tuple[int, Message]:
    for pid, row in RECORDED["piece"]["set"].items():
        if row["rank"] == rank and row["role"] == ("launcher" if rank is None else "rank"):
            return int(pid), row
    raise KeyError(rank)


def _threads(pid: int) -> tuple[list[Message], dict[str, list[Any]]]:
    """The threads py-spy saw of a recorded process, and all recorded stacks by key."""
    known: dict[str, list[Any]] = {}
    for piece in RECORDED["stacks"]:
        known.update(piece["stacks"])
    (mine,) = (piece for piece in RECORDED["stacks"] if piece["pid"] == pid)
    return mine["threads"], known


LAUNCHER, LAUNCHER_ROW = _row(None)
WAITER, WAITER_ROW = _row(0)
CULPRIT, CULPRIT_ROW = _row(2)


class SimulatedNode:
    """The state of one node over all its connections; time comes from outside."""

    def __init__(self, number: int, story: Story, epoch: float) -> None:
        self.number, self.story = number, story
        self._epoch = epoch
        self._random = random.Random(number)
        self._first = number * story.ranks
        self._rows = {FIRST_PID: self._process(LAUNCHER, LAUNCHER_ROW, FIRST_PID, None)}
        for local in range(story.ranks):
            rank = self._first + local
            which = (CULPRIT, CULPRIT_ROW) if rank == story.culprit else (WAITER, WAITER_ROW)
            pid = FIRST_PID + 1 + local
            self._rows[pid] = self._process(*which, pid, rank)
        self._steps = dict.fromkeys(self._rows, 0)
        self._ran = dict.fromkeys(self._rows, 0.0)
        self._arrived = False
        self.connected()

    def connected(self) -> None:
        """Begin a new connection: nothing has been told on it yet."""
        self._watch: Message | None = None
        self._seq = 0
        self._credit = CREDIT
        self._due = 0.0
        self._sent: set[str] = set()
        self._told: dict[int, int] = {}
        self._meters_told: dict[int, Message] = {}
        self._recorder_told: set[int] = set()
        self._minor_at = 0.0
        self._changed_at = self._sent_at = self._promised = 0.0

    def hello(self, now: float) -> Message:
        """The first message of a connection."""
        boot = hashlib.md5(str(self.number).encode()).hexdigest()
        hello = RECORDED["hello"] | {
            "hostname": self.story.name(self.number),
            "clock": self._epoch + now,
            "boot_id": f"{boot[:8]}-{boot[8:12]}-{boot[12:16]}-{boot[16:20]}-{boot[20:]}",
        }
        return {"id": 0, "hello": hello}

    def answer(self, message: Message, now: float) -> Iterator[Message]:
        """What the probe says to a request."""
        op, ident = message["op"], message["id"]
        if op == "ping":
            yield {"id": ident, "end": {"clock": self._epoch + now}}
        elif op == "credit":
            self._credit += message["n"] if self._watch and ident == self._watch["id"] else 0
        elif op == "watch":
            if self._watch is None or self._watch["id"] != ident:
                self._seq, self._credit = 0, CREDIT
            self._watch, self._due = message, now
            self._told.clear()
        elif op == "stacks":
            for seq, pid in enumerate(message["pids"]):
                yield {"id": ident, "seq": seq, "data": self._stack(pid, now)}
            yield {"id": ident, "end": {"pids": len(message["pids"])}}
        elif op == "cancel":
            return
        elif op in ("descriptors", "recorder"):
            pids = message["pids"]
            if op == "recorder" and message.get("news"):
                pids = [pid for pid in pids if pid not in self._recorder_told]
                self._recorder_told.update(pids)
            for seq, pid in enumerate(pids):
                row = self._rows.get(pid, {})
                failure = {"kind": "missing", "text": "not recorded", "fix": None}
                data = {"pid": pid, "start": row.get("start"), "at": self._epoch + now}
                yield {"id": ident, "seq": seq, "data": {**data, "failure": failure}}
            yield {"id": ident, "end": {}}
        else:
            failure = {"kind": "missing", "text": "not recorded", "fix": None}
            yield {"id": ident, "err": failure}

    def tick(self, now: float) -> Message | None:
        """The next piece of the process table, when it is due."""
        if self._watch is None or now < self._due or self._credit <= 0:
            return None
        pause = self._watch["interval"]
        self._due = max(self._due + pause, now)
        self._advance(now, pause)
        piece = self._piece(now, pause)
        rest = min(self._watch.get("rest", 0.0), MAX_REST_S)
        if "set" in piece and now != self._minor_at:
            self._changed_at = now
        if "set" not in piece and not self._is_awaited(now, pause):
            return None
        self._sent_at = now
        self._promised = max(pause, quiet_s(now - self._changed_at, rest))
        if self._promised > 1.0:
            piece["pause"] = round(self._promised, 2)
        self._credit -= 1
        seq, self._seq = self._seq, self._seq + 1
        return {"id": self._watch["id"], "seq": seq, "data": piece}

    @property
    def due(self) -> float:
        """When the next piece is to be made."""
        return self._due

    def _hangs(self, now: float) -> bool:
        return 0 <= self.story.hang_at <= now

    def _advance(self, now: float, pause: float) -> None:
        hangs = self._hangs(now)
        arrives = hangs and not self._arrived
        self._arrived = hangs
        for pid in self._rows:
            # A launcher polls for ever; a rank goes on until it comes to where it hangs.
            runs = pid == FIRST_PID or not hangs
            if arrives or (runs and self._random.random() < self.story.churn * min(pause, 1.0)):
                self._steps[pid] += 1
                self._ran[pid] = now

    def _is_awaited(self, now: float, pause: float) -> bool:
        return now - self._sent_at >= self._promised - pause / 2

    def _piece(self, now: float, pause: float) -> Message:
        whole = not self._told
        minor = whole or (self._is_awaited(now, pause) and now - self._minor_at >= HELD_S)
        self._minor_at = now if minor else self._minor_at
        changed: dict[str, Message] = {}
        for pid, row in self._rows.items():
            steps = self._steps[pid]
            if whole:
                changed[str(pid)] = {**row, "meters": self._meters(pid, now)}
            elif self._told[pid] != steps and (minor or pid != FIRST_PID):
                meters, old = self._meters(pid, now), self._meters_told[pid]
                part = {k: v for k, v in meters.items() if v != old[k] or k == "main_last_ran_s"}
                changed[str(pid)] = {"meters": part}
            else:
                continue
            self._told[pid], self._meters_told[pid] = steps, self._meters(pid, now)
        piece: Message = {"at": round(self._epoch + now, 3)}
        if changed:
            piece["set"] = changed
        if whole:
            recorded = RECORDED["piece"]
            piece |= {key: recorded[key] for key in ("node", "strings", "nics", "gone")}
            piece |= {"whole": True, "probe_cpu": 0.004}
        return piece

    def _meters(self, pid: int, now: float) -> Message:
        steps = self._steps[pid]
        meters = self._rows[pid]["meters"]
        return {
            **meters,
            "cpu_s": round(meters["cpu_s"] + steps * 0.05, 2),
            "main_cpu_ns": meters["main_cpu_ns"] + steps * STEP_NS,
            "main_switches": meters["main_switches"] + 40 * steps,
            "main_waits": (meters["main_waits"] or 1) + steps,
            "main_last_ran_s": round(now - self._ran[pid], 2),
            "write_bytes": meters["write_bytes"] + 16_000 * steps,
        }

    def _process(self, recorded: int, row: Message, pid: int, rank: int | None) -> Message:
        """A row of another process; ids of threads keep their distance to the process's."""
        new = copy.deepcopy(row)
        new.update(pid=pid, ppid=1 if rank is None else FIRST_PID, start=100_000 + pid)
        new["started_at"] = self._epoch - 3600.0
        new["threads"] = [[pid if t == recorded else 100 * pid + n, *rest]
                          for n, (t, *rest) in enumerate(row["threads"])]  # fmt: skip
        if rank is not None:
            story, local = self.story, rank - self._first
            new.update(rank=rank, label=f"rank {rank}", rank_pid=pid, launcher_pid=FIRST_PID)
            new["env"] |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(story.world),
                "LOCAL_WORLD_SIZE": str(story.ranks),
                "GROUP_RANK": str(self.number),
                "GROUP_WORLD_SIZE": str(story.nodes),
                "MASTER_ADDR": story.name(0),
                "TORCHELASTIC_RUN_ID": "fleet",
                **story.env,
            }
        return new

    def _stack(self, pid: int, now: float) -> Message:
        row = self._rows.get(pid)
        at = self._epoch + now
        if row is None:
            gone = {"kind": "gone", "text": f"process {pid} has left", "fix": None}
            return {"pid": pid, "at": at, "failure": gone}
        recorded = LAUNCHER if pid == FIRST_PID else WAITER
        if row["rank"] == self.story.culprit and self._hangs(now):
            recorded = CULPRIT
        threads, known = _threads(recorded)
        stacks: dict[str, list[Any]] = {}
        told = []
        for thread in threads:
            key, frames = thread["stack"], known[thread["stack"]]
            if recorded == WAITER and not self._hangs(now) and self.story.stacks > 1:
                variant = (self._steps[pid] * 7 + pid) % self.story.stacks
                key, frames = f"{key}-{variant}", _variant(frames, variant)
            if key not in self._sent:
                self._sent.add(key)
                stacks[key] = frames
            told.append({**thread, "tid": pid if thread is threads[0] else thread["tid"],
                         "stack": key})  # fmt: skip
        return {"pid": pid, "start": row["start"], "at": at, "mode": "nonblocking", "took": 0.01,
                "threads": told, "stacks": stacks}  # fmt: skip


def _variant(frames: list[Any], variant: int) -> list[Any]:
    """The same stack at another line of the user's innermost function."""
    out = copy.deepcopy(frames)
    for frame in out:
        if "/training/" in frame[1]:
            frame[3] += variant
            break
    return out
