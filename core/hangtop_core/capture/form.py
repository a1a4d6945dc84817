"""What is in a capture beside the pictures: its header, its end, and the limits of all of it.

docs/capture.md describes the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from hangtop_core.diagnosis import HANG_AFTER_S
from hangtop_core.text.clean import Text, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

FAMILY = "hangtop.capture/"
VERSION = 1
SCHEMA = f"{FAMILY}{VERSION}"
SUFFIX = ".hangtop"
CAME_MASKED = "before it came here"
"""In `redactions`: what was masked by a node, or in the capture that this one is made from."""
FOLDERS, HOSTS, ADDRESSES = NAMES = ("names of folders", "names of hosts", "addresses")
"""In `redactions`: how many have another name."""
KEPT = "names of hosts that are numbers"
"""In `redactions`: how many have not, since the same number may be anything."""
HEADER_BYTES = 8192
"""Room that is kept for the header, which is written last and stands first."""

MAX_LINE = 32 << 20
"""Bytes of one line."""
MAX_BYTES = 512 << 20
"""Of all lines together, without compression. By estimate 8,192 ranks with recorders, and what they
were for ten minutes, are 200 MiB."""
MAX_HOLDERS = 8 << 20
"""Lists and objects of all lines together: each takes more time and room than its few bytes, and
has fifty in real captures."""
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
    """Seconds after which waiting was called a hang; that of files which do not say."""
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
    hang_after: float = HANG_AFTER_S


def masked(counts: Mapping[str, int]) -> int:
    """In how many places secrets were masked; names that others stand for are not among them."""
    return sum(number for kind, number in counts.items() if kind not in (*NAMES, KEPT))


def counted(counts: Mapping[str, int], before: str) -> tuple[str, ...]:
    """`redactions` for people, a line each for secrets and names; none where there are none.

    ``before`` says by whom secrets were masked that were when they came: `by the nodes`.
    """
    rest = {
        kind: number for kind, number in counts.items() if kind not in (*NAMES, KEPT, CAME_MASKED)
    }
    ordered = sorted(rest.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{before} ({counts[CAME_MASKED]})"] if counts.get(CAME_MASKED) else []
    told += [f"{kind} ({number})" for kind, number in ordered]
    lines = [f"secrets masked in {plural(masked(counts), 'place')}: {', '.join(told)}"]
    names = ", ".join(f"{kind} ({counts[kind]})" for kind in NAMES if counts.get(kind))
    return (
        *(lines if told else ()),
        *((f"replaced by others: {names}",) if names else ()),
        *((f"not replaced: {KEPT} ({counts[KEPT]})",) if counts.get(KEPT) else ()),
    )
