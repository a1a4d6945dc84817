"""docs/json.md: current, complete, and true of what commands have really printed."""

from __future__ import annotations

import argparse
import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import Struct

from hangtop.cli.main import build_parser, main
from hangtop.docs import jsondoc
from hangtop.docs.jsonmeanings import MEANINGS
from hangtop.jsonschemas import DOCUMENTS
from support.documents import misfits

ROOT = Path(__file__).parents[4]
PRINTED = ROOT / "tests" / "recordings" / "printed"
"""What commands printed with --json on a job of two ranks, of which one left its loop by an inf."""
NO_FACTS = {"open", "completion", "debug"}
"""Commands that show screens, ask questions, or print files for programs by themselves."""


def test_the_page_is_current() -> None:
    stored = (ROOT / "docs" / "json.md").read_text()
    assert stored == jsondoc.document(), "run python -m hangtop.docs.jsondoc > docs/json.md"


def test_every_field_has_a_type_and_a_meaning_and_no_two_types_one_heading() -> None:
    titles = Counter(jsondoc.anchor(jsondoc.title(kind)) for kind in jsondoc.structs())
    assert [title for title, count in titles.items() if count > 1] == []
    rows = [(kind, row) for kind in jsondoc.structs() for row in jsondoc.fields(kind)]
    assert [f"{kind.__name__}.{row.name}" for kind, row in rows if not row.meaning] == []
    assert [f"{kind.__name__}.{row.name}" for kind, row in rows if "anything" in row.type] == []


def test_no_meaning_is_left_over() -> None:
    read = set()
    bases = {base for kind in jsondoc.structs() for base in kind.__mro__}
    for base in (one for one in bases if issubclass(one, Struct) and one is not Struct):
        for name in inspect.get_annotations(base).keys() - jsondoc.field_docstrings(base):
            own = f"{jsondoc.title(base)}.{name}"
            read.add(own if own in MEANINGS else name)
    assert set(MEANINGS) - read == set()


@pytest.mark.parametrize("path", sorted(PRINTED.iterdir()), ids=lambda path: path.stem)
def test_what_was_printed_fits(path: Path) -> None:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    for line in lines:
        assert misfits(json.loads(line)) == []


def test_all_schemas_were_printed() -> None:
    found = {json.loads(path.read_text().splitlines()[0])["schema"]
             for path in PRINTED.glob("*.jsonl")}  # fmt: skip
    found |= {json.loads(path.read_text())["schema"] for path in PRINTED.glob("*.json")}
    assert found == set(DOCUMENTS)


@pytest.mark.parametrize(
    "words", [("config",), ("demo", "--list"), ("--version", "--verbose")], ids=" ".join
)
def test_what_is_told_of_hangtop_itself_fits(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 0
    assert misfits(json.loads(capsys.readouterr().out)) == []


def test_json_is_refused_where_it_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--json"], ["--json", "dump"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2
        assert "--json goes after a command" in capsys.readouterr().err
    assert main(["demo", "--json"]) == 2


def test_a_field_that_nobody_has_described_is_found() -> None:
    document = json.loads((PRINTED / "dump.json").read_text())
    document["ranks"][0]["threads"][0]["frames"][0]["new"] = 1
    (found,) = misfits(document)
    assert found.startswith("$.ranks[0].threads[0].frames[0]: ")
    assert "'new'" in found
    document["ranks"][0]["pid"] = "7"
    assert any(one.startswith("$.ranks[0].pid: ") for one in misfits(document))


def test_the_schema_of_all_documents_has_each_and_says_what_each_field_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for path in PRINTED.glob("*.json"):
        assert validator.is_valid(json.loads(path.read_text())), path
    assert not validator.is_valid({"schema": "hangtop.dump/1"})
    objects = [part for part in schema["$defs"].values() if "properties" in part]
    assert all(field["description"] for part in objects for field in part["properties"].values())


@pytest.mark.parametrize("name", ["version", "hangtop.version/1"])
def test_the_schema_of_one_document_has_nothing_of_others(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert list(schema["$defs"]) == ["Version"]
    assert main(["--version", "--json"]) == 0
    Draft202012Validator(schema).validate(json.loads(capsys.readouterr().out))


def test_an_unknown_document_is_refused_with_the_names_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--schema", "dumps"]) == 2
    assert "no document 'dumps'; there are diagnosis, dump," in capsys.readouterr().err


def test_every_command_that_prints_facts_has_json() -> None:
    commands: dict[str, Any] = {}
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = dict(action.choices)
    without = {
        name for name, parser in commands.items() if "--json" not in parser._option_string_actions
    }
    assert without == NO_FACTS
