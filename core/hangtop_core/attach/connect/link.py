"""One connection to one probe: its state, its requests, and restarting it.

The session's thread alone drives a link (lines, endings, the clock), which never waits itself.
Whatever a node does becomes a `Node` state with a reason, or a line among its noise; no message of
a node raises an exception out of a link.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.connect.launcher import ending_of
from hangtop_core.attach.connect.leaving import Leaving
from hangtop_core.attach.connect.pulse import Beat, Pulse
from hangtop_core.attach.connect.share import TOO_MUCH, Share
from hangtop_core.attach.connect.timing import Moment, Retry, Timing
from hangtop_core.attach.ways import large_packets
from hangtop_core.attach.ways.small_limits import fix_text
from hangtop_core.attach.wire.messages import BadPieceError, Hello, decode
from hangtop_core.attach.wire.noise import FLOOD, FLOOD_FIX, Noise
from hangtop_core.attach.wire.reader import Reader
from hangtop_core.attach.wire.requests import Requests
from hangtop_core.errors import HangtopError, NodeNotReadyError
from hangtop_core.text.clean import clean
from hangtop_probe.wire import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hangtop_core.attach.connect.engine import Closed
    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.attach.connect.listener import Listener
    from hangtop_core.attach.wire.router import Connections
    from hangtop_core.model.snapshot import NodeState
    from hangtop_core.text.commands import Step

log = logging.getLogger(__name__)


class Link:
    """The connection to one node's probe, over all its generations."""

    def __init__(
        self,
        launcher: Launcher,
        engine: Connections,
        listener: Listener[Link],
        timing: Timing | None = None,
        may_start: Callable[[Link, Moment], bool] | None = None,
    ) -> None:
        """``may_start`` decides whether it is this link's turn to connect (again)."""
        self.name = launcher.node
        self.state: NodeState = "connecting"
        self.generation = 0
        self.conn: int | None = None
        self.unsupported: set[str] = set()
        """Requests that this node's probe does not know."""
        self.due = 0.0
        """When (monotonic) to `tick` next, unless something happens."""
        self.timing = timing or Timing()
        self.launcher = launcher
        self._may_start = may_start
        self._engine = engine
        self._listener = listener
        self._reader, self._requests, self._noise = Reader(), Requests(), Noise()
        self._share, self._pulse = Share(0.0), Pulse(self.timing, 0.0)
        self._was_ready = self._closing = False
        self._beat: Beat = "good"
        self._retry = Retry(self.timing)
        self._leaving = Leaving(engine, self.timing.kill)

    @property
    def can_ask(self) -> bool:
        """Return whether requests can be made now."""
        return self.conn is not None and self.state in ("ready", "slow")

    def on_its_way(self, now: Moment) -> bool:
        """Return whether it is logging in, and not yet for so long that others may."""
        hold_s = self.launcher.wave.hold_s
        return self.conn is not None and self._pulse.logs_in(now.mono, hold_s)

    @property
    def waits(self) -> bool:
        """Return whether it is to connect (again), and has not begun to."""
        return self._retry.at is not None and self.conn is None and not self._closing

    @property
    def idle(self) -> bool:
        """Return whether no process of this link is left."""
        return self.conn is None and not self._leaving

    def start_in_turn(self, now: Moment) -> None:
        """Start the probe as soon as it is this link's turn."""
        self._retry.at = now.mono
        if self._may_start is None or self._may_start(self, now):
            self.start(now)

    def start(self, now: Moment) -> None:
        """Start the probe."""
        self._retry.at, self._reader = None, Reader()
        self._pulse = Pulse(self.timing, now.mono, self.launcher.patience)
        node_fields = {"via": self.launcher.via, **self.launcher.by_hand.stored()}
        self._listener.link_changed(self, node_fields)
        self.conn = self._engine.connect(self.launcher)
        if first := self.launcher.opening():
            self._engine.write(self.conn, first)

    def retry(self, now: Moment) -> None:
        """Connect now, whatever the state, at a person's request."""
        self._retry.failures = 0
        if not self.can_ask:
            self._drop(now, "connecting", "trying again", again=False)
            self.start(now)

    def restart(self, now: Moment, reason: str, state: NodeState = "lost") -> None:
        """Begin a new connection, because this one cannot go on."""
        if self.conn is not None:
            self._drop(now, state, reason)

    def close(self, now: Moment) -> None:
        """Let the probe end; `idle` becomes true when it has."""
        self._closing = True
        self._retry.at = None
        self._fail_all(NodeNotReadyError(f"the session with {self.name} is over"))
        self._abandon(now)

    def kill(self) -> None:
        """Kill all remaining processes of this link."""
        self._leaving.kill()
        if self.conn is not None:
            self._engine.kill(self.conn)

    def forgive(self, seconds: float, now: Moment) -> None:
        """Do not count so many seconds as waiting: this end had no time to listen."""
        self._pulse.forgive(seconds, now.mono)

    def listens(self, silence: float) -> float:
        """Let its probe end after so many seconds of silence from here, which are returned."""
        self._pulse.silence = silence
        return silence

    # Requests

    def request(
        self,
        op: str,
        params: Mapping[str, Any],
        *,
        on_piece: Callable[[Any], None],
        on_end: Callable[[Mapping[str, Any] | None, HangtopError | None], None],
        deadline: float | None = None,
    ) -> int | None:
        """Ask the probe for ``op``; return the request's id, or None when it cannot be asked."""
        self.due = 0.0
        if not self.can_ask:
            on_end(None, NodeNotReadyError(f"{self.name} is {self.state}"))
            return None
        request = self._requests.add(op, on_piece, on_end, deadline)
        self._send({"op": op, "id": request.id, **params})
        return request.id

    def send_again(self, request_id: int | None, op: str, params: Mapping[str, Any]) -> None:
        """Send more data about a request that is under way."""
        if request_id is not None and request_id in self._requests:
            self._send({"op": op, "id": request_id, **params})

    def cancel(self, request_id: int) -> None:
        """Ask the probe to end a request early; its ``on_end`` follows."""
        if request_id in self._requests:
            self._send({"op": "cancel", "id": request_id})

    # What the engine reports

    def on_lines(self, conn: int, lines: list[bytes], now: Moment) -> None:
        """Handle lines of a connection; those of an earlier generation are dropped."""
        began, self.due = time.thread_time(), 0.0
        for line in lines:
            if conn != self.conn:
                return
            try:
                message = self._reader.feed(line)
            except wire.WireError as error:
                self.note(f"damaged line: {error}")
                self._drop(now, "lost", f"the probe's stream is damaged: {clean(str(error), 120)}")
                return
            if message is not None:
                self._pulse.heard(now.mono)
                self._message(message, now)
            if self._reader.noise_run > FLOOD:
                self._flooded(now, "it floods its output with other things", FLOOD_FIX)
                return
            began, before = time.thread_time(), began
            if self._share.spend(began - before, now.mono):
                self._flooded(now, TOO_MUCH)
                return
        self._take_noise()
        self.due = self._nothing_until()

    def _nothing_until(self) -> float:
        """Return until when (monotonic) nothing is due without a message; 0 if something is."""
        if self.state != "ready" or self._beat != "good" or self._leaving or self._retry.failures:
            return 0.0
        return min(self._pulse.quiet_until, self._requests.deadline)

    def _flooded(self, now: Moment, reason: str, fix: Step | None = None) -> None:
        """Drop a node that sends too much at once: reading on costs the others."""
        conn = self.conn
        self._drop(now, None, reason, fix=fix)
        if conn is not None:
            self._engine.kill(conn)

    def on_closed(self, closed: Closed, now: Moment) -> None:
        """Handle the end of a connection."""
        self._leaving.closed(closed.conn)
        text = closed.stderr.decode("utf-8", "replace") + self._requests.failure
        if closed.conn != self.conn:
            self.launcher.late(text)
            return
        self.conn = None
        ending = ending_of(closed, self.launcher, text, self._was_ready)
        if text.strip():
            log.warning("standard error of the probe on %s:\n%s", self.name, text)
        self._drop(now, ending.state, ending.reason, again=ending.retry, fix=ending.fix)

    def tick(self, now: Moment) -> None:
        """Do what is due: pings, deadlines, retries and kills."""
        self._leaving.kill_late(now.mono)
        if self._closing:
            return
        if self._retry.at is not None and now.mono >= self._retry.at:
            self.start_in_turn(now)
        elif self.conn is not None:
            self._watch_over(now)
        for request in self._requests.overdue(now.mono):
            self._send({"op": "cancel", "id": request.id})
            request.time_out()
        self.due = self._nothing_until()

    def _watch_over(self, now: Moment) -> None:
        pulse = self._pulse
        beat = pulse.beat(now.mono, self._engine.clogged(self.conn))
        if beat == "lost":
            self._silent(pulse.why(beat, now.mono), now)
            return
        if beat != "good" and (self.state == "ready" or beat != self._beat):
            self._set(now, "slow", pulse.why(beat, now.mono))
        self._beat = beat
        due = pulse.due(now.mono)
        if due == "sign" and (credit := self._requests.owed()) is not None:
            self._send(credit)
        elif due is not None:
            self._ping(now)
        if pulse.healthy(now.mono):
            self._retry.failures = 0

    def _silent(self, reason: str, now: Moment) -> None:
        """Drop a silent connection; the local kernel may know why."""
        lost = large_packets.lost(self._engine.pid(self.conn), self._pulse.ready_since is not None)
        fix = large_packets.fix(self.name) if lost else None
        self._drop(now, None, f"{reason}: {lost}" if lost else reason, fix=fix)

    def _ping(self, now: Moment) -> None:
        (pulse := self._pulse).ping(now.mono)

        def pong(summary: Mapping[str, Any] | None, error: HangtopError | None) -> None:
            if error is None:
                pulse.pong()

        self._send({"op": "ping", "id": self._requests.add("ping", lambda _: None, pong, None).id})

    def table_came(self, now: Moment, pause: float) -> None:
        """Note a piece of the process table, come or due; the next follows in ``pause`` s."""
        self.due = 0.0
        self._pulse.table(now.mono, pause)
        self._see_pulse(now, {})

    # Messages

    def _message(self, message: dict[str, Any], now: Moment) -> None:
        try:
            if "hello" in message:
                self._hello(decode(message["hello"], Hello), now)
                return
            if "boot" in message:
                self._boot(decode(message["boot"], bundle.BootMessage), now)
                return
            handled = self._requests.handle(message)
        except BadPieceError as error:
            self.note(f"bad message: {error}")
            return
        except wire.WireError as error:
            self.note(f"damaged stream: {error}")
            self._drop(now, "lost", f"the probe's stream is damaged: {error}")
            return
        if handled.wrong is not None:
            self.note(handled.wrong)
        if handled.credit is not None:
            self._send(handled.credit)
        if self._pulse.latency is not None:
            latency, self._pulse.latency = self._pulse.latency, None
            self._see_pulse(now, {"latency_s": round(latency, 4)})

    def _see_pulse(self, now: Moment, changes: dict[str, Any]) -> None:
        if self.state == "slow" and self._pulse.beat(now.mono) == "good":
            self._set(now, "ready", None, **changes)
        elif changes:
            self._listener.link_changed(self, changes)

    def _hello(self, hello: Hello, now: Moment) -> None:
        if self._pulse.ready_since is not None:
            self.note("a second hello on one connection")
            return
        if hello.protocol != wire.PROTOCOL:
            reason = f"its probe speaks protocol {hello.protocol}, hangtop {wire.PROTOCOL}"
            self._drop(now, "incompatible", reason, again=False)
            return
        self._was_ready = True
        self._pulse.hello(now.mono)
        self._set(now, "ready", None, **hello.facts())
        self._listener.link_ready(self, hello, now)

    def _boot(self, message: bundle.BootMessage, now: Moment) -> None:
        """Send the missing components; the probe itself speaks once it has all of them."""
        if self._pulse.ready_since is not None or self.conn is None:
            return
        if message.error is not None:
            ending = bundle.refusal(message)
            self._drop(now, ending.state, ending.reason, again=ending.retry, fix=ending.fix)
        elif message.missing is not None and not self._pulse.ships:
            self._pulse.ship(now.mono)
            for piece in bundle.pieces(message.missing):
                self._engine.write(self.conn, piece)
        elif message.why:
            log.info("%s: not kept on disk: %s", self.name, clean(message.why, 200))

    # Noise

    def note(self, text: str) -> None:
        """Keep a finding about this node's messages."""
        log.warning("%s: %s", self.name, clean(text, 500))
        self._listener.link_changed(self, self._noise.add(1, text))

    def _take_noise(self) -> None:
        if changes := self._noise.take(self._reader):
            self._listener.link_changed(self, changes)

    # States

    def _set(self, now: Moment, state: NodeState, reason: str | None, **more: Any) -> None:
        changes = {"reason": reason, "fix": None, "generation": self.generation, **more}
        if state != self.state:
            log.info("%s is %s: %s", self.name, state, reason or "")
            self.state = state
            changes.update(state=state, since=now.epoch)
        self._listener.link_changed(self, changes)

    def _drop(
        self,
        now: Moment,
        state: NodeState | None,
        reason: str,
        again: bool = True,
        fix: Step | None = None,
    ) -> None:
        """Drop the present connection, and plan the next one; no state means that of silence."""
        self._take_noise()
        self._abandon(now)
        if self._closing:
            return
        self.generation += 1
        if again:
            wait = self._retry.plan(now.mono)
            reason = f"{reason}; connecting again" + (f" in {wait:.0f} s" if wait >= 1 else "")
        state = state or ("lost" if self._was_ready else "unreachable")
        self._set(now, state, reason, fix=fix_text(reason, fix, self.launcher.by_hand))
        self._fail_all(NodeNotReadyError(f"{self.name} is {self.state}: {reason}"))

    def _abandon(self, now: Moment) -> None:
        self.due = 0.0
        if self.conn is not None:
            self._leaving.add(self.conn, now.mono)
            self.conn = None

    def _fail_all(self, error: HangtopError) -> None:
        requests, self._requests = self._requests, Requests()
        requests.fail_all(error)

    def _send(self, message: dict[str, Any]) -> None:
        if self.conn is not None:
            for line in wire.encode(message, message["id"]):
                self._engine.write(self.conn, line)
