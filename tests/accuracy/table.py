"""All jobs that accuracy is measured on: one file of `tables/` for each subject.

They are written apart from the demo gallery and from the rules, each script in another style.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from accuracy.job import Job

TABLES = Path(__file__).parent / "tables"


def _read(path: Path) -> list[Job]:
    """Return the jobs of one subject.

    Raises:
        msgspec.DecodeError: it is no TOML.
        msgspec.ValidationError: a field is missing, not known or of another type.
    """
    rows = msgspec.toml.decode(path.read_bytes(), type=dict[str, list[dict[str, Any]]])["job"]
    return [msgspec.convert({"subject": path.stem, **row}, Job) for row in rows]


JOBS: tuple[Job, ...] = tuple(
    sorted(
        (job for path in TABLES.glob("*.toml") for job in _read(path)),
        key=lambda job: crc32(job.name.encode()),
    )
)
"""In an order that mixes subjects: healthy jobs keep the processors busier than those that wait."""
