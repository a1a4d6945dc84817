"""What a job hung by is still told when it has ended, and only where it hung until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop.cli.jobs.observe import exit_status
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import Attempt, Ended, PastAttempt
from hangtop_core.judging.past_hangs import MOST_ATTEMPTS, RECOVERED_S, PastHangs
from hangtop_core.judging.rejudging import rejudge
from hangtop_core.model.output import Output
from hangtop_core.model.snapshot import Left, Node, Process, Snapshot
from hangtop_core.model.updates import Update
from hangtop_core.report.diagnosis import diagnosis_text, headline, past_attempt_text
from hangtop_core.state.history import MOST, History
from support.build import HUNG_SINCE, NOW, World
from support.ends import (
    CULPRIT,
    HANG_AFTER,
    Watched,
    hanging,
    moving,
    started_again,
    with_gone,
)
from support.situations import SLEEP, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Verdict

ALL: dict[int, int | None] = dict.fromkeys(range(4))


def causes(diagnosis: Diagnosis) -> list[tuple[str, list[int | None]]]:
    return [(one.cause, [c.rank for c in one.culprits]) for one in diagnosis.verdicts]


def test_the_last_verdict_stays_with_all_that_was_seen() -> None:
    watched = Watched()
    snapshot = watched.hang()
    (before,) = watched.updates[0].diagnoses.values()
    told = watched.see(with_gone(snapshot, 2.0, ALL))
    assert (told.state, told.hung_until_end, told.hung_for_s) == ("exited", True, None)
    assert told.ended is not None
    assert told.ended.verdict_at == snapshot.at
    assert told.ended.after_hanging_s == pytest.approx(NOW + 2.0 - HUNG_SINCE, abs=1.0)
    assert causes(told) == causes(before) == [("missing-collective", [CULPRIT])]
    assert told.verdicts[0].evidence == before.verdicts[0].evidence
    assert told.ruled_out == before.ruled_out
    kinds = [one.kind for one in told.timeline]
    assert {"stopped", "hung"} <= set(kinds)
    assert told.timeline[-1].text.startswith("the job ended")
    assert exit_status(told) == 10
    assert headline(told) == "ENDED after hanging 5:02"


def test_nothing_is_proposed_that_needs_a_process_of_the_job() -> None:
    watched = Watched()
    snapshot = watched.hang()
    (before,) = watched.updates[0].diagnoses.values()
    told = watched.see(with_gone(snapshot, 2.0, ALL))
    pids = [str(rank.process.pid) for rank in snapshot.jobs[0].ranks]
    asks = [step for step in before.verdicts[0].next_steps if any(pid in step for pid in pids)]
    assert asks, "the verdict on the hang had some"
    steps = told.verdicts[0].next_steps
    assert steps
    assert not set(asks) & set(steps)
    assert all(spot.fix == "" for spot in told.blind_spots if spot.what == "flight recorder")


def test_a_job_that_never_hung_has_only_ended() -> None:
    watched = Watched()
    snapshot = moving(hanging(), 0.0)
    watched.see(snapshot)
    told = watched.see(with_gone(snapshot, 2.0, ALL))
    assert told.ended is not None
    assert (told.state, told.hung_until_end, exit_status(told)) == ("exited", False, 0)
    assert headline(told) == "EXITED"


def test_who_leaves_during_a_hang_is_not_why_it_hung() -> None:
    watched = Watched()
    snapshot = watched.hang()
    first = with_gone(snapshot, 5.0, {0: 1})
    between = watched.see(first)
    assert ("rank-exited", [0]) in causes(between)
    told = watched.see(with_gone(first, 5.0, {1: -15, 2: -15, 3: -15}))
    assert causes(told)[0] == ("missing-collective", [CULPRIT])
    assert ("rank-exited", [0]) in causes(told), "what ended it is told, too"
    later = next(one for one in told.verdicts if one.cause == "rank-exited")
    assert later.weaker
    assert told.ended is not None
    assert told.ended.by == "rank 0 exited with status 1"


def test_a_rank_that_was_gone_before_the_others_hung_is_why() -> None:
    watched = Watched()
    snapshot = with_gone(hanging(), 0.0, {CULPRIT: -9})
    assert causes(watched.see(snapshot))[0][0] in ("rank-exited", "rank-oom-killed")
    told = watched.see(with_gone(snapshot, 60.0, {0: -15, 1: -15, 2: -15}))
    assert told.hung_until_end
    assert causes(told)[0] == ("rank-exited", [CULPRIT])


@pytest.mark.parametrize(
    ("seconds", "code", "hung"),
    [
        (RECOVERED_S + 2.0, 1, False),
        (RECOVERED_S + 2.0, None, False),
        (2.0, None, False),
        (2.0, 0, False),
        (2.0, 1, True),
    ],
)
def test_a_hang_is_over_once_the_job_has_made_progress(
    seconds: float, code: int | None, hung: bool
) -> None:
    watched = Watched()
    snapshot = watched.hang()
    for after in (1.0, 1.0 + seconds):
        moved = moving(snapshot, after)
        assert watched.see(moved).state == "progressing"
    told = watched.see(with_gone(moved, 1.0, dict.fromkeys(range(4), code)))
    assert (told.state, told.hung_until_end) == ("exited", hung)


@pytest.mark.parametrize(("gone", "hung"), [(False, False), (True, True)])
def test_a_hang_is_over_once_all_were_seen_to_work_however_soon_they_end(
    gone: bool, hung: bool
) -> None:
    watched = Watched()
    moved = moving(watched.hang(), 0.6)
    if gone:  # a rank that fails takes the others down, which run once more for that
        moved = with_gone(moved, 0.0, {0: None})
    watched.see(moved)
    assert watched.see(with_gone(moved, 1.5, ALL)).hung_until_end == hung


def test_who_moves_only_to_give_up_has_not_ended_the_hang() -> None:
    watched = Watched()
    snapshot = watched.hang()
    moved = moving(snapshot, 2.0)
    job, old = moved.jobs[0], snapshot.jobs[0].ranks[CULPRIT]
    still = replace(moved, jobs=(replace(job, ranks=(*job.ranks[:CULPRIT], old)),))
    key = job.key
    said = replace(diagnose(moved, job, HANG_AFTER), stalled_for_s=None)
    watched.past.add(still, {key: said})
    told = watched.see(with_gone(still, 1.0, ALL))
    assert told.hung_until_end


def test_a_good_end_that_came_between_two_looks_is_no_end_of_a_hang() -> None:
    watched = Watched()
    told = watched.see(with_gone(watched.hang(), 5.0, dict.fromkeys(range(4), 0)))
    assert (told.hung_until_end, exit_status(told)) == (False, 0)
    signalled = Watched()
    told = signalled.see(with_gone(signalled.hang(), 5.0, dict.fromkeys(range(4), -9)))
    assert told.hung_until_end
    assert told.ended is not None
    assert told.ended.by == "ranks 0-3 were killed by SIGKILL"


def test_zombies_have_not_ended_when_they_last_ran() -> None:
    watched = Watched()
    snapshot = watched.hang()
    job = snapshot.jobs[0]
    ranks = tuple(
        replace(one, state="zombie", process=replace(one.process, state="Z", exit_code=-9))
        for one in job.ranks
    )
    told = watched.see(replace(snapshot, at=NOW + 3, jobs=(replace(job, ranks=ranks),)))
    assert told.ended is not None
    assert (told.ended.after_hanging_s or 0) >= NOW - HUNG_SINCE - 1


def test_a_hang_without_a_cause_is_told_as_one_that_is_not_explained() -> None:
    past, snapshot = PastHangs(), hanging()
    key = snapshot.jobs[0].key
    bare = replace(diagnose(snapshot, snapshot.jobs[0], HANG_AFTER), verdicts=())
    past.add(snapshot, {key: bare})
    over = with_gone(snapshot, 2.0, ALL)
    told = past.add(over, {key: diagnose(over, over.jobs[0], HANG_AFTER)})[key]
    assert (told.hung_until_end, told.verdicts, exit_status(told)) == (True, (), 11)
    assert "No cause could be told." in diagnosis_text(told)


def test_a_better_verdict_takes_the_place_of_one_that_explains_nothing() -> None:
    past, snapshot = PastHangs(), hanging()
    key = snapshot.jobs[0].key
    known = diagnose(snapshot, snapshot.jobs[0], HANG_AFTER)
    unknown = replace(known.verdicts[0], cause="unknown")
    past.add(snapshot, {key: replace(known, verdicts=(unknown,))})
    later = with_gone(snapshot, 3.0, {0: None})
    past.add(later, {key: known})
    over = with_gone(later, 3.0, ALL)
    told = past.add(over, {key: diagnose(over, over.jobs[0], HANG_AFTER)})[key]
    assert causes(told)[0] == ("missing-collective", [CULPRIT])


def test_what_ends_an_unexplained_hang_comes_first() -> None:
    past, snapshot = PastHangs(), hanging()
    key = snapshot.jobs[0].key
    known = diagnose(snapshot, snapshot.jobs[0], HANG_AFTER)
    unknown = replace(known.verdicts[0], cause="unknown")
    past.add(snapshot, {key: replace(known, verdicts=(unknown,))})
    over = with_gone(snapshot, 3.0, {0: -11, 1: -15, 2: -15, 3: -15})
    told = past.add(over, {key: diagnose(over, over.jobs[0], HANG_AFTER)})[key]
    assert told.hung_until_end
    assert (told.verdicts[0].cause, told.verdicts[0].weaker) == ("rank-crashed", "")


def test_the_second_hang_is_told_not_the_first() -> None:
    past, snapshot = PastHangs(), hanging()
    key = snapshot.jobs[0].key
    first = diagnose(snapshot, snapshot.jobs[0], HANG_AFTER)
    past.add(snapshot, {key: first})
    other = replace(first.verdicts[0], cause="io-wait")
    second = replace(first, hung_for_s=40.0, stalled_for_s=40.0, verdicts=(other,))
    again = replace(snapshot, at=snapshot.at + 200)
    past.add(again, {key: second})
    over = with_gone(again, 2.0, ALL)
    told = past.add(over, {key: diagnose(over, over.jobs[0], HANG_AFTER)})[key]
    assert told.verdicts[0].cause == "io-wait"
    assert told.ended is not None
    assert told.ended.after_hanging_s == pytest.approx(42.0, abs=0.2)


@pytest.mark.parametrize("key", ["none@n1:29500", "n1:29501"])
@pytest.mark.parametrize("seen_to_end", [True, False])
def test_an_attempt_that_hung_is_told_beside_the_one_that_runs(key: str, seen_to_end: bool) -> None:
    watched = Watched()
    launcher = Process(99, 1, 5, 0.0, "launcher", "torchrun", "S", node="n1")
    snapshot = hanging()
    job = replace(snapshot.jobs[0], launchers=(launcher,))
    first = started_again(replace(snapshot, jobs=(job,)), 0.0, 1, job.key)
    hung = tuple(
        replace(rank, process=replace(one.process, env=rank.process.env), state="sleeping")
        for rank, one in zip(first.jobs[0].ranks, job.ranks, strict=True)
    )
    kept = tuple(
        replace(old, process=new.process) for old, new in zip(job.ranks, hung, strict=True)
    )
    snapshot = replace(snapshot, jobs=(replace(job, ranks=kept),))
    assert watched.see(snapshot).attempt is not None
    if seen_to_end:
        watched.see(with_gone(snapshot, 2.0, {0: 1, 1: -15, 2: -15, 3: -15}))
    told = watched.see(started_again(snapshot, 4.0, 2, key))
    assert told.attempt is not None
    assert (told.attempt.number, told.attempt.of) == (2, 6)
    (past,) = told.past_attempts
    assert past.number == 1
    assert past.ended.after_hanging_s is not None
    assert (past.verdicts[0].cause, past.verdicts[0].culprits[0].rank) == (
        "missing-collective",
        CULPRIT,
    )
    assert not told.hung_until_end
    assert "attempt 1 ended after hanging 5:0" in " ".join(diagnosis_text(told).split())


def test_an_attempt_that_failed_without_hanging_is_told_by_how_it_failed() -> None:
    watched = Watched()
    snapshot = started_again(moving(hanging(), 0.0), 0.0, 1)
    launcher = Process(99, 1, 5, 0.0, "launcher", "torchrun", "S", node="n1")
    snapshot = replace(snapshot, jobs=(replace(snapshot.jobs[0], launchers=(launcher,)),))
    watched.see(snapshot)
    watched.see(with_gone(snapshot, 2.0, {0: 1, 1: -15, 2: -15, 3: -15}))
    told = watched.see(started_again(snapshot, 4.0, 2, "k3"))
    (past,) = told.past_attempts
    assert past.ended.after_hanging_s is None
    assert past.ended.by == "rank 0 exited with status 1"
    assert past.verdicts[0].culprits[0].rank == 0


def test_only_so_many_attempts_are_kept() -> None:
    watched = Watched()
    snapshot = hanging()
    launcher = Process(99, 1, 5, 0.0, "launcher", "torchrun", "S", node="n1")
    snapshot = replace(snapshot, jobs=(replace(snapshot.jobs[0], launchers=(launcher,)),))
    for attempt in range(1, MOST_ATTEMPTS + 4):
        told = watched.see(started_again(snapshot, 5.0 * attempt, attempt))
    assert [past.number for past in told.past_attempts] == list(range(3, MOST_ATTEMPTS + 3))


def with_launcher(snapshot: Snapshot) -> Snapshot:
    launcher = Process(99, 1, 5, 0.0, "launcher", "torchrun", "S", node="n1")
    return replace(snapshot, jobs=(replace(snapshot.jobs[0], launchers=(launcher,)),))


FAILS: dict[int, int | None] = {0: 1, 1: -15, 2: -15, 3: -15}


def short(begun: Snapshot, after: float, attempt: int, key: str) -> Snapshot:
    """An attempt that was over before anybody saw its ranks alive."""
    return with_gone(started_again(begun, after, attempt, key), 0.5, FAILS)


@pytest.mark.parametrize("first_is_short", [True, False])
@pytest.mark.parametrize("keys", [["k"] * 9, [f"k{n}" for n in range(9)]])
def test_attempts_of_which_only_the_end_was_seen_are_told_each_for_itself(
    keys: list[str], first_is_short: bool
) -> None:
    watched, begun = Watched(), with_launcher(hanging())
    if first_is_short:
        watched.see(short(begun, 0.0, 1, keys[1]))
    else:
        watched.see(started_again(begun, 0.0, 1, keys[1]))
    watched.see(short(begun, 5.0, 2, keys[2]))
    watched.see(short(begun, 10.0, 3, keys[3]))
    told = watched.see(started_again(begun, 15.0, 4, keys[4]))
    assert [past.number for past in told.past_attempts] == [1, 2, 3]
    by = [past.ended.by for past in told.past_attempts]
    assert by[1:] == ["rank 0 exited with status 1"] * 2
    assert (by[0] == by[1]) == first_is_short


def lost(snapshot: Snapshot, after: float) -> Snapshot:
    node = Node("n1", "lost", reason="the connection ended", last_seen=snapshot.at + 1)
    return replace(snapshot, at=snapshot.at + after, nodes=(node,))


def test_a_job_whose_nodes_are_all_lost_was_last_seen_to_hang() -> None:
    watched = Watched()
    snapshot = watched.hang()
    told = watched.see(lost(snapshot, 40.0))
    assert headline(told) == "LOST after hanging 5:01"
    assert (told.state, exit_status(told)) == ("unknown", 10)
    assert causes(told) == [("missing-collective", [CULPRIT])]
    assert told.ended is not None
    assert told.ended.by == "all of its nodes were lost: the connection ended"
    back = watched.see(replace(snapshot, at=snapshot.at + 60.0))
    assert (back.state, back.ended) == ("hung", None)


def test_of_jobs_that_ended_only_those_that_hung_stay_listed() -> None:
    watched = Watched()
    snapshot = watched.hang()
    assert watched.past.kept == frozenset()
    watched.see(with_gone(snapshot, 2.0, ALL))
    assert watched.past.kept == {snapshot.jobs[0].key}


# Captures


def stored() -> list[Update]:
    """Pictures of a job that hangs and ends, as a hangtop took them that knew nothing of this."""
    snapshot = hanging()
    pictures = [snapshot, with_gone(snapshot, 3.0, ALL), with_gone(snapshot, 9.0, ALL)]
    return [
        Update(one, {one.jobs[0].key: replace(diagnose(one, one.jobs[0]), ended=None)})
        for one in pictures
    ]


def newest(pictures: tuple[Update, ...]) -> Diagnosis:
    (found,) = pictures[-1].diagnoses.values()
    return found


def test_the_history_of_a_capture_tells_of_the_hang() -> None:
    judged = rejudge(stored(), HANG_AFTER)
    told = newest(judged)
    assert (told.hung_until_end, exit_status(told)) == (True, 10)
    assert causes(told) == [("missing-collective", [CULPRIT])]
    (between,) = judged[1].diagnoses.values()
    assert between.hung_until_end, "earlier pictures of the end say it, too"


def test_what_is_kept_of_a_capture_is_this_hangtops_own_verdict() -> None:
    pictures = stored()
    (key, said) = next(iter(pictures[0].diagnoses.items()))
    planted: Verdict = replace(said.verdicts[0], next_steps=("rm -rf everything",), summary="lies")
    pictures[0] = replace(pictures[0], diagnoses={key: replace(said, verdicts=(planted,))})
    told = newest(rejudge(pictures, HANG_AFTER))
    assert told.hung_until_end
    assert "lies" not in told.verdicts[0].summary
    assert "rm -rf everything" not in told.verdicts[0].next_steps
    pictures[0] = replace(pictures[1], snapshot=replace(pictures[1].snapshot, at=NOW))
    pictures[0] = replace(pictures[0], diagnoses={key: replace(said, state="hung")})
    assert not newest(rejudge(pictures, HANG_AFTER)).hung_until_end, "it shows no hang"


def test_who_took_a_capture_has_seen_more_than_its_pictures_show() -> None:
    pictures = stored()
    over = pictures[-1]
    pure = {key: diagnose(over.snapshot, over.snapshot.jobs[0]) for key in over.diagnoses}
    pictures[-1] = replace(over, diagnoses=pure)
    assert not newest(rejudge(pictures, HANG_AFTER)).hung_until_end


def test_the_picture_that_a_kept_verdict_is_of_stays_in_the_history() -> None:
    history, watched = History(), Watched()
    snapshot = watched.hang()
    history.add(watched.updates[0])
    for after in range(2, 2 + MOST * 12):
        watched.see(with_gone(snapshot, float(after), ALL))
        history.add(watched.updates[-1])
        if after == 3:
            # Another before it, so that its place is not the first.
            first = replace(watched.updates[0], snapshot=replace(snapshot, at=NOW - 50.0))
            history = History([first, *history.pictures])
    assert len(history) <= MOST + 1
    assert snapshot.at in [one.snapshot.at for one in history.pictures]


def restarting(keys: list[str]) -> Watched:
    """Three attempts: one that hangs, one over at once, one that fails; each on few pictures."""
    watched, begun = Watched(), with_launcher(hanging())
    first = started_again(begun, 0.0, 1, keys[0])
    processes = zip(begun.jobs[0].ranks, first.jobs[0].ranks, strict=True)
    ranks = tuple(replace(old, process=new.process) for old, new in processes)
    hung = replace(first, jobs=(replace(first.jobs[0], ranks=ranks),))
    watched.see(hung)
    watched.see(short(begun, 10.0, 2, keys[1]))
    third = started_again(begun, 20.0, 3, keys[2])
    watched.see(third)
    watched.see(with_gone(third, 2.0, FAILS))
    return watched


@pytest.mark.parametrize("keys", [["k", "k", "k"], ["k1", "k2", "k3"]])
def test_a_capture_of_any_moment_tells_the_attempts_that_were_seen(keys: list[str]) -> None:
    updates = restarting(keys).updates
    numbers = []
    for count in range(1, len(updates) + 1):
        (live,) = updates[count - 1].diagnoses.values()
        again = newest(rejudge(updates[:count], HANG_AFTER))
        assert again.past_attempts == live.past_attempts
        assert (again.state, again.ended) == (live.state, live.ended)
        numbers.append([past.number for past in again.past_attempts])
    assert numbers == [[], [1], [1, 2], [1, 2]]
    assert again.past_attempts[0].ended.after_hanging_s is not None


def test_an_attempt_that_is_on_one_picture_stays_in_the_history() -> None:
    watched, history = restarting(["k1", "k2", "k3"]), History()
    last = watched.updates[-1].snapshot
    for after in range(1, MOST * 6):
        watched.see(replace(last, at=last.at + after))
    for one in watched.updates:
        history.add(one)
    assert len(history) <= MOST
    again = newest(rejudge(history.pictures, HANG_AFTER))
    assert [past.number for past in again.past_attempts] == [1, 2]
    assert again.past_attempts == newest(tuple(watched.updates)).past_attempts


# What ended an earlier attempt


def left(snapshot: Snapshot, codes: dict[int, int | None]) -> tuple[Left, ...]:
    """The ranks of a snapshot as a later attempt lists them."""
    at = snapshot.at + 1.0
    return tuple(
        Left(*one.process.identity, one.rank, at, codes[one.rank]) for one in snapshot.jobs[0].ranks
    )


@pytest.mark.parametrize(
    ("codes", "by"),
    [
        (FAILS, "rank 0 exited with status 1"),
        ({0: -6, 1: -6, 2: -15, 3: -15}, "ranks 0-1 were killed by SIGABRT"),
        ({0: -15, 1: -15, 2: -9, 3: -15}, "rank 2 was killed by SIGKILL"),
        (dict.fromkeys(range(4), -15), "ranks 0-3 were killed by SIGTERM"),
        (ALL, ""),
    ],
)
@pytest.mark.parametrize("known_later", [True, False])
def test_what_ended_an_attempt_is_told_by_how_its_ranks_left(
    codes: dict[int, int | None], by: str, known_later: bool
) -> None:
    watched, snapshot = Watched(), with_launcher(hanging())
    watched.see(snapshot)
    second = started_again(snapshot, 4.0, 2, "k2")
    if known_later:
        (past,) = watched.see(second).past_attempts
        assert (past.ended.by, "what ended it is not known" in past_attempt_text(past)) == (
            "",
            True,
        )
        second = replace(second, at=second.at + 1.0)
    job = replace(second.jobs[0], former=left(snapshot, codes))
    (past,) = watched.see(replace(second, jobs=(job,))).past_attempts
    assert past.ended.by == by
    assert past.ended.after_hanging_s is not None


def test_what_ended_an_attempt_is_told_by_what_its_launcher_printed() -> None:
    watched, snapshot = Watched(), with_launcher(hanging())
    watched.see(snapshot)
    second = started_again(snapshot, 4.0, 2, "k2")
    pid = snapshot.jobs[0].ranks[2].process.pid
    text = (
        f"E1121 11:18:02.8 24301 torch/x.py:1] failed (exitcode: -9) local_rank: 2 (pid: {pid}) of"
    )
    job = replace(second.jobs[0], former=left(snapshot, ALL))
    own, strange = (Output(node, "8:1", "/log", text=text) for node in (job.former[0].node, "n2"))
    for outputs, by in (((strange,), ""), ((own,), "rank 2 was killed by SIGKILL")):
        (past,) = watched.see(replace(second, jobs=(job,), outputs=outputs)).past_attempts
        assert past.ended.by == by


def test_ranks_of_another_attempt_do_not_tell_what_ended_this_one() -> None:
    watched, snapshot = Watched(), with_launcher(hanging())
    watched.see(snapshot)
    second = started_again(snapshot, 4.0, 2, "k2")
    watched.see(second)
    third = started_again(snapshot, 8.0, 3, "k3")
    job = replace(third.jobs[0], former=left(second, FAILS))
    told = watched.see(replace(third, jobs=(job,)))
    assert [past.ended.by for past in told.past_attempts] == ["", "rank 0 exited with status 1"]


@pytest.mark.parametrize(
    ("seen", "number", "text"),
    [
        ([1], 2, ""),
        ([], 1, ""),
        ([], 2, "What ended attempt 1 is not known: hangtop saw no rank of it."),
        ([1], 4, "What ended attempts 2-3 is not known: hangtop saw no rank of them."),
        (list(range(4, 12)), 12, ""),
        ([], 10**9, "What ended attempts 999999936-999999999 is not known:"),
    ],
)
def test_attempts_that_nobody_saw_are_told_to_be_unknown(
    seen: list[int], number: int, text: str
) -> None:
    past = tuple(PastAttempt(one, Ended(NOW)) for one in seen)
    snapshot = hanging()
    diagnosis = diagnose(snapshot, snapshot.jobs[0], HANG_AFTER)
    now = replace(diagnosis, attempt=Attempt(number), past_attempts=past)
    assert ("What ended" in diagnosis_text(now)) == bool(text)
    assert text in " ".join(diagnosis_text(now).split())


def test_a_program_that_was_named_and_then_starts_ranks_has_not_been_started_again() -> None:
    before, after = World(), World(at=NOW + 5)
    program = before.add(user("main", 9), SLEEP, process={"rank": None, "rank_source": "--pid"})
    after.add(user("main", 9), SLEEP, process={"pid": 5000})
    parent = replace(program.process, role="launcher", rank_source=None)
    hangs = PastHangs()
    for snapshot in (before.snapshot(), after.snapshot(launchers=(parent,))):
        told = hangs.add(snapshot, {job.key: diagnose(snapshot, job) for job in snapshot.jobs})
        assert [one.past_attempts for one in told.values()] == [()]
