"""Several jobs at once: which is shown, when there is a choice, and what goes on meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from hangtop_core.model.updates import Update
from support.player import app_for, keys, later, picture, player_of
from support.record import load

replace = msgspec.structs.replace
SIZE = (120, 36)


async def test_several_jobs_are_chosen_at_the_start_and_later() -> None:
    update = load("skip")
    other = load("stopped")
    job = replace(other.snapshot.jobs[0], key="other", name="second")
    both = Update(
        replace(
            update.snapshot,
            jobs=(*update.snapshot.jobs, job),
            stacks={**update.snapshot.stacks, **other.snapshot.stacks},
        ),
        {**update.diagnoses, "other": next(iter(other.diagnoses.values()))},
    )
    app = app_for(both)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert "JOBS ON THESE NODES" in picture(app)
        text = await keys(pilot, "down", "enter")
        assert "job second" in text
        assert "rank-stopped" in text
        text = await keys(pilot, "J", "up", "enter")
        assert "missing-collective" in text


def two_jobs(state: str) -> Update:
    """The recorded job, which hangs, after another one in `state`."""
    update, stopped = load("skip"), load("stopped")
    other = stopped.snapshot.jobs[0]
    launchers = tuple(replace(one, start=one.start + 1) for one in other.launchers)
    ranks = tuple(
        replace(rank, process=replace(rank.process, start=rank.process.start + 1))
        for rank in other.ranks
    )
    other = replace(other, key="other", name="second", launchers=launchers, ranks=ranks)
    diagnosis = replace(
        next(iter(stopped.diagnoses.values())), state=state, verdicts=(), stalled_for_s=None
    )
    return replace(
        later(update, 0.0, jobs=(other, *update.snapshot.jobs)),
        diagnoses={**update.diagnoses, "other": diagnosis},
    )


async def test_what_is_under_a_dialog_and_the_choice_itself_go_on() -> None:
    app = app_for(two_jobs("progressing"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        page = app.page
        assert page is not None
        choice = picture(app)
        assert choice.index("HUNG") < choice.index("PROGRESSING"), "what hangs comes first"
        assert "missing-collective" in page.pane("verdict").render_line(0).text
        player_of(app).play(two_jobs("exited"))
        await pilot.pause()
        assert "EXITED" in picture(app)
        gone = later(load("skip"), 5.0, jobs=())
        player_of(app).play(gone)
        await pilot.pause()
        assert "missing-collective" not in page.pane("verdict").render_line(0).text


async def test_the_worst_job_is_shown_once_it_is_known_which_that_is() -> None:
    judged = two_jobs("progressing")
    unjudged = replace(judged, diagnoses={})
    app = app_for(unjudged)
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot)
        assert "a first judgement follows" in text
        assert "JOBS ON THESE NODES" not in text
        app.state.interval = 60.0
        player_of(app).play(judged)
        assert "JOBS ON THESE NODES" in await keys(pilot), "it is of the picture that is shown"
        assert app.state.job_key == load("skip").snapshot.jobs[0].key
        assert app.state.history.pictures == (judged,)


async def test_parts_of_a_job_are_no_choice() -> None:
    update = two_jobs("progressing")
    starting = replace(update.snapshot.jobs[0], ranks=())
    part = later(update, 0.0, jobs=(starting, update.snapshot.jobs[1]))
    app = app_for(part)
    async with app.run_test(size=SIZE) as pilot:
        assert "JOBS ON THESE NODES" not in await keys(pilot), "it may turn out to be the other's"
        player_of(app).play(two_jobs("progressing"))
        assert "JOBS ON THESE NODES" in await keys(pilot)
        player_of(app).play(later(load("skip"), 2.0))
        text = await keys(pilot)
        assert "JOBS ON THESE NODES" not in text, "one alone is no choice"
        assert "missing-collective" in text


async def test_another_job_does_not_take_the_screen() -> None:
    update = load("skip")
    app = app_for(update)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        player_of(app).play(two_jobs("progressing"))
        assert "missing-collective" in await keys(pilot)
        job = replace(update.snapshot.jobs[0], key="known by more now")
        found = dict.fromkeys(["known by more now"], next(iter(update.diagnoses.values())))
        renamed = two_jobs("progressing")
        player_of(app).play(
            replace(
                later(renamed, 2.0, jobs=(renamed.snapshot.jobs[0], job)),
                diagnoses={**renamed.diagnoses, **found},
            )
        )
        assert "missing-collective" in await keys(pilot)
        assert app.state.job_key == "known by more now"


@pytest.mark.parametrize("name", ["second", "nonsense"])
async def test_the_job_that_was_asked_for_is_shown_or_said_to_be_missing(name: str) -> None:
    app = app_for(two_jobs("progressing"))
    app.state.job_name = name
    async with app.run_test(size=SIZE) as pilot:
        assert ("JOBS ON THESE NODES" in await keys(pilot)) == (name == "nonsense")
        hangs = load("skip").snapshot.jobs[0].key
        assert app.state.job_key == ("other" if name == "second" else hangs)
        assert ("no job goes by 'nonsense'" in app.told[0]) == (name == "nonsense")


async def test_the_job_that_was_asked_for_is_shown_when_it_comes() -> None:
    for chosen in (False, True):
        app = app_for(load("skip"))
        app.state.job_name = "second"
        async with app.run_test(size=SIZE) as pilot:
            await keys(pilot, *(["enter"] if chosen else []))
            assert "no job goes by 'second' yet" in app.told[0]
            player_of(app).play(two_jobs("progressing"))
            await keys(pilot)
            assert (app.state.job_key == "other") != chosen
