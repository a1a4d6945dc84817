"""How often pictures are made: soon for small jobs, never so often that little is read."""

from __future__ import annotations

import pytest

from hangtop_core.session.schedule import Schedule


def rhythm(cpu: float, took: float | None = None, interval: float = 1.0) -> Schedule:
    one = Schedule(interval)
    one.made(100.0, 100.0 + (cpu if took is None else took), cpu)
    return one


def test_the_first_one_is_due_at_once() -> None:
    assert Schedule(1.0).wait(1000.0, urgent=False, rests=False, behind=False) <= 0


@pytest.mark.parametrize(
    ("cpu", "plain", "urgent", "rests"),
    [(0.001, 1.0, 0.2, 1.6), (0.004, 1.0, 0.2, 6.4), (0.1, 1.0, 1.0, 160), (0.4, 1.2, 1.2, 600)],
)
def test_the_dearer_the_seldomer(cpu: float, plain: float, urgent: float, rests: float) -> None:
    """4, 128, 2,048 and 8,192 ranks, by what one picture of them takes."""
    one = rhythm(cpu)
    found = one.gap(), one.gap(urgent=True), one.gap(rests=True)
    assert found == pytest.approx((plain, urgent, rests))
    assert one.gap(urgent=True, rests=True) == pytest.approx(urgent), "what is new is not at rest"
    assert one.gap(settled=True) == pytest.approx(max(1.0, 10 * cpu)), "a verdict is there"


def test_what_nodes_say_is_read_before_the_next_one() -> None:
    """Where a picture that takes 0.3 s of processor takes 2 s, because others have it."""
    one = rhythm(0.3, took=2.0)
    assert one.gap(behind=True) >= 5 * 2.0
    assert one.gap() == pytest.approx(1.0)
    assert one.wait(102.0, urgent=False, rests=False, behind=False) == pytest.approx(1.0), (
        "counted from the end of the last one"
    )
    assert rhythm(0.002).gap(urgent=True, behind=True) == pytest.approx(0.2), "small jobs"


def test_a_long_interval_is_kept() -> None:
    assert rhythm(0.002, interval=5.0).gap(rests=True) == pytest.approx(5.0)
    assert rhythm(0.002, interval=5.0).gap(urgent=True) == pytest.approx(0.2)


def test_while_nodes_come_in_few_show_that_they_do() -> None:
    assert rhythm(0.005).gap(arriving=True) == pytest.approx(0.2)
    assert rhythm(0.1).gap(urgent=True, arriving=True) == pytest.approx(4.0)
    assert rhythm(0.3).gap(arriving=True) == pytest.approx(5.0), "and not never"
    assert rhythm(0.01).gap(arriving=True, growth=8.0) == pytest.approx(3.2), "by what it costs now"
    assert rhythm(0.01).gap(urgent=True, growth=8.0) == pytest.approx(0.2)
    wait = rhythm(0.01).wait(
        100.0, urgent=False, rests=False, behind=False, arriving=True, growth=8.0
    )
    assert wait == pytest.approx(0.01 + 3.2)
