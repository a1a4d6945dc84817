"""Names of many nodes as one."""

from __future__ import annotations

from hangtop_core import nodesets


def test_names_are_folded_as_people_write_them() -> None:
    assert nodesets.fold([]) == ""
    assert nodesets.fold(["gpu01"]) == "gpu01"
    assert nodesets.fold(f"gpu{n:02d}" for n in range(1, 17)) == "gpu[01-16]"
    assert nodesets.fold(["b", "a2", "a1"]) == "a[1-2],b"


def test_what_is_no_node_set_is_joined_by_commas() -> None:
    assert nodesets.fold(["a[", "b"]) == "a[,b"
