"""What the dynamic symbols of files tell."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_probe.proc import elf

if TYPE_CHECKING:
    from pathlib import Path


def test_an_interpreter_is_one_under_any_name(tmp_path: Path) -> None:
    renamed = shutil.copy(sys.executable, tmp_path / "trainer")
    assert elf.symbols(renamed).is_python
    assert not elf.symbols("/bin/sh").is_python


def static(names: bytes) -> bytes:
    """A program that is linked statically: a table of symbols and their names, and no other."""
    head = elf._HEADER.size
    sections = [(0, 2, 0, 0, head, 0, 1, 0, 8, 24), (0, 3, 0, 0, head, len(names), 0, 0, 1, 0)]
    header = (b"\x7fELF\x02\x01" + bytes(10), 2, 62, 1, 0, 0, head + len(names), 0, head, 56, 0,
              elf._SECTION.size, 2, 1)  # fmt: skip
    rows = b"".join(elf._SECTION.pack(*one) for one in sections)
    return elf._HEADER.pack(*header) + names + rows


@pytest.mark.parametrize(
    ("names", "is_python"), [(b"\0main\0Py_RunMain\0", True), (b"\0main\0Py_Initialize\0", False)]
)
def test_an_interpreter_that_is_linked_statically_is_one(
    tmp_path: Path, names: bytes, is_python: bool
) -> None:
    path = tmp_path / "trainer"
    path.write_bytes(static(names))
    assert elf.symbols(str(path)).is_python is is_python


@pytest.mark.parametrize("head", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 4096])
def test_a_file_that_is_no_program_tells_nothing(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "libc.so.6"
    path.write_bytes(head)
    assert elf.symbols(str(path)) == elf.Symbols()


@pytest.fixture(scope="module")
def program() -> bytes:
    with open(sys.executable, "rb") as file:
        return file.read(4096)


@given(at=st.integers(6, 63), value=st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, program: bytes, at: int, value: bytes
) -> None:
    path = tmp_path_factory.mktemp("elf") / "damaged"
    path.write_bytes(program[:at] + value + program[at + len(value) :])
    elf.symbols(str(path))
