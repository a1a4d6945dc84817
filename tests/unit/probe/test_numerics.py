"""What ranks have written about inf and nan, read by way of their descriptors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hangtop_probe import numerics, permission

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pipe_that_has_the_name_of_the_file_holds_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "numerics"
    folder.mkdir()
    path = folder / f"rank0-n1-{os.getpid()}.jsonl"
    os.mkfifo(path)
    writing = os.open(path, os.O_RDWR)
    try:
        told = numerics.piece(os.getpid(), permission.rights())
    finally:
        os.close(writing)
    assert told["failure"]["text"] == "the file is none of this version"


def test_a_number_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "numerics"
    folder.mkdir()
    path = folder / f"rank0-n1-{os.getpid()}.jsonl"
    header = '{"schema":"hangtop.numerics/1","rank":7}'
    path.write_text(f'{header}\n{{"type":"first","step":{"9" * 5000},"batch":-12}}\n')
    with path.open():
        told = numerics.piece(os.getpid(), permission.rights())
    assert told["header"]["rank"] == 7
    assert told["lines"] == [{"type": "first", "step": None, "batch": -12}]
