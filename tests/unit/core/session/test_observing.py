"""By which words a job is found, and how long one is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from hangtop_core.jobs.named import answers_to
from hangtop_core.model.numerics import Numerics
from hangtop_core.model.recurring import Wait
from hangtop_core.model.snapshot import Job, Snapshot
from hangtop_core.model.updates import Update
from hangtop_core.session.observing import (
    LATE_S,
    LATE_STACKS_S,
    Lack,
    decided,
    has_job,
    is_young,
    lacking,
    lacks_answers,
    limit_s,
    wait_while,
)
from hangtop_hook.numericsfile import VARIABLE
from support.build import NOW, World
from support.situations import BACKWARD, INIT, LOADER, POLL, RUN, SAVE, SLEEP, Stack, user
from support.verdicts import diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import NodeState, Rank
    from hangtop_core.session.session import Session


def test_a_job_is_whole_once_no_number_may_still_be_found_out() -> None:
    """As by a stack; of a program that was named and is no rank there is none."""
    world = World()
    first, second = world.add(user("step", 3), SLEEP), world.add(user("step", 3), SLEEP)

    def is_whole(**fields: object) -> bool:
        nameless = replace(second, process=replace(second.process, **fields))
        job = replace(world.snapshot().jobs[0], ranks=(first, nameless))
        update = Update(replace(world.snapshot(), jobs=(job,)), {})
        return has_job(update, None, whole=True) and has_job(update, None)

    assert is_whole(rank=1)
    assert not is_whole(rank=None)
    assert is_whole(rank=None, rank_source="--pid")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("run 4711 gpu01:29500", True),
        ("gpu01:29500", True),
        ("29500", True),
        ("train.py", True),
        ("abc", True),
        ("run", False),
        ("gpu01", False),
        ("2950", False),
        ("", False),
    ],
)
def test_a_job_goes_by_its_key_its_port_its_name_and_its_run_id(word: str, found: bool) -> None:
    job = Job("run 4711 gpu01:29500", "train.py", "torchrun", "abc", 2, None)
    assert answers_to(job, word) == found


@pytest.mark.parametrize("word", ["gpu01/net 4026532:29500", "gpu01:29500", "29500"])
def test_a_job_in_a_container_goes_by_its_node_and_port(word: str) -> None:
    key = "gpu01/net 4026532:29500"
    job = Job(key, "train.py", "torchrun", None, 2, "localhost:29500", nodes=("gpu01",))
    assert answers_to(job, word)
    assert not answers_to(job, word.replace("gpu01", "gpu02").replace("29500", "29501"))


def test_observing_goes_on_while_nothing_is_decided() -> None:
    assert decided(diagnosis("progressing"), 5.0)
    assert decided(diagnosis("hung", verdicts=1), 5.0)
    assert not decided(diagnosis("hung"), 4.0)  # evidence may still come
    assert not decided(diagnosis("unknown", stalled=20.0), 25.0)
    assert not decided(diagnosis("starting", stalled=1.0), 5.0)
    assert not decided(diagnosis("starting", stalled=12.0), 12.0)  # a rendezvous that lasts
    assert decided(diagnosis("starting", stalled=1.0), 11.0)


@pytest.mark.parametrize(
    ("at_least", "hang_after", "most"),
    [
        (5.0, 5.0, 8.0),
        (10.0, 10.0, 13.0),
        (60.0, 60.0, 80.0),
        (60.0, 10.0, 63.0),
        (5.0, 30.0, 50.0),
    ],
)
def test_who_observes_for_as_long_as_a_hang_takes_gets_an_answer_about_then(
    at_least: float, hang_after: float, most: float
) -> None:
    assert hang_after < limit_s(at_least, hang_after) <= most


def test_ranks_that_may_still_give_a_first_stack_are_waited_for() -> None:
    world = World()
    for _ in range(3):
        world.add(user("rest", 4), SLEEP)
    whole = world.snapshot()
    (job,) = whole.jobs
    late = replace(job.ranks[2], sample=None)

    def lacking(last: Rank, state: NodeState = "ready") -> bool:
        nodes = tuple(replace(node, state=state) for node in whole.nodes)
        now = replace(job, ranks=(*job.ranks[:2], last))
        return lacks_answers(job, Update(replace(whole, nodes=nodes, jobs=(now,)), {}, 0.0))

    assert lacking(late)
    assert not lacking(job.ranks[2])
    assert not lacking(late, "lost")
    assert not lacking(replace(late, state="zombie"))
    assert not lacking(replace(late, process=replace(late.process, denied="it belongs to root")))
    watched = replace(job.ranks[2], process=replace(job.ranks[2].process, env={VARIABLE: "1"}))
    assert lacking(watched), "it may tell of a nan"
    assert not lacking(replace(watched, numerics=Numerics(2, "n1", 7, "/run/rank2")))


def test_stacks_that_are_late_are_told_from_what_nobody_can_know_yet() -> None:
    world = World()
    for _ in range(2):
        world.add(user("rest", 4), SLEEP)
    whole = world.snapshot()
    (job,) = whole.jobs
    late = replace(job, ranks=(job.ranks[0], replace(job.ranks[1], sample=None)))

    def lack(now: Job, found: Diagnosis) -> Lack | None:
        update = Update(replace(whole, jobs=(now,)), {job.key: found}, 0.0)
        return lacking(update, job, 20.0, 1.0)

    assert lack(late, diagnosis("unknown", stalled=20.0)) == "stacks"
    assert lack(job, diagnosis("unknown", stalled=20.0)) == "certainty"
    assert lack(late, diagnosis("hung", verdicts=1)) is None, "who is to blame is known"


@pytest.mark.parametrize(
    ("stacks", "left_ago", "expected"),
    [
        ((INIT, INIT), 1.0, "certainty"),
        ((INIT, user("load", 4)), 1.0, None),
        # It has slept in one call for long: for a service that does not answer, say.
        ((INIT, user("connect", 4)), 12.0, "certainty"),
    ],
)
def test_a_start_in_which_all_have_come_to_wait_is_observed_for_as_long_as_a_hang(
    stacks: tuple[Stack, ...], left_ago: float, expected: Lack | None
) -> None:
    """To resolve names that nobody knows, and to connect, takes seconds each."""
    world = World()
    for stack in stacks:
        world.add(stack, SLEEP, left_at=NOW - (left_ago if stack != INIT else 1.0))
    whole = world.snapshot()
    (job,) = whole.jobs
    update = Update(whole, {job.key: diagnosis("starting", stalled=1.0)}, 0.0)
    assert lacking(update, job, 12.0, 1.0) == expected


@pytest.mark.parametrize(
    ("for_ranks", "elapsed", "expected"),
    [(True, 6.0, "certainty"), (True, 31.0, None), (False, 6.0, None)],
)
def test_a_job_whose_ranks_have_waited_for_each_other_is_observed_for_some_steps(
    for_ranks: bool, elapsed: float, expected: Lack | None
) -> None:
    world = World()
    for _ in range(2):
        world.add(user("step", 4), RUN, waits=(Wait(NOW - 5, NOW - 2, for_ranks),))
    whole = world.snapshot()
    (job,) = whole.jobs
    update = Update(whole, {job.key: diagnosis("progressing")}, 0.0)
    assert lacking(update, job, elapsed, 1.0) == expected
    # Also where it is known already who is slow; not once the steps are measured.
    slow = replace(diagnosis("progressing", verdicts=1), state="progressing")
    told = (replace(slow.verdicts[0], cause="straggler", confidence=0.8),)
    for state, more in (("progressing", expected), ("slow", None)):
        found = {job.key: replace(slow, state=state, verdicts=told)}
        assert lacking(Update(whole, found, 0.0), job, elapsed, 1.0) == more


@pytest.mark.parametrize(
    ("stack", "children", "elapsed", "expected"),
    [
        (LOADER, 0.9, 6.0, "certainty"),
        # It does not wait for its worker, all go on together, or that was long enough.
        (LOADER, 0.0, 6.0, None),
        (BACKWARD, 0.9, 6.0, None),
        (LOADER, 0.9, 31.0, None),
    ],
)
def test_a_rank_whose_worker_all_wait_for_is_observed_until_that_is_told(
    stack: Stack, children: float, elapsed: float, expected: Lack | None
) -> None:
    """A batch may take much longer than a few seconds, and it gets on meanwhile."""
    world = World()
    world.waiters(2)
    world.add(stack, POLL, main_cpu_share=0.0, child_cpu_share={4444: children})
    whole = world.snapshot()
    (job,) = whole.jobs
    update = Update(whole, {job.key: diagnosis("progressing")}, 0.0)
    assert lacking(update, job, elapsed, 1.0) == expected


class Seconds:
    """A session whose n-th second lacks what is said; the last one stays."""

    def __init__(self, *lacks: Lack | None) -> None:
        self.lacks, self.now = lacks, 0

    def lack(self, update: Update) -> Lack | None:
        return self.lacks[min(update.snapshot.tick, len(self.lacks) - 1)]

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> Update | None:
        until = self.now + round(timeout)
        while not predicate(update := Update(Snapshot(0.0, 0.0, self.now), {}, 0.0)):
            if self.now >= until:
                return None
            self.now += 1
        return update


@pytest.mark.parametrize(
    ("lacks", "seconds"),
    [
        (("time", "certainty", None), 2),
        (("certainty",), 14),
        # On a node, or a head, that has far too much to do.
        ((*["stacks"] * 40, "certainty", "certainty", None), 42),
        ((*["stacks"] * 40, "certainty"), 40 + LATE_S),
        (("stacks",), 14 + LATE_STACKS_S),
    ],
)
def test_for_stacks_that_are_late_it_is_waited_longer(
    lacks: tuple[Lack | None, ...], seconds: float
) -> None:
    session = Seconds(*lacks)
    wait_while(cast("Session", session), session.lack, 14.0)
    assert session.now == seconds


@pytest.mark.parametrize(
    ("waited", "elapsed", "expected"),
    [(7.0, 6.0, "certainty"), (2.0, 6.0, None), (7.0, 31.0, None)],
)
def test_ranks_for_which_others_have_waited_for_seconds_are_observed_on(
    waited: float, elapsed: float, expected: Lack | None
) -> None:
    """Who looks at a lock again and again may be met awake, by chance."""
    world = World()
    for _ in range(2):
        world.add(BACKWARD, POLL, left_at=NOW - waited)
    world.add(user("acquire", 30), RUN)
    whole = world.snapshot()
    (job,) = whole.jobs
    update = Update(whole, {job.key: diagnosis("progressing")}, 0.0)
    assert lacking(update, job, elapsed, 1.0) == expected


@pytest.mark.parametrize(
    ("stack", "elapsed", "expected"),
    [(SAVE, 4.0, "certainty"), (user("evaluate", 40), 4.0, None), (SAVE, 31.0, None)],
)
def test_ranks_that_all_write_a_checkpoint_are_observed_until_it_is_told_for_how_long(
    stack: Stack, elapsed: float, expected: Lack | None
) -> None:
    world = World()
    for one in (SAVE, stack):
        world.add(one, RUN)
    whole = world.snapshot()
    (job,) = whole.jobs
    update = Update(whole, {job.key: diagnosis("progressing")}, 0.0)
    assert lacking(update, job, elapsed, 1.0) == expected


@pytest.mark.parametrize(
    ("age", "label", "young"),
    [(3.0, "pid 9", True), (60.0, "pid 9", False), (3.0, "rank 0", False)],
)
def test_a_process_that_was_named_and_has_just_started_may_yet_be_a_job(
    age: float, label: str, young: bool
) -> None:
    world = World()
    one = world.process(9, None, label=label, started_at=NOW - age)
    assert is_young(world.snapshot(unnumbered=(one,))) is young
