"""Whether what `--json` has printed fits the JSON Schema that `hangtop --schema` prints."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from hangtop.jsonschemas import published


def misfits(document: dict[str, Any]) -> list[str]:
    """Where a document has what its schema does not; empty where it fits."""
    errors = _validator(document["schema"], "flight" in document).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


@cache
def _validator(name: str, with_flight: bool) -> Draft202012Validator:
    """Return a validator that also refuses fields which the schema does not name."""
    schema = published.schema(name, (name,))
    kinds = schema.pop("anyOf")
    Draft202012Validator.check_schema(schema)
    _close(schema)
    return Draft202012Validator({**schema, **kinds[-1 if with_flight else 0]})


def _close(part: Any) -> None:
    if isinstance(part, dict):
        if isinstance(part.get("properties"), dict) and part.get("type") == "object":
            part["additionalProperties"] = False
        for one in part.values():
            _close(one)
    elif isinstance(part, list):
        for one in part:
            _close(one)
