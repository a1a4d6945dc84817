"""The flight recorder of one rank, and the state of every way to it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from hangtop_core.model.descriptors import Failure
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.text.clean import Text

CLOCK_SET = "clock-set"
"""Code of a way that gave entries with impossible times."""


class RecorderWay(Struct, frozen=True, gc=False):
    """One way to a rank's flight recorder, and its state.

    The node sends a code and its arguments; `analysis.flight.ways` turns them into sentences.
    """

    way: Text
    """recorder (the recorder itself), file, pipe, server, debug-server, inject"""
    code: Text
    args: Mapping[str, Text] = field(default_factory=dict)


class Recorder(Struct, frozen=True, gc=False):
    """Contents of one rank's flight recorder, or why it could not be read."""

    at: float
    """Time of the contents: when the rank answered, or wrote the file."""
    source: Text | None = None
    """The way by which it was read, as in `RecorderWay.way`; None where it was not."""
    path: Text | None = None
    """The file, socket or address."""
    trace: Trace | None = None
    """The trace, with times on the head's clock."""
    ways: tuple[RecorderWay, ...] = ()
    """Every way that was tried, with its state."""
    asked_at: float | None = None
    took_s: float = 0.0
    triggered: bool = False
    """Whether the rank was made to write or answer what it would not have unasked."""
    failure: Failure | None = None
