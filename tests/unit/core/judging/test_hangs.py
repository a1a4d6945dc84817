"""What a watcher is told over time: each hang, restart and end once, and when it is sure."""

from __future__ import annotations

from msgspec.structs import replace

from hangtop_core.diagnosis import Diagnosis, Ended, JobState, Need, PastAttempt, Verdict
from hangtop_core.judging.hangs import ENDING_S, EVIDENCE_S, LOST_S, WHOLE_S, Hangs
from hangtop_core.judging.past_hangs import RECOVERED_S
from hangtop_core.model.snapshot import Job, Process, Rank, Role, Snapshot
from hangtop_core.model.updates import Update

VERDICT = Verdict("io-wait", 0.9, (), (0,), "rank 1 reads", (), ())
OTHER = replace(VERDICT, cause="unknown")


def process(pid: int, role: Role = "rank", gone_at: float | None = None) -> Process:
    return Process(pid, 1, 10 * pid, 0.0, role, "a rank", "S", gone_at=gone_at, node="n1")


def job(*pids: int, launcher: int | None = None, gone: bool = False, size: int = 2) -> Job:
    ranks = tuple(
        Rank(i, "n1", "exited" if gone else "sleeping", process(pid, gone_at=9.0 if gone else None))
        for i, pid in enumerate(pids)
    )
    launchers = (process(launcher, "launcher"),) if launcher is not None else ()
    return Job("k", "train", "torchrun", None, size, None, ranks, launchers, nodes=("n1",))


class Story:
    """Tells updates to `Hangs`, and remembers what it said."""

    def __init__(self) -> None:
        self.hangs = Hangs()
        self.said: list[tuple[str, float | None]] = []

    def at(
        self,
        at: float,
        one: Job | None,
        state: JobState = "progressing",
        stalled: float | None = None,
        verdict: Verdict | None = None,
        needs: tuple[Need, ...] = (),
    ) -> list[str]:
        verdicts = (verdict,) if verdict is not None else ()
        hung = stalled if state == "hung" else None
        diagnosis = Diagnosis(
            "",
            "",
            "",
            1.0,
            state,
            hung,
            None,
            None,
            verdicts,
            (),
            stalled_for_s=stalled,
            needs=needs,
        )
        jobs = (one,) if one is not None else ()
        diagnoses = {} if one is None else {one.key: diagnosis}
        found = self.hangs.fold(Update(Snapshot(at, 0.0, 1, (), jobs), diagnoses))
        self.said += [(it.kind, it.after_s) for it in found]
        return [it.kind for it in found]


ASKED = Need("descriptors", 1, "n1", 2, "what it waits on", "asked")


def hung(
    story: Story, at: float, verdict: Verdict | None = VERDICT, since: float = 70.0
) -> list[str]:
    return story.at(at, job(1, 2), "hung", at - since, verdict)


def test_what_a_rule_has_asked_for_is_waited_for_a_while() -> None:
    story = Story()
    story.at(100.0, job(1, 2))
    assert story.at(102.0, job(1, 2), "hung", 32.0, OTHER, (ASKED,)) == []
    assert story.at(104.0, job(1, 2), "hung", 34.0, OTHER, (ASKED,)) == []
    assert story.at(106.0, job(1, 2), "hung", 36.0, OTHER, (replace(ASKED, state="answered"),)) == [
        "hang"
    ]
    late = Story()
    late.at(100.0, job(1, 2))
    told = [
        late.at(102.0 + n, job(1, 2), "hung", 32.0 + n, OTHER, (ASKED,))
        for n in range(int(EVIDENCE_S) + 1)
    ]
    assert told == [[]] * int(EVIDENCE_S) + [["hang"]]


def test_a_hang_is_told_once_its_cause_has_settled_and_only_once() -> None:
    story = Story()
    assert story.at(100.0, job(1, 2)) == ["job"]
    assert hung(story, 102.0, OTHER) == []
    assert hung(story, 104.0) == []
    assert hung(story, 106.0) == ["hang"]
    assert hung(story, 108.0, OTHER) == []
    assert story.at(110.0, job(1, 2), "progressing") == []
    assert story.at(110.0 + RECOVERED_S, job(1, 2), "progressing") == ["resumed"]
    assert story.said[-1] == ("resumed", 40.0)


def test_progress_of_a_moment_is_none() -> None:
    story = Story()
    for at in (100.0, 102.0):
        hung(story, at)
    assert story.at(104.0, job(1, 2), "progressing") == []
    assert [hung(story, at) for at in (106.0, 120.0)] == [[], []]
    assert story.at(122.0, job(1, 2), "progressing") == []


def test_ranks_that_move_as_they_leave_one_by_one_do_not_resume() -> None:
    story = Story()
    for at in (100.0, 102.0):
        hung(story, at)
    for at in (104.0, 120.0, 140.0):
        assert story.at(at, job(1), "progressing") == []
    assert end(story, 150.0, over(149.0, 79.0, "killed")) == ["ended"]


