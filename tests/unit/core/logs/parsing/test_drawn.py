"""Tracebacks that rich and Python draw, by what both really print."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import time
import traceback
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.logging import RichHandler
from rich.traceback import Traceback

from hangtop_core.logs.judging.judge import judge
from hangtop_core.report.logs import logs_text
from support.logs import parsed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hangtop_core.model.file_log import Record

JOB = """\
def load(shard):
    batch = {"data": [shard, shard], "text": "│ /a/b.py:3 in c │"}
    if shard % 2:
        raise ValueError(f"shard {shard} is broken: 1024 values of float32 were expected and 512 "
            "were found in [/data/of/this/project/with/long/names/of/folders/shard.bin:553] here")
    return batch["labels"]


def step(shard):
    try:
        load(shard)
    except KeyError as error:
        raise RuntimeError(f"step {shard} failed") from error


def group(count):
    found = []
    for shard in range(count):
        try:
            step(2 * shard + 1)
        except ValueError as error:
            found.append(error)
    raise ExceptionGroup("loading failed", found)
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Callable[[int], object]]:
    """Functions that raise, in a file whose name is longer than a row of a box."""
    folder = tmp_path / "a folder with blanks" / ("experiment_" * 9)
    folder.mkdir(parents=True)
    path = folder / "train.py"
    path.write_text(JOB)
    names: dict[str, Callable[[int], object]] = {}
    exec(compile(JOB, str(path), "exec"), names)  # what it raises is the test
    return names


def raised(what: Callable[[int], object], shard: int) -> BaseException:
    try:
        what(shard)
    except Exception as error:
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError


def drawn(error: BaseException, width: int, encoding: str = "utf-8", **options: object) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    console = Console(file=file, width=width, legacy_windows=False)
    console.print(Traceback.from_exception(type(error), error, error.__traceback__, **options))  # type: ignore[arg-type]
    file.seek(0)
    return file.read()


def frames(error: BaseException | None) -> list[tuple[str, int | None, str]]:
    assert error is not None
    return [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]


def calls(record: Record) -> list[tuple[str, int | None, str]]:
    return [(call.file, call.line, call.name) for call in record.calls]


def only(text: str) -> Record:
    (one,) = (record for record in parsed(text).records if record.part != "info")
    return one


