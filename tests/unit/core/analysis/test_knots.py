"""Sends and receives of which each waits for another: who is in the knot, and who behind it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.callers import parts_of
from hangtop_core.analysis.verdict.p2pwaits import _step, _way
from hangtop_core.model.snapshot import Local
from support import situations
from support.build import World, judged
from support.situations import FUTEX, c10d, frame, user


def told(world: World, **job: Any) -> tuple[str, list[int | None]]:
    verdict = judged(world, **job).verdicts[0]
    return verdict.cause, [one.rank for one in verdict.culprits]


def passing(*calls: tuple[str, int, str]) -> World:
    """Ranks in `send` or `recv`, each with the line that calls it."""
    world = World()
    for name, line, source in calls:
        world.add((c10d(name, 2799, line)[0], *user("step", line, source)), FUTEX)
    return world


BACK, ON = "dist.recv(grad, src=self.next)", "dist.recv(x, src=self.prev)"


@pytest.mark.parametrize(
    ("sources", "culprits"),
    [
        ((BACK, BACK, ON, ON), [1, 2]),
        ((BACK, ON, ON, ON), [0, 1]),
        (("recv(g, rank + 1)", "recv(g, rank + 1)", "recv(g, rank + 1)", "recv(x, rank - 1)"),
         [2, 3]),
        (("recv(x, (rank - 1) % world_size)",) * 4, [0, 1, 2, 3]),
        (("recv(x, src=rank ^ 1)",) * 2 + ("recv(x, src=0)",) * 2, [0, 1]),
        # A pair that exchanges, and one behind it.
        (("recv(x, src=peer)", "recv(x, src=peer)", "recv(y, src=self.index - 1)"), [0, 1]),
        (("recv(x, src=peer)", "recv(x, src=peer)"), [0, 1]),
        # Nobody can tell: all of them, and that it is not known.
        (("recv(x, src=peer)", "recv(x, src=peer)", "recv(", "recv("), [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_who_waits_for_whom_is_as_the_line_says(
    sources: tuple[str, ...], culprits: list[int]
) -> None:
    world = passing(*(("recv", 40 + len(text), text) for text in sources))
    assert told(world) == ("p2p-deadlock", culprits)
    assert len(judged(world).verdicts) == 1


def test_those_behind_the_knot_are_victims_and_the_sentence_says_why() -> None:
    world = passing(*(("recv", 40 + len(text), text) for text in (BACK, BACK, ON, ON)))
    (verdict,) = judged(world).verdicts
    assert verdict.victims == (0, 3)
    assert "for rank 2 (`self.next`)" in verdict.summary
    assert "rank 0 for rank 1, rank 3 for rank 2" in verdict.summary


def given(*calls: tuple[str, int | None], reduce: int = 0) -> World:
    """Ranks that some reduce before, in `send` or `recv`, and what torch's function was given."""
    world = World()
    world.waiters(reduce)
    for name, peer in calls:
        world.add((c10d(name, 2799, 58)[0], *user("trade", 58, f"dist.{name}(x, peer)")), FUTEX)
        told = Local("src" if name == "recv" else "dst", str(peer), argument=True)
        one = world.ranks[-1]
        assert one.sample is not None
        main = replace(one.sample.threads[0], locals=((told,), ()))
        world.ranks[-1] = replace(one, sample=replace(one.sample, threads=(main,)))
    return world


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        # Two of one colour, one behind them, and one that is through: nobody waits for that.
        (given(("recv", 2), ("recv", 3), ("recv", 2), reduce=1), ("p2p-deadlock", [2, 3])),
        (given(("recv", 1), ("recv", 2), ("recv", 0)), ("p2p-deadlock", [0, 1, 2])),
        (given(("send", 1), ("send", 2), ("send", 1)), ("p2p-deadlock", [1, 2])),
        (given(("recv", 0), ("recv", 1), ("recv", 2), reduce=1), ("p2p-chain", [0])),
        # The chain ends at one of those that reduce.
        (given(("recv", 1), ("recv", 2), ("recv", 3), reduce=2), ("p2p-chain", [1])),
        # What was not read may be anybody.
        (given(("recv", None), ("recv", 0), ("recv", 2), reduce=1), ("p2p-chain", [0])),
        (given(("recv", 9), ("recv", 0), ("recv", 2), reduce=1), ("p2p-chain", [0])),
    ],
)
def test_who_waits_for_whom_is_as_torch_was_given(
    world: World, expected: tuple[str, list[int]]
) -> None:
    assert told(world) == expected


