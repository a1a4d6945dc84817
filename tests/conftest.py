"""What all tests share: nothing may be left running, and what was skipped is told at the end."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from support.jobs import POOL_VARIABLE
from support.processes import command_line, wait_until, with_variable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
# A busy machine makes any example slow, which is no fault of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
RUN_VARIABLE = "HANGTOP_TEST_RUN"
LIMIT_S = 900
"""Seconds for a real test: much more than what it waits for can take on any machine."""
RUN = secrets.token_hex(6)
"""Inherited by every process that these tests start, however deep."""
# Containers often forbid Python to keep what it has compiled. Then each of the hundreds of
# processes that tests start would compile all of hangtop anew, which is half of its start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Raise(logging.Handler):
    """Raises what a rule has raised, which outside of tests only leaves that rule out."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise it again."""
        assert record.exc_info is not None
        assert record.exc_info[1] is not None
        raise record.exc_info[1]


logging.getLogger("hangtop_core.analysis.verdict.engine").addHandler(Raise())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first (`make test` runs three files at a time)."""
    items.sort(key=_turn)
    for item in items:
        if "real" in item.path.parts:
            # What it waits for in its fixtures counts, too.
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def _turn(item: pytest.Item) -> int:
    if item.path.name == "test_scenarios.py":
        return 0
    return 1 if "real" in item.path.parts else 2


@pytest.fixture(scope="session", autouse=True)
def _nothing_outlives_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ[RUN_VARIABLE] = RUN
    # Neither the config file nor the node groups of whoever runs the tests count.
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    # Whoever runs the tests in the background may ignore these, and what we start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    packages = [str(ROOT / "core"), str(ROOT / "tui"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, packages))
    yield
    _expect_gone(without=None)


@pytest.fixture(scope="module", autouse=True)
def _nothing_outlives_a_module_of_real_tests(
    request: pytest.FixtureRequest, _nothing_outlives_the_tests: None
) -> Iterator[None]:
    """Checked per module, since the tests of one module may share a job."""
    yield
    if "real" in request.node.path.parts:
        _expect_gone(without=POOL_VARIABLE)


def _expect_gone(without: str | None) -> None:
    gone = wait_until(lambda: not with_variable(RUN_VARIABLE, RUN, without))
    left = [f"{pid} {command_line(pid)[:120]}" for pid in with_variable(RUN_VARIABLE, RUN, without)]
    assert gone, f"processes that the test started are still there: {left}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once per reason what this machine could not test."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("not tested on this machine")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count} test{'s' if count > 1 else ''}: {reason}")
