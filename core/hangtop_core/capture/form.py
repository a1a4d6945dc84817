"""What is in a capture beside the pictures: its header, its end, and the limits of all of it.

docs/capture.md describes the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from hangtop_core.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

FAMILY = "hangtop.capture/"
VERSION = 1
SCHEMA = f"{FAMILY}{VERSION}"
SUFFIX = ".hangtop"
HEADER_BYTES = 8192
"""Room that is kept for the header, which is written last and stands first."""

MAX_LINE = 32 << 20
"""Bytes of one line."""
MAX_BYTES = 1 << 30
"""Of all lines together, without compression."""
MAX_LINES = 2_000_000
MAX_PICTURES = 4_000
MAX_STACKS = 200_000
MAX_TRACES = 200_000
LAST_TIME = 4e9
"""The latest moment that can be shown, in seconds since the epoch: 2096."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Counts = Annotated[dict[Text, Count], Meta(max_length=256)]
Time = Annotated[float, Meta(ge=0.0, le=LAST_TIME)]


class Header(Struct, frozen=True):
    """The first line."""

    schema: Text
    hangtop: Text = ""
    """The version that has written it."""
    taken_at: Time = 0.0
    """When its newest picture was true."""
    by: Text = ""
    """Who wrote it: `hangtop capture`, `key w`, `hangtop watch`."""
    targets: Text = ""
    """What was observed, as it was asked for; empty for this machine."""
    job: Text | None = None
    """Key of the job it was taken for."""
    state: Text = ""
    """What was concluded of that, and the best verdict's cause and summary."""
    cause: Text = ""
    summary: Text = ""
    hang_after: Annotated[float, Meta(gt=0.0, le=1e9)] = 30.0
    """Seconds after which waiting was called a hang."""
    since: Time = 0.0
    """When its oldest picture was true."""
    complete: bool = False
    """Whether it was written to its end."""
    holds: Counts = field(default_factory=dict)
    """How many of what is in it: nodes, ranks, stacks, recorders, logs, pictures, ..."""
    redacted: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    """What was taken out: `secrets`, `paths`, `hosts`."""
    redactions: Counts = field(default_factory=dict)
    """How many places of each kind were masked; never what stood there."""


class Facts(Struct, frozen=True):
    """What whoever writes a capture knows beyond the pictures."""

    by: Text = "hangtop"
    targets: Text = ""
    job: str | None = None
    hang_after: float = 30.0


def counted(counts: Mapping[str, int]) -> str:
    """`2 tokens of Hugging Face`-like list for people: kind and number, most first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} ({number})" for kind, number in ordered)