def test_a_job_that_goes_on_and_ends_soon_has_resumed() -> None:
    story = Story()
    for at in (100.0, 102.0):
        hung(story, at)
    assert story.at(104.0, job(1, 2), "progressing") == []
    assert end(story, 106.0, over(105.0, None), 0) == []
    assert end(story, 106.0 + ENDING_S, over(105.0, None), 0) == ["resumed", "ended"]
    assert story.said[-2:] == [("resumed", 34.0), ("ended", None)]


def test_without_a_cause_it_is_told_when_no_more_evidence_comes() -> None:
    story = Story()
    story.at(99.0, job(1, 2))
    assert hung(story, 100.0, None) == []
    assert hung(story, 99.0 + EVIDENCE_S, None) == []
    assert hung(story, 100.0 + EVIDENCE_S, None) == ["hang"]


def test_a_hang_that_is_gone_before_it_settles_is_none() -> None:
    story = Story()
    story.at(99.0, job(1, 2))
    hung(story, 100.0)
    assert story.at(102.0, job(1, 2), "progressing") == []
    assert hung(story, 104.0) == []


def test_a_node_that_is_silent_for_a_while_does_not_make_it_another_hang() -> None:
    story = Story()
    for at in (100.0, 102.0):
        hung(story, at)
    for at in (104.0, 120.0, 140.0):
        assert story.at(at, job(1, 2), "unknown", at - 70.0) == []
    assert story.at(150.0, job(1, 2), "unknown") == []  # newly connected: nothing stalls long yet
    assert [hung(story, at) for at in (152.0, 154.0)] == [[], []]


def test_progress_that_was_not_seen_as_it_happened() -> None:
    story = Story()
    for at in (100.0, 102.0):
        hung(story, at)
    assert story.at(130.0, job(1, 2), "unknown", 15.0) == ["resumed"]  # it moved at 115
    assert hung(story, 150.0, since=115.0) == []
    assert hung(story, 152.0, since=115.0) == ["hang"]


def test_a_second_hang_after_one_that_nobody_saw_end() -> None:
    story = Story()
    for at in (100.0, 102.0):
        hung(story, at)
    assert hung(story, 200.0, since=150.0) == ["resumed"]
    assert hung(story, 202.0, since=150.0) == ["hang"]


def test_new_ranks_of_the_same_launcher_are_a_restart() -> None:
    story = Story()
    story.at(98.0, job(1, 2, launcher=7))
    for at in (100.0, 102.0):
        story.at(at, job(1, 2, launcher=7), "hung", 30.0, VERDICT)
    assert story.at(104.0, job(1, 2, launcher=7, gone=True), "exited") == []
    assert story.at(106.0, job(3, 4, launcher=7), "starting") == ["restarted"]
    assert story.said[-1] == ("restarted", 34.0)
    for at in (140.0, 142.0):
        story.at(at, job(3, 4, launcher=7), "hung", 30.0, VERDICT)
    assert story.said[-1] == ("hang", None)


def test_the_end_is_told_once_and_a_new_start_with_the_same_key_is_told() -> None:
    story = Story()
    story.at(100.0, job(1, 2))
    assert story.at(101.0, job(1, 2, gone=True), "exited") == []
    assert story.hangs.running
    assert story.at(101.0 + ENDING_S, job(1, 2, gone=True), "exited") == ["ended"]
    assert not story.hangs.running
    assert story.at(105.0, job(1, 2, gone=True), "exited") == []
    assert story.at(106.0, job(3, 4)) == ["restarted"]
    assert story.at(108.0, None) == ["ended"]
    assert story.at(110.0, None) == []


def test_the_end_is_told_as_soon_as_it_is_known_why() -> None:
    story = Story()
    story.at(100.0, job(1, 2))
    assert story.at(101.0, job(1, 2, gone=True), "exited", verdict=VERDICT) == ["ended"]


def test_the_same_hang_is_told_once_though_the_clock_is_set() -> None:
    story = Story()
    assert hung(story, 102.0) == ["job"]
    assert hung(story, 104.0) == ["hang"]
    story.hangs.clock_was_set(-90.0)
    assert hung(story, 16.0, since=-20.0) == []
    assert story.at(20.0, job(1, 2), "progressing") == []
    story.hangs.clock_was_set(90.0)
    assert story.at(120.0, job(1, 2), "progressing") == ["resumed"]
    assert story.said[-1] == ("resumed", 40.0)


def test_ranks_that_come_back_at_once_have_not_ended() -> None:
    story = Story()
    story.at(100.0, job(1, 2))
    assert story.at(101.0, job(1, 2, gone=True), "exited") == []
    assert story.at(103.0, job(3, 4)) == ["restarted"]
    assert story.at(105.0, job(3, 4, gone=True), "exited") == []
    assert story.at(105.0 + ENDING_S, job(3, 4, gone=True), "exited") == ["ended"]


def test_a_launcher_that_nobody_has_looked_after_has_ended() -> None:
    story = Story()
    story.at(100.0, job(1, 2, launcher=7))
    over = job(1, 2, launcher=7, gone=True)
    assert story.at(102.0, over, "exited") == []
    zombie = replace(over.launchers[0], state="Z")
    assert story.at(104.0, replace(over, launchers=(zombie,)), "exited", verdict=VERDICT) == [
        "ended"
    ]


