"""What one rank's flight recorder said, and how every way to it stands."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from hangtop_core.model.descriptors import Failure
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.text.clean import Text

CLOCK_SET = "clock-set"
"""Code of a way by which entries with impossible times came."""


class RecorderWay(Struct, frozen=True, gc=False):
    """One way to a rank's flight recorder, and how it stands.

    The node says a code and what belongs to it; `analysis.flight.ways` makes sentences of that.
    """

    way: Text
    """recorder (the recorder itself), file, pipe, server, debug-server, inject"""
    code: Text
    args: Mapping[str, Text] = field(default_factory=dict)


class Recorder(Struct, frozen=True, gc=False):
    """What one rank's flight recorder said, or why it said nothing."""

    at: float
    """When what it holds was true: when the rank answered, or wrote the file."""
    source: Text | None = None
    """The way by which it was read, as in `RecorderWay.way`; None where it was not."""
    path: Text | None = None
    """The file, socket or address."""
    trace: Trace | None = None
    """Its times are on the head's clock."""
    ways: tuple[RecorderWay, ...] = ()
    """Every way that was looked at, and how it stands."""
    asked_at: float | None = None
    took_s: float = 0.0
    triggered: bool = False
    """Whether the rank was made to write or answer what it would not have by itself."""
    failure: Failure | None = None
