"""States that screens show: refusals, lost nodes, no job, ranks that leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.wire.command_log import CommandRecord
from hangtop_core.diagnosis import Attempt, PastAttempt
from hangtop_core.model.descriptors import Descriptor, DescriptorTable, Socket
from hangtop_core.model.snapshot import Fact, Failure, StackSample
from hangtop_core.model.updates import Update
from support.build import World
from support.ends import Watched, hanging, moving, with_gone
from support.player import app_for, compare, keys, later, picture, player_of, settled
from support.record import load
from support.situations import SLEEP, STOP, user

if TYPE_CHECKING:
    from hangtop.application import HangtopApp

replace = msgspec.structs.replace
SIZE = (120, 36)
YAMA = "sysctl kernel.yama.ptrace_scope=0"


async def test_native_stacks_ask_and_readonly_refuses() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "2", "c")
        assert "py-spy dump --native --pid 4004" in text
        await keys(pilot, "enter")
        assert ("sample", ({"node1": [4004]}, "native")) in player_of(app).asked
    app = app_for(load("skip"), readonly=True)
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "2", "c")
        assert "started with --readonly" in text
        text = await keys(pilot, "3", "s")
        assert "not possible: hangtop was started with --readonly" in text
        assert len(app.screen_stack) == 1


async def test_b_takes_marked_ranks_and_tells_failures() -> None:
    update = load("skip")
    job = update.snapshot.jobs[0]
    failed = StackSample(
        at=update.snapshot.at, took_s=0.1, mode="nonblocking",
        failure=Failure("denied", "ptrace is refused (Yama 1)", YAMA),
    )  # fmt: skip
    ranks = tuple(replace(r, sample=failed) if r.rank == 1 else r for r in job.ranks)
    app = app_for(later(update, 0.0, jobs=(replace(job, ranks=ranks),)))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "g", "space", "space", "b")
        asked = [ask for ask in player_of(app).asked if ask[0] == "sample"]
        assert len(asked) == 1
        assert len(asked[0][1][0]["node1"]) == 2
        assert "1 of 2; ptrace is refused (Yama 1)" in text
        assert "no stack: ptrace is refused" in text
        text = await keys(pilot, "2", "N")
        assert YAMA in text


async def test_a_lost_node_keeps_its_ranks_and_says_so() -> None:
    update = load("skip")
    node = replace(
        update.snapshot.nodes[0], state="lost", reason="the probe ended: signal 9",
        since=update.snapshot.at - 40,
    )  # fmt: skip
    app = app_for(later(update, 0.0, nodes=(node,)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        text = picture(app)
        assert "0/1 nodes" in text
        assert "node1 lost for 40 s" in text
        assert "signal 9" in text
        assert "missing-collective" in text
        await keys(pilot, "ctrl+r")
        assert ("retry", "node1") in player_of(app).asked


@pytest.mark.parametrize("size", [(80, 24), SIZE, (200, 50)], ids=str)
async def test_no_job_says_what_was_looked_for_and_found(size: tuple[int, int]) -> None:
    update = load("skip")
    node = replace(
        update.snapshot.nodes[0], processes=213,
        python_processes=("python -m http.server",), other_users={"bob": 8},
    )  # fmt: skip
    app = app_for(Update(replace(update.snapshot, jobs=(), nodes=(node,)), {}))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        text = picture(app)
        assert "NO JOB" in text
        for told in ("still looking", "RANK", "213 processes", "http.server", "bob"):
            assert told in text
        player_of(app).play(later(update))
        await pilot.pause()
        assert "missing-collective" in picture(app)


@pytest.mark.parametrize(
    "size", [(80, 24), SIZE, (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}"
)
async def test_long_states_of_open_files_stay_in_view(
    size: tuple[int, int], update_screens: bool
) -> None:
    update = load("skip")
    job = update.snapshot.jobs[0]
    path = "/data/tokenized/shard-00017-of-00256.bin"
    full = Socket("tcp", "CLOSE_WAIT", "10.0.0.1:40000", "10.0.0.2:443", 6291456)
    table = DescriptorTable(
        update.snapshot.at,
        (
            Descriptor(1018, "file", path, "r", 1000 << 10, 2 << 30),
            Descriptor(1019, "socket", "socket:[9]", "rw", socket=full),
            Descriptor(1020, "file", "/data/index.json", "r", 4096, 4096),
        ),
        moved=(1018,),
    )
    ranks = []
    for rank in job.ranks:
        main, *others = rank.process.threads
        reads = replace(main, syscall="read", fd=1018)
        process = replace(rank.process, threads=(reads, *others))
        ranks.append(replace(rank, descriptors=table, process=process))
    app = app_for(later(update, 0.0, jobs=(replace(job, ranks=tuple(ranks)),)))
    async with app.run_test(size=size) as pilot:
        text = await keys(pilot, "3", *(("tab", "tab") if size[0] < 100 else ()))
    assert "1000 KiB/2.0 GiB moves" in text
    compare(f"long-states-rank-{size[0]}x{size[1]}", text, update_screens)


async def test_nothing_has_answered_yet() -> None:
    app = app_for(None)
    async with app.run_test(size=SIZE) as pilot:
        for key in "1235":
            text = await keys(pilot, key)
            assert "CONNECTING" in text


async def test_what_nodes_send_cannot_write_on_the_screen() -> None:
    update = load("skip")
    job = update.snapshot.jobs[0]
    evil = "\x1b[2J[bold red]\x1b]52;c;eA==\x07 [/] \u202e evil"
    ranks = tuple(
        replace(r, process=replace(r.process, cmdline=(evil,), cwd=evil, comm=evil))
        for r in job.ranks
    )
    node = replace(
        update.snapshot.nodes[0], reason=evil, state="slow", fix=evil, noise=(evil,),
        noise_lines=1, python=evil, user=evil, system=evil, hostname=evil, via=evil,
        python_processes=(evil,), capabilities={evil: Fact(False, why=evil, fix=evil)},
    )  # fmt: skip
    app = app_for(later(update, 0.0, jobs=(replace(job, name=evil, ranks=ranks),), nodes=(node,)))
    async with app.run_test(size=SIZE) as pilot:
        for key in ("1", "t", "2", "3", "5", "9", "tab", "end", "1", "e"):
            text = await keys(pilot, key)
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert await settled(pilot, lambda: "[bold red]" in picture(app))


async def test_an_unchanged_picture_repaints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from hangtop.widgets.line_pane import LinePane

    update = load("skip")
    app: HangtopApp = app_for(update)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        painted: list[tuple[str | None, int]] = []
        real = LinePane.refresh

        def refresh(self: LinePane, *regions: Any, **options: Any) -> LinePane:
            if self.is_attached:
                painted.append((self.id, len(regions)))
            return real(self, *regions, **options)

        monkeypatch.setattr(LinePane, "refresh", refresh)
        player_of(app).play(msgspec.json.decode(msgspec.json.encode(update), type=Update))
        await pilot.pause()
        await pilot.pause()
        assert painted == []


async def test_the_command_log_shows_who_asked_and_what_came() -> None:
    update = load("skip")
    app = app_for(update)
    player_of(app).commands = (
        CommandRecord(1, "node1", (4004,), "py-spy dump --nonblocking", update.snapshot.at, True,
                      took_s=0.12, outcome="ok"),
        CommandRecord(2, "node1", (4004,), "strace -f -p PID", update.snapshot.at, False,
                      pauses=True, took_s=10.0, outcome="strace is not on PATH"),
    )  # fmt: skip
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "at")
        assert "by itself" in text
        assert "you asked" in text
        assert "pauses its target" in text
        assert "strace is not on PATH" in text


async def test_a_missing_tool_is_a_reason_not_a_crash() -> None:
    update = load("skip")
    node = update.snapshot.nodes[0]
    facts = {
        **node.capabilities,
        "strace": Fact(False, why="strace is not on PATH", fix="apt-get install strace"),
    }
    app = app_for(later(update, 0.0, nodes=(replace(node, capabilities=facts),)))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "3", "s")
        assert "apt-get install strace" in text
        assert len(app.screen_stack) == 1


async def test_no_answer_is_not_no_job() -> None:
    update = load("skip")
    node = replace(update.snapshot.nodes[0], state="unreachable", reason="ssh: timed out")
    app = app_for(Update(replace(update.snapshot, jobs=(), nodes=(node,)), {}))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        text = picture(app)
        assert "NO ANSWER" in text
        assert "ssh: timed out" in text
        assert "No training job" not in text.split("RANKS")[0]


def two_faults() -> Update:
    """Rank 2 is stopped, and rank 3 sleeps, each for reasons of its own."""
    world = World()
    world.waiters(2)
    world.add(user("load", 7), STOP)
    world.add(user("cool_down", 35), SLEEP)
    snapshot = world.snapshot()
    job = snapshot.jobs[0]
    return Update(snapshot, {job.key: diagnose(snapshot, job)})


async def test_another_fault_is_shown_with_its_evidence_and_steps_and_esc_leads_back() -> None:
    app = app_for(two_faults())
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "5")
        assert "missing-collective (rank 3)  a fault of its own" in text
        assert "kill -CONT" in text
        assert "ruled out" in text
        text = await keys(pilot, "tab", "tab", "enter")
        assert "VERDICT  missing-collective" in text
        assert "2 of 2" in text
        assert "kill -CONT" not in text
        assert app.page is not None
        assert app.page.active == "evidence"
        text = await keys(pilot, "escape")
        assert "VERDICT  rank-stopped" in text
        await keys(pilot, "escape")
        assert app.current_mode == "overview"


async def test_esc_goes_back_the_way_that_enter_led() -> None:
    app = app_for(two_faults())
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "5", "enter")
        assert app.current_mode == "stacks"
        await keys(pilot, "enter")
        assert app.current_mode == "rank"
        for name in ("stacks", "verdict", "overview", "overview"):
            await keys(pilot, "escape")
            assert app.current_mode == name
        # THEN a digit goes anew, and leaves no way back but up
        await keys(pilot, "5", "enter", "3", "escape")
        assert app.current_mode == "overview"


async def test_evidence_leads_to_the_pane_that_shows_it() -> None:
    app = app_for(load("stopped"))
    async with app.run_test(size=SIZE) as pilot:
        await keys(pilot, "5", "down", "enter")
        assert app.current_mode == "rank"
        assert app.page is not None
        assert app.page.active == "process"
        assert app.state.rank is not None
        assert app.state.rank.rank == 3
        await keys(pilot, "5", "up", "enter")
        assert app.current_mode == "stacks"


async def test_a_step_that_the_app_can_do_leads_to_the_rank_it_is_about() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "5", "tab", "down")
        assert "--native   y copies  or here: Enter c" in text
        await keys(pilot, "enter")
        assert app.current_mode == "rank"
        assert app.state.rank is not None
        assert app.state.rank.rank == 2


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
async def test_the_verdict_on_a_hang_outlives_its_job(size: tuple[int, int]) -> None:
    watched = Watched()
    over = with_gone(watched.hang(), 2.0, dict.fromkeys(range(4), -9))
    watched.see(over)
    app = app_for(watched.updates[-1])
    async with app.run_test(size=size) as pilot:
        text = await keys(pilot)
        assert "● ENDED after hanging 5:02" in text
        assert "missing-collective" in text
        text = await keys(pilot, "5")
        assert "There is no verdict" not in text
        assert "killed by SIGKILL" in " ".join(text.split())
        assert "cool_down" in text


async def test_the_verdict_on_an_attempt_that_is_over_opens_in_full() -> None:
    watched = Watched()
    over = with_gone(watched.hang(), 2.0, dict.fromkeys(range(4), -9))
    told = watched.see(over)
    assert told.ended is not None
    runs = moving(hanging(), 0.0)
    past = PastAttempt(1, told.ended, told.verdicts)
    now = replace(diagnose(runs, runs.jobs[0]), attempt=Attempt(2, 3), past_attempts=(past,))
    app = app_for(Update(runs, {runs.jobs[0].key: now}))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "5")
        assert "attempt 2 of 3" in text
        assert "attempt 1 ended after hanging 5:02" in " ".join(text.split())
        app.screen.query_one("#others").focus()
        text = await keys(pilot, "enter")
        assert "missing-collective" in text
        assert "attempt 1" in text
        text = await keys(pilot, "escape")
        assert "The job is progressing" in text
