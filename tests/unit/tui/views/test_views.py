"""Words on the screens that depend on what is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop.cli.jobs.observe import exit_status
from hangtop.keys import palette, possible
from hangtop.keys.keymap import ACTIONS, Keymap
from hangtop.source.situation import Situation
from hangtop.source.state import worst_first
from hangtop.terminal.spans import plain
from hangtop.views.health import health_steps
from hangtop.views.nodes.node import node_items
from hangtop.views.nodes.nodes import node_rows
from hangtop.views.overview import class_row_steps, unreadable, verdict_lines
from hangtop.views.ranks.dumping import dump_lines
from hangtop.views.ranks.rank import process_lines
from hangtop.views.ranks.stacks import representative, tree_rows
from hangtop.views.texts import job_items
from hangtop.views.verdict.headline import headline
from hangtop.views.verdict.judged import state_line
from hangtop.views.verdict.verdict import chosen, evidence_items, full_lines, other_items
from hangtop.widgets.line_pane import style_of
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import Attempt, Ended, PastAttempt
from hangtop_core.model.recurring import Wait
from hangtop_core.model.snapshot import Fact, Node, RecorderWay, Snapshot
from hangtop_core.scheduling.interruptible import at_once
from hangtop_core.stacks.merging import merge
from hangtop_core.text.rank_sets import rank_key
from support.build import NOW, World, recorder
from support.ends import Watched, hanging, moving, with_gone
from support.record import load
from support.situations import FUTEX, POLL, SLEEP, c10d, user

if TYPE_CHECKING:
    from hangtop.terminal.spans import Line
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job

replace = msgspec.structs.replace


def recorded(name: str) -> tuple[Job, Diagnosis]:
    update = load(name)
    return update.snapshot.jobs[0], next(iter(update.diagnoses.values()))


def test_the_header_does_not_tell_of_a_watchdog_that_gloo_has_not() -> None:
    job, diagnosis = recorded("recorder")
    snapshot = load("recorder").snapshot
    for left, told in ((600.0, "timeout in about 10:00"), (-1.0, "timeout overdue")):
        one = replace(diagnosis, watchdog_in_s=left)
        text = plain(
            headline(snapshot, job, one, now=snapshot.at, paused=False, live=True, width=160)
        )
        assert told in text
        assert "watchdog" not in text


def test_who_is_on_a_silent_node_or_gone_is_not_asked_about_files() -> None:
    world = World()
    world.waiters(2)
    snapshot = world.snapshot()
    job = snapshot.jobs[0]
    rank = job.ranks[0]
    node = Node(rank.node, state="lost")
    assert possible.can_ask(Situation("rank", job=job, rank=rank)) is None
    silent = possible.can_ask(Situation("rank", job=job, rank=rank, node=node))
    assert silent == f"{rank.node} is lost: it cannot be asked"


def test_c_frames_need_py_spy() -> None:
    world = World()
    world.waiters(2)
    job = world.snapshot().jobs[0]
    lacks = {"py-spy": Fact(ok=False, why="not found")}
    now = Situation("rank", job=job, rank=job.ranks[0], capabilities=lacks)
    assert possible.can_native(now) == "not found"


def test_a_class_of_culprits_and_others_names_the_culprit() -> None:
    world = World()
    world.waiters(2)
    world.add(c10d("all_reduce"), ("T", "do_signal_stop", None, None, None))
    snapshot = world.snapshot()
    diagnosis = diagnose(snapshot, snapshot.jobs[0])
    notes = [
        row.note for row in at_once(class_row_steps(snapshot, snapshot.jobs[0], diagnosis, NOW))
    ]
    assert notes == ["◀ rank 2"]
    job, diagnosis = recorded("skip")
    notes = [
        row.note for row in at_once(class_row_steps(load("skip").snapshot, job, diagnosis, NOW))
    ]
    assert notes == ["◀ culprit", ""]


def test_what_rules_have_asked_for_stands_below_the_evidence() -> None:
    world = World()
    world.waiters(3)
    world.add(user("fill_buffer", 26), FUTEX)
    snapshot = world.snapshot()
    diagnosis = diagnose(snapshot, snapshot.jobs[0])
    last = [one for one in evidence_items(diagnosis) if one.key.startswith("need:")]
    assert len(last) == len(diagnosis.needs) > 0
    native = next(one for one in last if "native stacks of rank 3" in plain(one.lines[0]))
    assert native.copied == f"hangtop dump --pid {world.ranks[3].process.pid} --native"
    assert native.target is not None
    assert (native.target.screen, native.target.rank) == ("rank", 3)


def test_without_a_verdict_it_says_who_stands_still() -> None:
    world = World()
    world.waiters(2)
    world.add(user("augment", 80), SLEEP, moved_at=NOW - 1.0)
    snapshot = world.snapshot()
    diagnosis = replace(
        diagnose(snapshot, snapshot.jobs[0]), state="unknown", verdicts=(), stalled_for_s=None
    )
    text = [plain(one) for one in verdict_lines(snapshot, snapshot.jobs[0], diagnosis)]
    assert text[1].startswith("Ranks 0-1 have not run for ")
    assert text[1].endswith("; rank 2 runs.")


def test_before_the_first_stacks_nothing_is_judged() -> None:
    # GIVEN a job that has rested for minutes when hangtop comes
    world = World(observed_since=NOW - 2.0)
    for _ in range(3):
        one = world.add(c10d("all_reduce"), FUTEX)
        world.ranks[-1] = replace(one, sample=None)
    snapshot = world.snapshot()
    job, diagnosis = snapshot.jobs[0], diagnose(snapshot, snapshot.jobs[0])
    assert diagnosis.state == "unknown"
    assert diagnosis.stalled_for_s == pytest.approx(300.0)
    assert plain(state_line(diagnosis, job)) == "○ WATCHING"
    text = plain(verdict_lines(snapshot, job, diagnosis)[0])
    assert text == "The stacks of 3 ranks are still to come. Nothing has moved for 5:00."
    # and once they should have come, that nothing moves is what there is to say
    late = replace(diagnosis, observed_for_s=40.0)
    assert plain(state_line(late, job)) == "● STALLED 5:00"


def test_slow_steps_are_a_state_of_their_own() -> None:
    world = World()
    waits = (Wait(NOW - 14, NOW - 8, True), Wait(NOW - 8, NOW - 1, True))
    world.waiters(2, moved_at=NOW - 1.0, left_at=NOW - 1.0, waits=waits)
    world.add(user("augment", 80), SLEEP, moved_at=NOW - 1.0)
    snapshot = world.snapshot()
    job, diagnosis = snapshot.jobs[0], diagnose(snapshot, snapshot.jobs[0])
    assert plain(state_line(diagnosis, job)) == "● SLOW"
    assert exit_status(diagnosis) == 0
    text = " ".join(plain(one) for one in verdict_lines(snapshot, job, diagnosis))
    assert "its last 2 steps took 6.5 s each" in text
    assert "hung" not in text.lower()


def test_evidence_leads_to_no_page_of_ranks_without_ranks() -> None:
    _, diagnosis = recorded("skip")
    assert all(item.target for item in evidence_items(diagnosis))
    assert diagnosis.job is not None
    alone = replace(diagnosis, job=replace(diagnosis.job, ranks_seen=()), needs=())
    assert not any(item.target for item in evidence_items(alone))
    assert "→" not in "".join(plain(one) for item in evidence_items(alone) for one in item.lines)


def test_a_number_in_the_palette_is_a_rank_and_nothing_else() -> None:
    world = World()
    world.waiters(2, c10d("all_reduce"), POLL)
    snapshot = world.snapshot()
    job = snapshot.jobs[0]
    now = Situation("overview", job=job)
    assert [item.key for item in palette.suggest("1", job, snapshot, now, ACTIONS)] == [
        "rank 1",
        "node n1",
    ]
    assert palette.suggest("7", job, snapshot, now, ACTIONS) == []


@pytest.mark.parametrize("role", ["dim", "label", "victim", "head", "off", ""])
def test_nothing_is_dim_under_the_cursor(role: str) -> None:
    style = style_of(f"{role}+cursor")
    assert style.reverse
    assert not style.dim


def test_a_node_says_what_it_is_reached_by_where_that_is_not_ssh() -> None:
    via = {"n0": "ssh", "n1": "srun (ssh: login refused)", "n2": "this machine"}
    snapshot = Snapshot(
        at=NOW,
        observed_since=NOW,
        tick=1,
        nodes=tuple(Node(name, "ready", via=how, python="3.11.7") for name, how in via.items()),
    )
    rows = node_rows(snapshot, None, None, NOW, folded=False)
    assert [row.reason for row in rows] == ["", "by srun (ssh: login refused)", ""]
    texts = [plain(one) for item in node_items(rows[1], None) for one in item.lines]
    assert any("srun (ssh: login refused)" in text for text in texts)


def test_a_guess_marks_nobody_as_a_culprit() -> None:
    world = World()
    world.waiters(2)
    world.add(user("cool_down", 35), SLEEP)
    snapshot = world.snapshot()
    job = snapshot.jobs[0]
    sure = diagnose(snapshot, job)
    guess = replace(sure, verdicts=(replace(sure.verdicts[0], cause="unknown", confidence=0.3),))
    (row,) = node_rows(snapshot, job, sure, NOW, folded=False)
    assert row.trouble == "◀ 1 culprit"
    (row,) = node_rows(snapshot, job, guess, NOW, folded=False)
    assert "culprit" not in row.trouble
    assert [one.note for one in at_once(class_row_steps(snapshot, job, guess, NOW))] == ["", ""]
    text = [plain(one) for one in full_lines(snapshot, job, guess)]
    assert any(one.startswith("suspect  rank 2") for one in text)


def test_what_is_copied_of_a_node_is_one_harmless_line() -> None:
    evil = "apt-get install strace\n\x1b[2Jrm -r ~\n"
    facts = {"strace": Fact(False, why="not on PATH", fix=evil)}
    node = Node("n1", "ready", python="3.11.7", boot_id=evil, noise=(evil,), noise_lines=1,
                capabilities=facts)  # fmt: skip
    snapshot = Snapshot(at=NOW, observed_since=NOW, tick=1, nodes=(node,))
    (row,) = node_rows(snapshot, None, None, NOW, folded=False)
    copied = [item.copied for item in node_items(row, None) if item.copy is not None]
    assert copied == ["apt-get install strace rm -r ~"] * 3


def test_the_lowest_rank_stands_for_a_row() -> None:
    world = World()
    for number in (8, 1, 5_000_000):
        world.add(c10d("all_reduce"), FUTEX, rank=number)
    snapshot = world.snapshot()
    (job,) = snapshot.jobs
    row, *_ = tree_rows(merge(snapshot, job), frozenset(), frozenset(), join=True, now=NOW)
    for wanted, expected in (((), 1), ((3, 8), 8), ((5_000_000,), 5_000_000)):
        found = representative(job, row, wanted)
        assert found is not None
        assert found.rank == expected


def test_a_world_of_a_billion_ranks_is_made_up() -> None:
    world = World()
    world.waiters(2)
    snapshot = world.snapshot()
    job = msgspec.structs.replace(snapshot.jobs[0], world_size=3)
    assert any(
        "rank 2 not found" in plain(one) for one in at_once(health_steps(snapshot, job, NOW))
    )
    job = msgspec.structs.replace(job, world_size=10**9)
    assert not any("not found" in plain(one) for one in at_once(health_steps(snapshot, job, NOW)))


def test_the_process_of_a_rank_says_its_groups_its_number_and_what_disputes_it() -> None:
    world = World()
    titled = ("VLLM::Worker_DP1_PP0_TP3_EP3",)
    odd = {"cmdline": titled, "rank_source": "RANK", "rank_disputed": "title says 3"}
    rank = world.add(c10d("all_reduce"), FUTEX, process=odd)
    snapshot = world.snapshot()
    text = [plain(one) for one in process_lines(snapshot, rank, NOW)]
    assert any("0  from RANK  local rank 0  but its title says 3" in one for one in text)
    assert any("groups" in one and "DP 1  PP 0  TP 3  EP 3" in one for one in text)
    nameless = msgspec.structs.replace(rank, rank=rank_key("n1", 4711))
    text = [plain(one) for one in process_lines(snapshot, nameless, NOW)]
    assert any("? (pid 4711, VLLM::Worker_DP1_PP0_TP3_EP3)" in one for one in text)


def test_a_program_that_was_named_is_said_to_be_looked_at_first() -> None:
    world = World()
    young = world.process(4711, None, label="pid 4711", started_at=NOW - 2, cmdline=("sh", "x.py"))
    old = msgspec.structs.replace(young, started_at=NOW - 60)
    job = msgspec.structs.replace(world.snapshot().jobs[0], ranks=(), unnumbered=(young, old))
    assert [plain(one) for one in unreadable(job, NOW)] == [
        "Process 4711 (x.py) has just begun: it may start ranks. It is shown in some seconds.",
        "Process 4711 (x.py) is no Python program, and none is below it.",
    ]


def test_what_nodes_lack_takes_a_line_for_each_capability() -> None:
    world = World()
    world.waiters(2)
    for number in range(1, 9):
        why = f"py-spy is neither beside /opt/gpu{number}/bin/python3 nor on PATH"
        lacks = {"py-spy": Fact(False, why=why), "strace": Fact(False, why="strace is not on PATH")}
        name = f"gpu{number}"
        world.nodes[name] = Node(name, "ready", last_seen=NOW, capabilities=lacks)
    snapshot = world.snapshot()
    told = [plain(one) for one in at_once(health_steps(snapshot, snapshot.jobs[0], NOW))]
    assert [one for one in told if "gpu" in one] == [
        "py-spy   gpu[1-8]: py-spy is neither beside /opt/gpu1/bin/python3 nor on PATH"
        " and 7 reasons like it",
        "strace   gpu[1-8]: strace is not on PATH",
    ]


def test_that_a_rank_without_a_pipe_is_read_anyway_is_told() -> None:
    gloo = recorder(["all_reduce"], 0)
    gloo = msgspec.structs.replace(gloo, ways=(RecorderWay("pipe", "gloo"),))
    rank = World().add(c10d("all_reduce"), POLL, recorder=gloo)
    can, lines = dump_lines([rank])
    assert not can
    assert "not needed: it is read another way" in "".join(map(plain, lines))
    unread = msgspec.structs.replace(gloo, trace=None)
    lines = dump_lines([msgspec.structs.replace(rank, recorder=unread)])[1]
    assert "hangtop run" in "".join(map(plain, lines))


def test_health_names_the_users_own_key_of_nodes() -> None:
    world = World()
    world.waiters(2)
    world.nodes["n2"] = Node("n2", "unreachable")
    snapshot = world.snapshot()
    for keys, told in (
        (Keymap().names(), "  9 Nodes"),
        ({"nodes": "X"}, "  X Nodes"),
        ({}, "  Nodes"),
    ):
        lines = at_once(health_steps(snapshot, snapshot.jobs[0], NOW, keys))
        assert told in plain(lines[0])


def test_the_list_of_jobs_tells_of_all_nodes_of_a_job() -> None:
    job, _ = recorded("skip")
    snapshot = load("skip").snapshot

    def told(*nodes: str) -> str:
        jobs = (replace(job, nodes=nodes),)
        return plain(job_items(replace(snapshot, jobs=jobs), {})[0].lines[0])

    assert "on node[01-16]  " in told(*(f"node{number:02}" for number in range(1, 17)))
    assert "…  " in told(*(f"node{number:03}" for number in range(1, 400, 3)))


def texts(lines: list[Line]) -> str:
    return " ".join("\n".join(plain(one) for one in lines).split())


def ended() -> tuple[Snapshot, Job, Diagnosis]:
    """A job that hung until its ranks were killed."""
    watched = Watched()
    over = with_gone(watched.hang(), 2.0, dict.fromkeys(range(4), -9))
    return over, over.jobs[0], watched.see(over)


def test_a_job_that_hung_until_it_ended_says_so_everywhere() -> None:
    snapshot, job, diagnosis = ended()
    assert plain(state_line(diagnosis, job)) == "● ENDED after hanging 5:02"
    for width in (80, 120, 200):
        head = plain(
            headline(
                snapshot, job, diagnosis, now=snapshot.at, paused=False, live=True, width=width
            )
        )
        assert "● ENDED after hanging 5:02" in head
    short = texts(verdict_lines(snapshot, job, diagnosis))
    assert "did not issue what ranks 0-2 wait for" in short
    assert "end It ended at" in short
    assert "ranks 0-3 were killed by SIGKILL. The verdict is of" in short
    assert "All ranks have exited" not in short
    assert "end It ended at" in texts(full_lines(snapshot, job, diagnosis))
    items = evidence_items(diagnosis)
    assert any("cool_down" in plain(line) for item in items for line in item.lines)
    first = worst_first([replace(job, key="b"), job], {job.key: diagnosis, "b": _plain_end()})
    assert first[0].key == job.key


def _plain_end() -> Diagnosis:
    over = with_gone(hanging(), 0.0, dict.fromkeys(range(4), 0))
    return diagnose(over, over.jobs[0])


def test_a_hang_without_a_cause_that_lasted_until_the_end() -> None:
    snapshot, job, diagnosis = ended()
    told = texts(verdict_lines(snapshot, job, replace(diagnosis, verdicts=())))
    assert "Hung for 5:02 until it ended, and no known cause fits." in told
    assert "Nothing shows that one has failed" not in told


def test_a_job_out_of_sight_is_not_said_to_have_ended() -> None:
    _, job, diagnosis = ended()
    assert plain(state_line(replace(diagnosis, state="unknown"), job)) == (
        "● LOST after hanging 5:02"
    )


def test_what_ended_earlier_attempts_stands_beside_the_one_that_runs() -> None:
    snapshot, _, diagnosis = ended()
    assert diagnosis.ended is not None
    runs = moving(hanging(), 0.0)
    job = runs.jobs[0]
    first = PastAttempt(1, diagnosis.ended, diagnosis.verdicts)
    second = PastAttempt(2, Ended(snapshot.at, "rank 0 exited with status 1"))
    now = replace(diagnose(runs, job), attempt=Attempt(3, 6), past_attempts=(first, second))
    told = texts(verdict_lines(runs, job, now))
    assert "was attempt 2 ended at" in told
    assert "attempt 1 ended after hanging 5:02" in told
    assert "missing-collective (rank 3)" in told
    head = headline(runs, job, now, now=runs.at, paused=False, live=True, width=120)
    assert "attempt 3 of 6" in plain(head)
    (item, *_) = other_items(now, None)
    shown = chosen(now, str(item.target))
    assert shown is not None
    assert shown.cause == "missing-collective"
    assert evidence_items(now, str(item.target))
    assert "attempt 1 ended" in texts(list(item.lines))
