"""Ranks in file names, and what is not a dump."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangtop_core.dumps.find import find, rank_of
from hangtop_core.dumps.load import default_patterns
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12", 12),
        ("_dump_3", 3),
        ("rank_12", 12),
        ("rank3.json", 3),
        ("host0.pci3_rank_0", 0),
        ("nccl_trace_rank_container-node02_5", 5),
        ("rank_7_on_node12", 7),
        ("hccl_trace_rank_4.pkl", 4),
        ("torchcomm_fr_trace_9", 9),
        ("crank3", 3),
        ("rank_1000000000", None),
        ("trace_20260101093000", None),
        ("README", None),
        ("notes.txt", None),
    ],
)
def test_the_rank_is_told_from_the_name(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank


@pytest.mark.parametrize(
    ("name", "prefix", "rank"),
    [
        ("trace_3", "trace_", 3),
        ("trace_rank_5_of_8", "rank_", 5),
        ("trace_node02_5", "trace_", 5),
        ("other_3", "trace_", None),
        ("node4trace_3.json", "trace_", 3),
    ],
)
def test_the_rank_stands_behind_a_prefix(name: str, prefix: str, rank: int | None) -> None:
    assert rank_of(name, prefix) == rank


def test_directories_patterns_and_files(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for number in range(3):
        (deep / f"rank_{number}").write_bytes(b"x")
    (deep / "README").write_bytes(b"x")
    (deep / "rank_9").write_bytes(b"")
    os.mkfifo(deep / "rank_8.pipe")
    files, problems = find([str(tmp_path), str(deep / "rank_[01]")])
    assert [one.rank for one in files] == [0, 1, 2]
    assert {(os.path.basename(p.path), p.kind) for p in problems} == {
        ("README", "foreign"),
        ("rank_9", "empty"),
    }


def test_a_link_does_not_rename_the_file_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "rank_9").write_bytes(b"x")
    for name in ("a_rank_7", "rank_24"):  # in the order of names one is before it, one behind
        (tmp_path / name).symlink_to("rank_9")
    files, _ = find([str(tmp_path)])
    assert [(one.rank, os.path.basename(one.path)) for one in files] == [(9, "rank_9")]


def test_what_is_no_file_is_told_where_it_is_named_as_a_dump(tmp_path: Path) -> None:
    for name in ("rank_8.pipe", "rank_8", "control"):
        os.mkfifo(tmp_path / name)
    [problem] = find([str(tmp_path)])[1]
    assert (os.path.basename(problem.path), problem.why) == (
        "rank_8",
        "is no regular file but a FIFO",
    )


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        find([str(tmp_path / "nothing")])
    with pytest.raises(UsageError, match="no such file matches"):
        find([str(tmp_path / "*")])


def test_where_torch_writes() -> None:
    assert default_patterns({"HOME": "/home/u"}) == [
        "/home/u/.cache/torch/comm_lib_trace_rank_*",
        "/tmp/nccl_trace_rank_*",
    ]
    told = default_patterns({"TORCH_FR_DUMP_TEMP_FILE": "/d/fr", "XDG_CACHE_HOME": "/c"})
    assert told[:2] == ["/d/fr*", "/c/torch/comm_lib_trace_rank_*"]