def test_what_torch_was_given_is_told_as_such_and_what_is_not_known_as_well() -> None:
    (verdict,) = judged(given(("recv", 2), ("recv", 3), ("recv", 2), reduce=1)).verdicts
    assert "rank 2 waits in recv at train.py:58 (trade), for rank 3 (its `src`)" in verdict.summary
    assert verdict.victims == (0, 1)
    texts = [one.text for one in verdict.evidence]
    assert "`dst` and `src` are what torch's `send` and `recv` were given" in texts
    assert not any("neighbours" in text for text in texts)
    (verdict,) = judged(given(("recv", None), ("recv", None), ("recv", 2), reduce=1)).verdicts
    assert "; or some of ranks 1-3 wait for each other: for whom is not known" in verdict.summary


PAIRS = [("send", 1), ("send", 0), ("send", 3), ("send", 2)]


def test_circles_that_have_nothing_to_do_with_each_other_are_told_as_such() -> None:
    (verdict,) = judged(given(*PAIRS)).verdicts
    assert [one.rank for one in verdict.culprits] == [0, 1, 2, 3]
    assert verdict.summary.startswith("ranks 0-1 wait for each other, and so do ranks 2-3 for 5:00")
    many = [("send", rank ^ 1) for rank in range(10)]
    summary = judged(given(*many)).verdicts[0].summary
    assert "and so do ranks 2-3 and ranks 4-5 and ranks 6-7, 5 circles" in summary


def test_of_pairs_that_exchange_one_may_not_have_told_for_whom_it_waits() -> None:
    (verdict,) = judged(given(("send", None), *PAIRS[1:])).verdicts
    assert [one.rank for one in verdict.culprits] == [0, 1, 2, 3]
    assert "rank 0 waits in send at train.py:58 (trade), for rank 1 (`peer`)" in verdict.summary
    # Two of different pairs are not taken for one.
    (verdict,) = judged(given(PAIRS[0], ("send", None), PAIRS[2], ("send", None))).verdicts
    assert [one.rank for one in verdict.culprits] == [0, 1, 2, 3]
    assert verdict.summary.startswith("ranks 0-1 wait for each other, and so do ranks 2-3 for 5:00")
    # They do not all go in pairs: it may wait for any rank.
    world = given(("send", None), *PAIRS[1:], ("send", 2))
    (verdict,) = judged(world).verdicts
    assert [one.rank for one in verdict.culprits] == [2, 3]
    assert verdict.summary.endswith("; for whom rank 0 waits is not known")


def test_a_send_and_a_recv_that_do_not_meet_are_told_with_less_confidence() -> None:
    (verdict,) = judged(given(("send", 1), ("recv", 0))).verdicts
    assert (verdict.cause, verdict.confidence) == ("p2p-deadlock", 0.65)
    assert "may be of other groups or tags, or not get through" in verdict.summary


def waits_in(*names: str) -> situations.Stack:
    inner = frame("_communicate", "train.py", 22, "req.wait()")
    return (
        inner,
        *(frame(name, "train.py", 30 + i) for i, name in enumerate(names)),
        *situations.BASE,
    )


def test_stages_that_wait_for_what_they_posted_are_told_by_their_functions() -> None:
    world = World()
    for name in ("recv_backward", "recv_backward", "send_forward_recv_backward", "recv_forward"):
        world.add(waits_in(name, "train_step"), FUTEX)
    assert told(world) == ("p2p-deadlock", [2, 3])
    assert len(judged(world).verdicts) == 1


def test_a_knot_of_some_while_the_others_reduce() -> None:
    world = World()
    world.waiters(2)
    for line, source in ((50, "dist.recv(x, src=3)"), (58, "dist.recv(x, src=2)")):
        world.add((c10d("recv", 2753, line)[0], *user("step", line, source)), FUTEX)
    assert told(world) == ("p2p-deadlock", [2, 3])


def test_a_chain_of_which_the_head_is_outside_communication() -> None:
    world = passing(("send", 41, "dist.send(y, dst=self.rank + 1)"))
    world.add(user("refresh", 32, "time.sleep(1)"), situations.SLEEP)
    for _ in range(2):
        world.add((c10d("recv", 2799, 44)[0], *user("step", 44, ON)), FUTEX)
    (verdict,) = judged(world).verdicts
    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("p2p-chain", [1])
    for told_so in (
        "rank 0 (`self.rank + 1`) and rank 2 (`self.prev`) for it",
        "rank 3 for rank 2",
    ):
        assert told_so in verdict.summary
    assert verdict.victims == (0, 2, 3)


def test_of_several_outside_only_those_that_are_waited_for_are_the_head() -> None:
    world = passing(("recv", 41, "dist.recv(x, src=2)"))
    for _ in range(3):
        world.add(user("refresh", 32, "time.sleep(1)"), situations.SLEEP)
    assert told(world) == ("p2p-chain", [2])


