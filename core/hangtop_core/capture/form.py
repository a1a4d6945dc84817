"""The parts of a capture beside the snapshots: header, end and limits.

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
"""In `redactions`: places masked by a node, or in the capture that this one is made from."""
FOLDERS, HOSTS, ADDRESSES = NAMES = ("names of folders", "names of hosts", "addresses")
"""In `redactions`: number of replaced names."""
KEPT = "names of hosts that are numbers"
"""In `redactions`: names that stay, since the same number may be anything."""
HEADER_BYTES = 8192
"""Bytes reserved for the header, which is written last and stands first."""

MAX_LINE = 32 << 20
"""Maximum number of bytes of one line."""
MAX_BYTES = 512 << 20
"""Maximum number of uncompressed bytes of all lines. An estimate for 8,192 ranks with recorders and
ten minutes of history is 200 MiB."""
MAX_HOLDERS = 8 << 20
"""Maximum number of lists and objects in all lines: each takes more time and memory than its few
bytes, and has fifty bytes in real captures."""
MAX_LINES = 2_000_000
MAX_PICTURES = 4_000
MAX_STACKS = 200_000
MAX_TRACES = 200_000
LAST_TIME = 4e9
"""The latest time that can be shown, in seconds since the epoch: 2096."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Counts = Annotated[dict[Text, Count], Meta(max_length=256)]
Time = Annotated[float, Meta(ge=0.0, le=LAST_TIME)]


class Header(Struct, frozen=True):
    """The first line."""

    schema: Text
    hangtop: Text = ""
    """The version of hangtop that wrote it."""
    taken_at: Time = 0.0
    """The time of its newest snapshot."""
    by: Text = ""
    """The command or key that wrote it: `hangtop capture`, `key w`, `hangtop watch`."""
    targets: Text = ""
    """The observed targets, as they were given; empty for this machine."""
    job: Text | None = None
    """Key of the job that it was taken for."""
    state: Text = ""
    """State of that job, with the cause and the summary of its best verdict."""
    cause: Text = ""
    summary: Text = ""
    hang_after: Annotated[float, Meta(gt=0.0, le=1e9)] = 30.0
    """Seconds without progress after which a job was hung; the default for files without it."""
    since: Time = 0.0
    """The time of its oldest snapshot."""
    complete: bool = False
    """Whether it was written to its end."""
    holds: Counts = field(default_factory=dict)
    """Counts of its contents: nodes, ranks, stacks, recorders, logs, snapshots (`pictures`), ..."""
    redacted: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    """Removed kinds of text: `secrets`, `paths`, `hosts`."""
    redactions: Counts = field(default_factory=dict)
    """Number of masked places by kind; never their content."""


class Facts(Struct, frozen=True):
    """Facts about a capture from its writer."""

    by: Text = "hangtop"
    targets: Text = ""
    job: str | None = None
    hang_after: float = HANG_AFTER_S


def masked(counts: Mapping[str, int]) -> int:
    """Return the number of places with masked secrets, without replaced names."""
    return sum(number for kind, number in counts.items() if kind not in (*NAMES, KEPT))


def counted(counts: Mapping[str, int], before: str) -> tuple[str, ...]:
    """Return `redactions` for people, a line each for secrets and names; empty without any.

    ``before`` names who masked the secrets that came masked: `by the nodes`.
    """
    secrets = {
        kind: number for kind, number in counts.items() if kind not in (*NAMES, KEPT, CAME_MASKED)
    }
    ordered = sorted(secrets.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{before} ({counts[CAME_MASKED]})"] if counts.get(CAME_MASKED) else []
    parts += [f"{kind} ({number})" for kind, number in ordered]
    lines = [f"secrets masked in {plural(masked(counts), 'place')}: {', '.join(parts)}"]
    names = ", ".join(f"{kind} ({counts[kind]})" for kind in NAMES if counts.get(kind))
    return (
        *(lines if parts else ()),
        *((f"replaced by others: {names}",) if names else ()),
        *((f"not replaced: {KEPT} ({counts[KEPT]})",) if counts.get(KEPT) else ()),
    )
