"""The `--json` documents as JSON Schema (draft 2020-12), for `hangtop --schema`.

Made from the types themselves, with the meanings of docs/json.md as descriptions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop.docs import jsondoc
from hangtop.jsonschemas import DOCUMENTS
from hangtop_core.analysis.flight.picture import FlightDiagnosis
from hangtop_core.diagnosis import Diagnosis
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

DRAFT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "#/$defs/{name}"


def text(name: str) -> str:
    """Return the schema of one document as text, or of all documents where no name is given.

    Args:
        name: of a document, whole (`hangtop.dump/1`) or short (`dump`); empty for all.

    Raises:
        UsageError: there is no such document.
    """
    documents = [document for document in DOCUMENTS if name in ("", document, short(document))]
    if not documents:
        names = ", ".join(map(short, DOCUMENTS))
        raise UsageError(f"--schema: no document {name!a}; there are {names}")
    title = "What hangtop prints with --json" if name == "" else documents[0]
    return json.dumps(schema(title, documents), indent=2)


def short(name: str) -> str:
    """Return `dump` for `hangtop.dump/1`."""
    return name.removeprefix("hangtop.").partition("/")[0]


def schema(title: str, documents: Iterable[str]) -> dict[str, Any]:
    """Return the JSON Schema that each of the documents matches.

    Args:
        title: title of the schema.
        documents: values of their field `schema`, such as `hangtop.dump/1`.
    """
    kinds = [kind for name in documents for kind in _types(DOCUMENTS[name])]
    references, parts = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    for kind in jsondoc.structs():
        _describe(kind, parts)
    return {"$schema": DRAFT, "title": title, "anyOf": list(references), "$defs": parts}


def _types(kind: type) -> tuple[type, ...]:
    """Return a document's types: only `hangtop flight` prints a diagnosis with `flight`."""
    return (Diagnosis, kind) if kind is FlightDiagnosis else (kind,)


def _describe(kind: type[msgspec.Struct], parts: dict[str, Any]) -> None:
    """Add the meanings from docs/json.md to a type's fields."""
    properties = parts.get(_key(kind, parts), {}).get("properties", {})
    for field in jsondoc.fields(kind):
        if field.name in properties:
            properties[field.name]["description"] = field.meaning


def _key(kind: type, parts: dict[str, Any]) -> str:
    """Return the name of a type among the parts; with its module where two types share a name."""
    full = f"{kind.__module__}.{kind.__qualname__}"
    return full if full in parts else kind.__name__
