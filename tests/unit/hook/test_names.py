"""Variables of torch's flight recorder by version."""

from __future__ import annotations

import pytest

from hangtop_hook.names import variables, version_of

OLD = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
RUN = "/runs/7"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.4.1+cu121", (2, 4)),
        ("2.9.0a0+git1234", (2, 9)),
        ("", None),
        ("unknown", None),
    ],
)
def test_version_of(text: str, version: tuple[int, int] | None) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((2, 4), OLD),
        ((2, 7), OLD),
        ((2, 8), {**OLD, "TORCH_FR_BUFFER_SIZE": "2000"}),
        ((2, 10), {**OLD, "TORCH_FR_BUFFER_SIZE": "2000"}),
        ((2, 11), {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}),
        ((2, 14), {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}),
        ((2, 15), {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_ON_TIMEOUT": "1"}),
        ((3, 0), {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_ON_TIMEOUT": "1"}),
        (None, {**OLD, "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_ON_TIMEOUT": "1"}),
    ],
)
def test_names_by_version(version: tuple[int, int] | None, expected: dict[str, str]) -> None:
    assert variables(version, {}) == expected


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ((2, 7), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ((2, 8), "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_dumps_and_pipes_go_to_the_run(version: tuple[int, int], name: str) -> None:
    found = variables(version, {}, RUN)
    assert found[name] == found["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "/runs/7/flight/rank_"
    other = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"} - {name}
    assert other.isdisjoint(found)


def test_what_the_user_set_stays_whatever_its_name() -> None:
    mine = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
        "TORCH_FR_DUMP_TEMP_FILE": "/mine/r",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    # In torch the first name wins, so ours has to repeat the value and not merely be added.
    assert variables((2, 13), mine, RUN) == {
        "TORCH_FR_BUFFER_SIZE": "20000",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/runs/7/flight/rank_",
    }
