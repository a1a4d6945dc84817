"""Whether what `--json` has printed is what docs/json.md says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hangtop.jsonschemas import DOCUMENTS
from hangtop_core.analysis.flight.picture import FlightDiagnosis
from hangtop_core.diagnosis import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator


def misfits(document: dict[str, Any]) -> list[str]:
    """Where a document has what its schema does not; empty where it fits."""
    kind = DOCUMENTS[document["schema"]]
    if kind is FlightDiagnosis and "flight" not in document:
        kind = Diagnosis
    try:
        known = msgspec.to_builtins(msgspec.convert(document, kind))
    except msgspec.ValidationError as error:
        return [str(error)]
    return list(_unknown(document, known, "$"))


def _unknown(told: Any, known: Any, at: str) -> Iterator[str]:
    if isinstance(told, dict):
        for key, value in told.items():
            if key not in known:
                yield f"{at}.{key} is not known"
            else:
                yield from _unknown(value, known[key], f"{at}.{key}")
    elif isinstance(told, list):
        for place, (one, other) in enumerate(zip(told, known, strict=True)):
            yield from _unknown(one, other, f"{at}[{place}]")