@pytest.mark.parametrize(("source", "reduce"), [("recv(x, src=2)", 0), ("recv(x, src=far)", 1)])
def test_who_is_outside_is_no_head_where_others_wait_elsewhere(source: str, reduce: int) -> None:
    world = passing(("recv", 41, source))
    world.add(user("refresh", 32, "time.sleep(1)"), situations.SLEEP)
    world.add((c10d("recv", 2799, 44)[0], *user("step", 44, "dist.recv(x, src=0)")), FUTEX)
    world.waiters(reduce)
    assert told(world) == ("missing-collective", [1])


def test_a_chain_ends_at_who_went_on_to_a_collective() -> None:
    world = World()
    for name in ("recv_backward", "recv_backward", "send_forward_recv_backward"):
        world.add(waits_in(name), FUTEX)
    world.waiters(1)
    assert told(world) == ("p2p-chain", [3])
    (verdict,) = judged(world).verdicts
    assert "ranks 0-2 wait for one another in a chain" in verdict.summary
    assert "for rank 3 (`send_forward_recv_backward`); behind it rank 0" in verdict.summary
    assert "It went on without what rank 2 waits for" in verdict.summary
    assert verdict.victims == (0, 1, 2)


def test_a_chain_beside_ranks_that_wait_for_its_head() -> None:
    world = World()
    world.waiters(4)
    for name in ("recv_backward", "recv_backward"):
        world.add(waits_in(name), FUTEX)
    world.waiters(1)
    assert told(world) == ("p2p-chain", [6])
    assert "; ranks 0-3 wait in all_reduce" in judged(world).verdicts[0].summary


@pytest.mark.parametrize("source", ["dist.recv(grad, src=1)", "dist.recv(grad, src=self.next)"])
def test_one_of_two_that_went_on(source: str) -> None:
    world = passing(("recv", 41, source))
    world.waiters(1)
    assert told(world) == ("p2p-chain", [1])
    assert "It went on without the send that rank 0 waits for" in judged(world).verdicts[0].summary


def test_one_that_receives_while_most_reduce_may_itself_be_the_odd_one() -> None:
    world = passing(("recv", 41, "dist.recv(x, src=rank + 1)"))
    world.waiters(3)
    assert told(world) == ("mismatched-collective", [0])


def test_a_chain_that_ends_at_who_makes_a_group_is_not_told() -> None:
    world = World()
    for name in ("recv_backward", "recv_backward"):
        world.add(waits_in(name), FUTEX)
    world.add(c10d("new_group", 5000, 12), FUTEX)
    assert told(world)[0] == "subset-new-group"


def test_workers_that_send_gradients_to_a_server_are_no_stages() -> None:
    world = World()
    world.add(waits_in("recv_grads"), FUTEX)
    for _ in range(3):
        world.add(waits_in("send_grads"), FUTEX)
    assert told(world)[0] != "p2p-deadlock"


def test_somebody_outside_communication_is_the_cause_and_no_knot() -> None:
    world = passing(*(("recv", 40 + len(text), text) for text in (BACK, ON)))
    world.add(user("load", 12, "time.sleep(1)"), situations.SLEEP)
    assert told(world)[1] == [2]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("recv_forward", -1), ("send_forward_recv_backward", 1), ("_exec_recv_grads", 1),
        ("send_backward_recv_forward", -1), ("recv_from_prev", -1), ("send_next", 1),
        ("send_forward_recv_forward", 0), ("forward", None), ("receive_batch", None),
    ],
)  # fmt: skip
def test_functions_of_pipelines_say_which_way_they_go(name: str, way: int | None) -> None:
    assert _way(name) == way


@pytest.mark.parametrize(
    ("text", "step"),
    [("self.next_rank", 1), ("ranks[i - 1]", -1), ("left", -1), ("peer", None), ("ranks[2]", None)],
)
def test_what_a_neighbour_is_called(text: str, step: int | None) -> None:
    assert _step(text) == step


@pytest.mark.parametrize("opens", ["(", "[", "-", "not ", "lambda:"])
def test_a_line_that_is_nested_beyond_measure_tells_nothing(opens: str) -> None:
    """Lines come from nodes."""
    closes = {"(": ")", "[": "]"}.get(opens, "")
    for depth in (40, 90, 1000, 20_000):
        nested = f"dist.recv(x, src={opens * depth}1{closes * depth})"
        assert told(passing(*[("recv", 1, nested)] * 3))[1] == [0, 1, 2]


@pytest.mark.parametrize(
    "line", ["el.send(x, 1)", "elif send(x, 1):", "else: send(x, 1)", "if send(x, 1):"]
)
def test_a_line_is_read_whatever_it_begins_with(line: str) -> None:
    assert any(isinstance(one, ast.Call) for one in parts_of(line))


def test_of_a_line_that_python_would_warn_of_nothing_is_read(recwarn: Any) -> None:
    assert not parts_of(r"send(x, dst=peers['\d'])")
    assert not recwarn.list
