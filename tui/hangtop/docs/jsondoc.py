"""docs/json.md, made from the types of the `--json` documents.

`python -m hangtop.docs.jsondoc > docs/json.md` writes it; a test checks that it is current, and
that every field has a meaning: the docstring below it in its class, else an entry in
`jsonmeanings`.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from hangtop.docs.jsonmeanings import MEANINGS
from hangtop.jsonschemas import DOCUMENTS
from hangtop_core.analysis.flight.picture import FlightDiagnosis
from hangtop_core.model import numerics

INTRODUCTION = """\
# JSON

Made from the types themselves (`python -m hangtop.docs.jsondoc > docs/json.md`).

Every command that prints facts has `--json`: one document on standard output, messages for people
on standard error. `hangtop watch --json` prints one document per line, as events occur. The field
`schema` names the type of a document; `hangtop --schema` prints the JSON Schema of all documents,
and `hangtop --schema dump` that of one.

**Compatibility.** Within a version (`hangtop.dump/1`) fields are only ever added: ignore unknown
fields. When a field is removed or changes its meaning, the version is incremented, and
[CHANGELOG](../CHANGELOG.md) says so. Causes, states and other enumerated words may get new values
within a version. Texts for people (`summary`, `text`, `why`, `fix`) may change at any time: do not
parse them.

**Types.** `number?` may be null. `at` and other times are seconds since the epoch, unless a text;
sizes are bytes. Text from nodes is untrusted: terminal control characters in it are written as
JSON escape sequences, and nothing else about it is guaranteed. NaN and infinities are words
(`"nan"`, `"inf"`, `"-inf"`), since JSON has none.

**Ranks without a number.** If the number of a rank is unknown, its `rank` is null, and `node` and
`pid` identify it. Lists of ranks leave it out; the pids of the ranks left out are in a list beside
it, as `victims_pids` beside `victims`.

The exit status is the same as without `--json`; [hangtop(1)](hangtop.1) lists the numbers. Other
formats: captures ([capture.md](capture.md)), `numerics/*.jsonl` of a prepared run
([numerics.md](numerics.md)), messages of probes ([protocol.md](protocol.md)).
"""
TITLES: dict[type, str] = {numerics.Frame: "Call"}
"""Titles of types that share their name with another one."""
DIAGNOSIS = "`hangtop diagnose --json`, `hangtop flight --json`, and in `hangtop watch --json`."
SCALARS = {str: "text", int: "whole", float: "number", bool: "true or false", type(None): "null"}


class Field(NamedTuple):
    """One row of a table."""

    name: str
    type: str
    meaning: str


def document() -> str:
    """Return the whole text."""
    parts = [INTRODUCTION, "## Documents\n\n| schema | is printed by |\n|---|---|\n"]
    parts[-1] += "".join(
        f"| [`{name}`](#{anchor(name)}) | {_summary(kind)} |\n" for name, kind in DOCUMENTS.items()
    )
    shared = [kind for kind in structs() if kind not in DOCUMENTS.values()]
    for name, kind in DOCUMENTS.items():
        parts.append(f"### {name}\n\n{_summary(kind)}\n\n{_table(kind)}")
    parts.append("## Parts\n\nWhat fields above hold.\n")
    parts += [f"### {title(kind)}\n\n{_summary(kind)}\n\n{_table(kind)}" for kind in shared]
    return "\n".join(parts)


def anchor(title: str) -> str:
    """Return the anchor of a heading, as most renderers of Markdown make it."""
    return "".join(char for char in title.lower() if char.isalnum() or char in "-_")


def structs() -> list[type[Struct]]:
    """Return all types that occur, each once, by name."""
    ordered: dict[type[Struct], None] = {}
    todo: list[type[Struct]] = list(DOCUMENTS.values())
    while todo:
        kind = todo.pop()
        if kind not in ordered:
            ordered[kind] = None
            for hint in get_type_hints(kind).values():
                todo += _inside(hint)
    return sorted(ordered, key=title)


def title(kind: type) -> str:
    """Return the title of a type on the page."""
    return TITLES.get(kind, kind.__name__)


def fields(kind: type[Struct]) -> list[Field]:
    """Return the rows of a type's table, in the order in which they are printed."""
    hints = get_type_hints(kind)
    return [
        Field(field.encode_name, _named(hints[field.name]), _meaning(kind, field.name))
        for field in msgspec.structs.fields(kind)
    ]


def _inside(hint: Any) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for argument in get_args(hint):
        yield from _inside(argument)


def _named(hint: Any) -> str:
    """Return the name of a type, for people; hangtop's own types link to their tables."""
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return f"[{title(hint)}](#{anchor(title(hint))})"
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return _named_union(inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"map of {_named(inner[1])}"
    if origin in (tuple, list) and (len(inner) == 1 or inner[-1] is Ellipsis):
        return f"list of {_named(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(_named(item) for item in inner)}]"
    return "anything"


def _named_union(members: tuple[Any, ...]) -> str:
    """Return `int or str`, with `?` where it may be null."""
    names = " or ".join(_named(member) for member in members if member is not type(None))
    return f"{names}?" if type(None) in members else names


def _table(kind: type[Struct]) -> str:
    rows = "".join(
        f"| `{field.name}` | {_cell(field.type)} | {_cell(field.meaning)} |\n"
        for field in fields(kind)
    )
    config: Any = kind.__struct_config__
    note = "A list of these values, in this order, without names.\n\n" if config.array_like else ""
    return f"{note}| field | type | meaning |\n|---|---|---|\n{rows}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _summary(kind: type[Struct]) -> str:
    if kind is FlightDiagnosis:
        return DIAGNOSIS
    return (kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip()


def _meaning(kind: type, name: str) -> str:
    for base in kind.__mro__:
        if base in (Struct, object) or name not in inspect.get_annotations(base):
            continue
        own = field_docstrings(base).get(name) or MEANINGS.get(f"{title(base)}.{name}")
        return own or MEANINGS.get(name, "")
    return ""


@cache
def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    docstrings: dict[str, str] = {}
    if not isinstance(tree, ast.ClassDef):
        return docstrings
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings[field.target.id] = inspect.cleandoc(value.value)
    return docstrings


if __name__ == "__main__":
    sys.stdout.write(document())
