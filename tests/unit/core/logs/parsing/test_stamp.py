"""Times of log lines, in the forms that are used."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hangtop_core.logs.parsing.stamp import stamp, without_time

NEAR = datetime(2026, 11, 21, 12, 0, 0).timestamp()


def local(*parts: int) -> float:
    return datetime(*parts).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("2026-11-21 11:17:50,250 INFO train: step", local(2026, 11, 21, 11, 17, 50) + 0.25),
        ("[2026-11-21T11:17:50] x", local(2026, 11, 21, 11, 17, 50)),
        ("2026-11-21_11:17:50", local(2026, 11, 21, 11, 17, 50)),
        ("W1121 11:17:50.500000 240 torch/x.py:1] y", local(2026, 11, 21, 11, 17, 50) + 0.5),
        ("[E1206 18:44:12.5 File.cpp:1] x", local(2025, 12, 6, 18, 44, 12) + 0.5),
        ("[E321 02:07:08.5 File.cpp:1] x", local(2026, 3, 21, 2, 7, 8) + 0.5),
        ("Nov 21 11:17:50 n1 kernel: x", local(2026, 11, 21, 11, 17, 50)),
        ("[Sat Nov 21 11:17:50 2026] Out of memory", local(2026, 11, 21, 11, 17, 50)),
        ("11:17:50 step 3", local(2026, 11, 21, 11, 17, 50)),
        ("23:17:50 step 3", local(2026, 11, 20, 23, 17, 50)),
    ],
)
def test_times_are_read(line: str, at: float) -> None:
    assert stamp(line, NEAR) == pytest.approx(at)


def test_a_zone_counts() -> None:
    utc = datetime(2026, 11, 21, 11, 17, 50, tzinfo=UTC).timestamp()
    assert stamp("2026-11-21T11:17:50Z x", NEAR) == utc
    assert stamp("2026-11-21T13:17:50+02:00 x", NEAR) == utc
    assert stamp("2026-11-21T06:17:50.5-0500 x", NEAR) == utc + 0.5


@pytest.mark.parametrize("line", ["", "step 3", "2026-13-40 99:99:99", "[E9999 11:11:11.1 x"])
def test_what_is_no_time_is_none(line: str) -> None:
    assert stamp(line, NEAR) is None


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("2026-11-21 11:17:50,155 INFO step 3", "INFO step 3"),
        ("[2026-11-21 11:17:50,155][train][INFO] - step 3", "[train][INFO] - step 3"),
        ("[W1121 11:17:50.738000000 TCPStore.cpp:340] retrying", "TCPStore.cpp:340] retrying"),
        ("11:17:50 step 3", "step 3"),
        ("step 3 at 2026-11-21 11:17:50", "step 3 at 2026-11-21 11:17:50"),
        ("2026-11-21 11:17:50", "2026-11-21 11:17:50"),
    ],
)
def test_what_a_line_says_beside_its_time(line: str, rest: str) -> None:
    assert without_time(line) == rest
