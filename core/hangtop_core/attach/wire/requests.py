"""The open requests of one connection: ids, order of pieces, credit and deadlines."""

from __future__ import annotations

import logging
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from hangtop_core.attach.wire.messages import BadPieceError, Problem, decode
from hangtop_core.errors import HangtopError, RefusedError, RequestTimeoutError
from hangtop_core.text.clean import clean
from hangtop_probe.wire.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

log = logging.getLogger(__name__)

Message = dict[str, Any]
CREDIT_STEP = 16
"""Pieces after which a stream gets credit for as many more; it starts with 64."""


class Handled(NamedTuple):
    """Work that is left after an answer was handled."""

    credit: Message | None = None
    """The credit message that allows further pieces."""
    wrong: str | None = None
    """Errors in the answer."""


class Request:
    """One request under way."""

    def __init__(
        self,
        request_id: int,
        op: str,
        on_piece: Callable[[Any], None],
        on_end: Callable[[Mapping[str, Any] | None, HangtopError | None], None],
        deadline: float | None,
    ) -> None:
        self.id = request_id
        self.op = op
        self.deadline = deadline
        self._on_piece = on_piece
        self._on_end = on_end
        self._pieces = self._granted = 0

    def piece(self, seq: object, data: object) -> Handled:
        """Handle the next piece.

        Raises:
            WireError: pieces are missing.
        """
        if seq != self._pieces:
            raise WireError(f"piece {seq!r} of {self.op} where {self._pieces} was due"[:120])
        self._pieces += 1
        wrong = None
        try:
            self._on_piece(data)
        except BadPieceError as error:
            wrong = f"{self.op}: {error}"
        except Exception as error:
            log.exception("a piece of %s could not be handled", self.op)
            wrong = f"{self.op}: a piece could not be handled: {type(error).__name__}: {error}"
        return Handled(self.owed(CREDIT_STEP), wrong)

    def owed(self, least: int) -> Message | None:
        """Return credit for received pieces, counted as sent; None below ``least``."""
        owed = self._pieces - self._granted
        if owed < least:
            return None
        self._granted = self._pieces
        return {"op": "credit", "id": self.id, "n": owed}

    def end(self, summary: Mapping[str, Any] | None, error: HangtopError | None) -> None:
        """Report the end to the caller; an error of the caller is logged."""
        try:
            self._on_end(summary, error)
        except Exception:
            log.exception("the end of %s could not be handled", self.op)

    def time_out(self) -> None:
        """End it without the probe."""
        self.end(None, RequestTimeoutError(f"{self.op}: no complete answer in time"))


class Requests:
    """All open requests of one connection, by id."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._last = 0
        self.failure = ""
        """Why the probe ends, if it said so before its first request."""

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._open

    def add(
        self,
        op: str,
        on_piece: Callable[[Any], None],
        on_end: Callable[[Mapping[str, Any] | None, HangtopError | None], None],
        deadline: float | None,
    ) -> Request:
        """Make a request with the next id."""
        self._last += 1
        request = self._open[self._last] = Request(self._last, op, on_piece, on_end, deadline)
        return request

    def handle(self, message: Mapping[str, Any]) -> Handled:
        """Handle a probe's answer.

        Answers to requests that are over are dropped: they were cancelled or timed out.

        Raises:
            WireError: pieces are missing.
        """
        request_id = message.get("id")
        request = self._open.get(request_id) if isinstance(request_id, int) else None
        if request is None:
            self._note_failure(message)
            return Handled()
        if "data" in message:
            return request.piece(message.get("seq"), message["data"])
        del self._open[request.id]
        if "err" in message:
            return self._refused(request, message["err"])
        end = message.get("end")
        request.end(end if isinstance(end, dict) else {}, None)
        return Handled()

    def _note_failure(self, message: Mapping[str, Any]) -> None:
        """Note why a probe ends that has had no request yet."""
        with suppress(BadPieceError):
            if message.get("id") == 0 and "err" in message:
                self.failure = f"\n{clean(decode(message['err'], Problem).text, 300)}"

    def _refused(self, request: Request, raw: object) -> Handled:
        try:
            problem = decode(raw, Problem)
        except BadPieceError as error:
            request.end(None, RefusedError(f"{request.op} failed, without a readable reason"))
            return Handled(wrong=f"{request.op}: {error}")
        text = f"{request.op}: {clean(problem.text)}"
        request.end(None, RefusedError(text, clean(problem.kind, 40), problem.fix))
        return Handled()

    def owed(self) -> Message | None:
        """Return credit that a stream may get early: a sign of life that needs no answer."""
        grants = (request.owed(1) for request in self._open.values())
        return next((credit for credit in grants if credit is not None), None)

    @property
    def deadline(self) -> float:
        """Return when (monotonic) the first request is overdue."""
        return min((r.deadline for r in self._open.values() if r.deadline is not None), default=inf)

    def overdue(self, now: float) -> Iterator[Request]:
        """Remove and yield the requests whose deadline (monotonic) has passed."""
        late = [r for r in self._open.values() if r.deadline is not None and now > r.deadline]
        for request in late:
            del self._open[request.id]
            yield request

    def fail_all(self, error: HangtopError) -> None:
        """End every request with ``error``."""
        requests, self._open = self._open, {}
        for request in requests.values():
            request.end(None, error)
