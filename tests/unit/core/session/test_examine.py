"""Visiting nodes once: who is asked, who is asked again, and when it is over."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.errors import NodeNotReadyError, RefusedError
from hangtop_core.model.snapshot import Node
from hangtop_core.session.examine import Visits, clock_between


class Scripted:
    """A session whose nodes go through the given states, one step at a time."""

    def __init__(self, **nodes: list[str]) -> None:
        self.nodes = nodes
        self.step = 0
        self.asked: list[str] = []

    @property
    def latest(self) -> Any:
        nodes = tuple(
            Node(name, states[min(self.step, len(states) - 1)])  # type: ignore[arg-type]
            for name, states in self.nodes.items()
        )
        return SimpleNamespace(snapshot=SimpleNamespace(nodes=nodes))

    def wait(self, predicate: Any, timeout: float) -> None:
        self.step += 1
        assert self.step < 50, "it does not end"


def visit(session: Scripted, *answers: Any) -> Visits[str]:
    """Visit with these answers in turn; an exception is the error of its request."""
    left = list(answers)

    def ask(_: Any, node: str) -> Future[str]:
        session.asked.append(node)
        future: Future[str] = Future()
        answer = left.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    visits = Visits(session, ask)  # type: ignore[arg-type]
    visits.run(lambda waiting: None, 30.0)
    return visits


def test_each_is_asked_once_it_is_ready() -> None:
    session = Scripted(a=["connecting", "ready"], b=["connecting", "connecting", "denied"])
    visits = visit(session, "yes")
    assert (visits.answers, session.asked) == ({"a": "yes"}, ["a"])
    assert visits.nodes["b"].state == "denied"


def test_a_node_that_was_lost_meanwhile_gets_one_more_chance() -> None:
    session = Scripted(a=["ready", "lost", "connecting", "ready"])
    assert visit(session, NodeNotReadyError("lost"), "yes").answers == {"a": "yes"}
    session = Scripted(a=["ready", "lost", "ready", "lost", "ready"])
    visits = visit(session, NodeNotReadyError("lost"), NodeNotReadyError("again"))
    assert (session.asked, str(visits.errors["a"])) == (["a", "a"], "again")


def test_a_probe_that_refuses_is_not_asked_again() -> None:
    session = Scripted(a=["ready"])
    visits = visit(session, RefusedError("this probe has no request 'check'", "unsupported"))
    assert (len(session.asked), list(visits.errors)) == (1, ["a"])


@given(
    st.floats(0, 1e10),
    st.floats(0, 100),
    st.floats(0, 1),
    st.floats(-1e6, 1e6),
)
def test_the_clock_s_distance_is_within_what_is_said(
    sent: float, way: float, share: float, ahead: float
) -> None:
    clock = clock_between(sent, sent + way, sent + way * share + ahead)
    assert abs(clock.ahead - ahead) <= clock.within + 1e-4


def test_a_clock_that_ran_backwards_here_harms_nothing() -> None:
    assert clock_between(10.0, 9.0, 10.0).within == pytest.approx(0.0)