@pytest.mark.parametrize("width", [50, 80, 100])
@pytest.mark.parametrize("show_locals", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[default3]:[rank3]: "])
def test_a_box_says_what_was_raised_and_where(
    job: dict[str, Callable[[int], object]],
    width: int,
    show_locals: bool,
    encoding: str,
    prefix: str,
) -> None:
    error = raised(job["step"], 1)
    text = drawn(error, width, encoding, show_locals=show_locals)
    lines = "".join(f"{prefix}{line}\n" for line in ["step 1", *text.splitlines(), "step 2"])
    one = only(lines)
    # Where a name fills a row, nothing tells whether it was cut there or a blank was left out.
    assert [(file.replace(" ", ""), *rest) for file, *rest in calls(one)] == [
        (file.replace(" ", ""), *rest) for file, *rest in frames(error)
    ]
    said = " ".join([one.text, *one.lines]) if prefix else one.text
    assert f"ValueError: {error}" in said, "also over several rows"
    assert (one.part, one.how) == ("root", "hook" if prefix else "")


@pytest.mark.parametrize("width", [50, 80, 100])
def test_what_is_chained_is_one_record(job: dict[str, Callable[[int], object]], width: int) -> None:
    error = raised(job["step"], 2)
    one = only(drawn(error, width))
    assert (one.text, one.fields["first"]) == ("RuntimeError: step 2 failed", "KeyError: 'labels'")
    assert calls(one) == [*frames(error.__cause__), *frames(error)]


@pytest.mark.parametrize("how", ["rich", "python"])
@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_a_group_tells_its_first_exception(
    job: dict[str, Callable[[int], object]], how: str, prefix: str
) -> None:
    error = raised(job["group"], 3)
    python = "".join(traceback.format_exception(error))
    text = python if how == "python" else drawn(error, 400)
    one = only("".join(f"{prefix}{line}\n" for line in text.splitlines()) + "next\n")
    assert isinstance(error, ExceptionGroup)
    first = error.exceptions[0]
    assert one.text == f"ValueError: {first}"
    assert one.fields["group"] == "ExceptionGroup: loading failed (3 sub-exceptions)"
    assert calls(one) == [*frames(error), *frames(first)]
    assert one.lines[-1].lstrip()[:2] in ("╰─", "+-"), "the others are in it, too"


def test_a_group_from_which_another_exception_follows_is_the_first(
    job: dict[str, Callable[[int], object]],
) -> None:
    try:
        raise RuntimeError("step 4") from raised(job["group"], 2)
    except RuntimeError as error:
        one = only("".join(traceback.format_exception(error)) + "next\n")
    assert one.text == "RuntimeError: step 4"
    assert one.fields["first"] == "ExceptionGroup: loading failed (2 sub-exceptions)"


@pytest.mark.parametrize("width", [80, 120])
def test_what_a_logger_of_rich_prints_is_logged_and_its_rank_goes_on(
    job: dict[str, Callable[[int], object]], width: int
) -> None:
    file = io.StringIO()
    logger = logging.Logger("train")
    logger.addHandler(RichHandler(console=Console(file=file, width=width), rich_tracebacks=True))
    logger.info("begins")
    error = raised(job["step"], 2)
    logger.error("step 2", exc_info=error)
    for number in range(9):
        logger.info("step %d", number)
    lines = "".join(f"[default3]:{line}\n" for line in file.getvalue().splitlines())
    log = parsed(lines)
    (one,) = [record for record in log.records if record.code == "traceback"]
    assert (one.text, one.how) == ("RuntimeError: step 2 failed", "logged")
    assert calls(one) == [*frames(error.__cause__), *frames(error)]
    judged = judge([log])
    assert judged.first is not None
    assert judged.first.record.part == "survived"
    assert not judged.others
    # Two frames and the exception, not some twenty rows of code.
    text = logs_text(judged, (), [log], 300)
    assert f"  | {error.__traceback__.tb_frame.f_code.co_filename}:" in text  # type: ignore[union-attr]
    assert "╭" not in text


def test_colours_of_python_3_13_are_no_part_of_names(tmp_path: Path) -> None:
    """As its Lib/traceback.py prints them; where that Python is, it does."""
    path = tmp_path / "train.py"
    path.write_text("def f():\n    return {}['labels']\n\nf()\n")
    if sys.version_info < (3, 13):
        text = (
            "Traceback (most recent call last):\n"
            f'  File \x1b[35m"{path}"\x1b[0m, line \x1b[35m4\x1b[0m, in \x1b[35m<module>\x1b[0m\n'
            "    \x1b[31mf\x1b[0m\x1b[1;31m()\x1b[0m\n    \x1b[31m~\x1b[0m\x1b[1;31m^^\x1b[0m\n"
            f'  File \x1b[35m"{path}"\x1b[0m, line \x1b[35m2\x1b[0m, in \x1b[35mf\x1b[0m\n'
            "    return \x1b[31m{}\x1b[0m\x1b[1;31m['labels']\x1b[0m\n"
            "           \x1b[31m~~\x1b[0m\x1b[1;31m^^^^^^^^^^\x1b[0m\n"
            "\x1b[1;35mKeyError\x1b[0m: \x1b[35m'labels'\x1b[0m\n"
        )
    else:
        done = subprocess.run(
            [sys.executable, str(path)],
            env={"FORCE_COLOR": "1", "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        text = done.stderr
        assert "\x1b[" in text
    one = only(text)
    assert calls(one) == [(str(path), 4, "<module>"), (str(path), 2, "f")]
    assert one.text == "KeyError: 'labels'"


@pytest.mark.parametrize(
    "rows",
    [
        ["│ " * 30_000 + "x" * 4_000],
        ["│ /" + "a:1" * 20_000 + " │", "│" + " " * 60_000 + "x"],
        ["╭" + "─" * 60_000 + " Traceback ("],
        ["│ " + "1" * 60_000 + ":3 in" + " " * 500 + "│", "│ │"] * 10,
    ],
)
def test_rows_that_were_made_to_take_long_do_not(rows: list[str]) -> None:
    began = time.process_time()
    parsed("\n".join(["╭─ Traceback (most recent call last) ─╮", *rows * 5, "╰─╯", "A: b", ""]))
    assert time.process_time() - began < 5.0
