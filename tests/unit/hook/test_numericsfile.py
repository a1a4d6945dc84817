"""The settings and the file of a rank that looks for inf and nan: written, read, never trusted."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hangtop_core.errors import NoLogError
from hangtop_core.model.numerics import First, Numerics, earliest
from hangtop_core.report.numerics import numerics_text
from hangtop_core.tools.numerics_files import find, read
from hangtop_hook.measures import Measure
from hangtop_hook.modulenames import Name
from hangtop_hook.numericsfile import File, Settings, from_environment, to_text
from hangtop_probe.node import permission
from hangtop_probe.output import numerics as on_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def frame(batch: int, module: str, *measures: Measure, kind: str = "forward") -> SimpleNamespace:
    code = SimpleNamespace(co_filename="/w/train\x1b[31m.py", co_name="forward")
    return SimpleNamespace(
        kind=kind,
        batch=batch,
        name=Name(module, "Mlp", "Net"),
        site=(code, 41),
        measures=list(measures),
    )


def bad(what: str, batch: int = 7) -> SimpleNamespace:
    measure = Measure("output", "output", (3, 8), (0.5, float(what), None))
    return SimpleNamespace(
        what=what, kind="activation", frame=frame(batch, "layers.2", measure), measure=measure
    )


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run's folder with the file of rank 3."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "n1")
    (tmp_path / "numerics").mkdir()
    file = File(str(tmp_path), Settings(trace=((7, 7),)))
    file.record_batch(6)
    one = bad("inf")
    file.record_bad(one, [frame(6, "layers.1"), one.frame])
    file.trace([one.frame, frame(8, "layers.1")])
    file.note("ended")
    yield tmp_path
    assert file._file is not None
    os.close(file._file)


def test_settings_survive_the_environment() -> None:
    settings = Settings(9, ((1, 1), (3, 5)), 6, stop=True)
    assert from_environment({"HANGTOP_NUMERICS": to_text(settings)}) == settings
    assert from_environment({}) is None
    assert [batch for batch in range(8) if settings.traces(batch)] == [1, 3, 4, 5]


def test_what_is_written_is_read(written: Path) -> None:
    [path] = find([written])
    told = read(path, lambda batch: True)
    assert (told.rank, told.pid, told.failure, told.notes) == (3, os.getpid(), None, ("ended",))
    assert told.seen is not None
    assert told.seen.batch == 6
    first = told.first
    assert first is not None
    assert first.sentence == "inf in output of layers.2 (Mlp) at batch 7"
    assert first.site == "/w/train.py:41"  # without what would colour a terminal
    assert [one.module for one in first.frames] == ["layers.1", "layers.2"]
    assert first.frames[-1].measures[0].high == "inf"
    assert [one.batch for one in told.traced] == [7]
    text = numerics_text([told])
    assert "First: rank 3" in text
    assert "  5.00e-01        inf  output  3x8\n" in text
    narrow = numerics_text([told], 40).split("\n")
    assert max(map(len, narrow)) <= 40
    assert "  activation: inf in output of layers.2 (Mlp) at batch 7, train.py:41" in " ".join(
        line if number == 0 or not line.startswith("    ") else line.strip()
        for number, line in enumerate(narrow)
    )


def test_the_probe_reads_it_by_the_descriptor(written: Path) -> None:
    piece = on_node.piece(os.getpid(), permission.rights())
    assert piece["path"] == str(find([written])[0])
    assert [line["type"] for line in piece["lines"]] == ["first", "note"]
    assert piece["seen"]["batch"] == 6
    assert piece["lines"][0]["frames"][-1]["measures"] == [["output", "output", [3, 8], 0.5, "inf"]]


def test_of_a_process_without_a_file_it_is_said_why() -> None:
    assert on_node.piece(1 << 22, permission.rights())["failure"]["kind"] == "gone"
    without = on_node.piece(os.getpid(), permission.rights())
    assert "--detect-overflow" in without["failure"]["text"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"schema":"hangtop.numerics/9"}\n',
        b'{"schema":"hangtop.numerics/1","rank":"x"}\n',
        b'{"schema":"hangtop.numerics/1"}\n{"type":"first","batch":"one"}\n',
        b'{"schema":"hangtop.numerics/1"}\n{"type":"first","batch":1,"at":NaN}\n',
    ],
)
def test_a_foreign_file_is_a_failure_with_a_reason(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank0-n-1.jsonl"
    path.write_bytes(content)
    told = read(path)
    assert told.failure is not None
    assert "is no numerics file of this version" in told.failure


def test_a_line_that_is_being_written_and_one_of_a_later_version(written: Path) -> None:
    [path] = find([written])
    with path.open("ab") as file:
        file.write(b'{"type":"later","x":1}\n{"type":"first","ba')
    told = read(path)
    assert told.failure is None
    assert len(told.firsts) == 1


def test_without_files_it_is_said_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(NoLogError, match="no numerics file") as raised:
        find([tmp_path])
    assert "--detect-overflow" in (raised.value.help or "")


def test_who_was_first() -> None:
    """The batch decides, then the way there before the way back, then clocks."""

    def rank(number: int, batch: int, way: str, at: float, *, expected: bool = False) -> Numerics:
        first = First(batch=batch, way=way, at=at, expected=expected)
        return Numerics(rank=number, node="n", pid=number, path="p", firsts=(first,))

    later, step = rank(0, 5, "forward", 1.0), rank(1, 4, "step", 2.0)
    there, scaled = rank(2, 4, "forward", 3.0), rank(3, 1, "backward", 0.0, expected=True)
    found = earliest([later, step, there, scaled])
    assert found is not None
    assert found[0].rank == 2
    assert earliest([scaled]) is None


def test_a_full_disk_costs_the_lines_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = File(str(tmp_path / "missing"), Settings())
    file.record_bad(bad("nan"), [])
    assert "the first nan is in output of layers.2 at batch 7" in capsys.readouterr().err


def test_of_an_input_minus_infinity_alone_does_not_count() -> None:
    """Masks are made of it; what it does to an output counts there."""
    inf = math.inf
    assert Measure("input", "input[0]", (8,), (0.0, inf, 0.0)).bad() is None
    assert Measure("input", "input[0]", (8,), (0.0, inf, inf)).bad() == "inf"
    assert Measure("input", "input[0]", (8,), (0.0, math.nan, math.nan)).bad() == "nan"
    assert Measure("output", "output", (8,), (0.0, inf, None)).bad() == "inf"


def test_json_has_no_words_for_nan(written: Path) -> None:
    for line in find([written])[0].read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize("text", ["[1]", "{}", "7", '{"trace": 1}', "[" * 100_000, "x"])
def test_what_nobody_of_us_has_written_is_refused_as_such(text: str) -> None:
    with pytest.raises(ValueError, match="HANGTOP_NUMERICS is none of ours"):
        from_environment({"HANGTOP_NUMERICS": text})