def test_a_job_is_introduced_when_it_is_whole_or_does_not_become_so() -> None:
    story = Story()
    assert story.at(100.0, job(1)) == []
    assert story.at(102.0, job(1, 2)) == ["job"]
    story = Story()
    assert story.at(100.0, job(1)) == []
    assert story.at(100.0 + WHOLE_S, job(1)) == ["job"]


def test_only_the_job_that_was_asked_for() -> None:
    hangs = Hangs()
    update = Update(Snapshot(1.0, 0.0, 1, (), (job(1, 2),)), {})
    assert hangs.fold(update, "another") == []
    assert not hangs.any
    assert [one.kind for one in hangs.fold(update, "train")] == ["job"]


def test_a_named_process_that_is_no_rank_is_no_job_until_it_becomes_one() -> None:
    story = Story()
    named = replace(process(7), label="pid 7")
    alone = replace(job(size=1), unnumbered=(named,))
    assert [story.at(float(at), alone, "unknown") for at in (1, 30)] == [[], []]
    assert not story.hangs.any
    unreadable = replace(alone, unnumbered=(replace(named, denied="not permitted"),))
    other = Story()
    other.at(1.0, unreadable, "unknown")
    assert other.hangs.any
    assert story.at(31.0, job(7, size=1)) == ["job"]


def over(at: float, lasted: float | None, by: str = "") -> Diagnosis:
    ended = Ended(at, by, lasted)
    verdicts = (VERDICT,) if lasted is not None else ()
    return Diagnosis("", "", "", 1.0, "exited", None, None, None, verdicts, ended=ended)


def end(story: Story, at: float, diagnosis: Diagnosis, code: int | None = None) -> list[str]:
    gone = job(1, 2, gone=True)
    ranks = tuple(replace(one, process=replace(one.process, exit_code=code)) for one in gone.ranks)
    gone = replace(gone, ranks=ranks)
    found = story.hangs.fold(Update(Snapshot(at, 0.0, 1, (), (gone,)), {gone.key: diagnosis}))
    story.said += [(it.kind, it.after_s) for it in found]
    return [it.kind for it in found]


def test_a_hang_that_was_not_told_before_the_job_ended_is_told_then() -> None:
    story = Story()
    story.at(100.0, job(1, 2))
    assert hung(story, 102.0) == []
    assert end(story, 104.0, over(103.5, 33.5, "rank 0 timed out")) == ["hang", "ended"]
    assert story.said[-1] == ("ended", 33.5)


def test_a_hang_that_was_told_is_not_told_again_at_the_end() -> None:
    story = Story()
    story.at(100.0, job(1, 2))
    for at in (102.0, 104.0):
        hung(story, at)
    assert story.at(106.0, job(1, 2), "progressing") == []
    assert end(story, 108.0, over(107.5, 37.5, "rank 0 timed out")) == ["ended"]
    assert story.said[-1] == ("ended", 37.5)


def test_what_ended_a_hang_is_waited_for_a_moment() -> None:
    story = Story()
    for at in (102.0, 104.0):
        hung(story, at)
    assert end(story, 105.0, over(104.5, 34.5)) == []
    assert end(story, 106.0, over(104.5, 34.5, "rank 0 timed out")) == ["ended"]


def test_a_job_that_went_on_and_ended_well_unseen_has_not_ended_after_a_hang() -> None:
    story = Story()
    for at in (102.0, 104.0):
        hung(story, at)
    end(story, 105.0, over(104.5, None), code=0)
    assert end(story, 105.0 + ENDING_S, over(104.5, None), code=0) == ["ended"]
    assert story.said[-1] == ("ended", None)


def test_a_restart_says_for_how_long_the_attempt_before_had_hung() -> None:
    story = Story()
    story.at(98.0, job(1, 2, launcher=7))
    again = job(3, 4, launcher=7)
    past = PastAttempt(1, Ended(103.0, "", 31.0), (VERDICT,))
    said = Diagnosis("", "", "", 1.0, "starting", None, None, None, past_attempts=(past,))
    found = story.hangs.fold(Update(Snapshot(104.0, 0.0, 1, (), (again,)), {again.key: said}))
    assert [(one.kind, one.after_s) for one in found] == [("restarted", 31.0)]


def test_a_job_that_hung_and_stays_out_of_sight_is_told_to_have_ended_once() -> None:
    story = Story()
    for at in (102.0, 104.0):
        hung(story, at)
    said = replace(over(105.0, 35.0), state="unknown")

    def unseen(at: float) -> list[str]:
        found = story.hangs.fold(Update(Snapshot(at, 0.0, 1, (), (job(1, 2),)), {"k": said}))
        return [one.kind for one in found]

    assert unseen(105.0 + LOST_S - 1.0) == []
    assert (unseen(105.0 + LOST_S), story.hangs.running) == (["ended"], False)
    assert unseen(106.0 + LOST_S) == []
    back = 110.0 + LOST_S
    assert [hung(story, back), hung(story, back + 2.0)] == [[], ["hang"]]
    assert story.hangs.running
