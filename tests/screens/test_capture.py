"""The app on a capture: its history by keys, every screen, nobody asked; and writing one by `w`."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop.cli.commands.opening import opened
from hangtop.source.dump_files import NO_NODE
from hangtop.terminal.spans import plain
from hangtop.views.timeline import slider
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, load, save
from hangtop_core.errors import BadCaptureError
from hangtop_core.state.history import History
from hangtop_core.text.clean import duration
from support.player import app_for, app_on, compare, picture, player_of, settled
from support.readonly_tour import PAGE_KEYS
from support.record import capture as captured
from support.record import load as recording
from support.record import path_of

if TYPE_CHECKING:
    from pathlib import Path

    from hangtop_core.capture import Capture

SIZES = ((80, 24), (120, 36), (200, 50))


@pytest.fixture
def capture() -> Capture:
    return captured("skip")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_capture_looks_like_this(
    capture: Capture, size: tuple[int, int], update_screens: bool
) -> None:
    app = app_on(capture)
    async with app.run_test(size=size) as pilot:
        await pilot.press("left_square_bracket")
        count = len(capture.pictures)
        assert await settled(pilot, lambda: f"{count - 1} of {count}" in picture(app))
        name = f"capture-{size[0]}x{size[1]}"
        compare(name, picture(app), update_screens)


async def test_keys_go_through_its_history(capture: Capture) -> None:
    app = app_on(capture)
    times = [one.snapshot.at for one in capture.pictures]

    async with app.run_test(size=(120, 36)) as pilot:

        async def after(key: str) -> float:
            await pilot.press(key)
            await pilot.pause()
            assert app.state.snapshot is not None
            return app.state.snapshot.at

        count = len(times)
        assert f"{count} of {count}" in picture(app)
        assert [await after("left_square_bracket") for _ in times[1:]] == times[-2::-1]
        told = f"1 of {count}, {duration(times[-1] - times[0])} before the last"
        assert await settled(pilot, lambda: told in picture(app))
        assert await after("left_square_bracket") == times[0]
        assert app.told[0] == "no earlier picture is kept"
        assert await after("right_square_bracket") == times[1]
        assert await after("right_curly_bracket") == times[-1]
        assert await after("right_square_bracket") == times[-1]
        assert app.told[0] == "this is the newest picture: [ goes back"
        assert await after("left_curly_bracket") == times[0]
        assert "still looking" not in picture(app)
        assert await after("ctrl+end") == times[-1]


async def test_every_screen_works_and_nobody_is_asked(capture: Capture) -> None:
    app = app_on(capture)
    async with app.run_test(size=(120, 36)) as pilot:
        for name, digit in PAGE_KEYS.items():
            await pilot.press(digit)
            assert await settled(pilot, lambda: app.current_mode == name)  # noqa: B023
            for key in ("left_square_bracket", "left_curly_bracket", "right_curly_bracket"):
                await pilot.press(key)
                await pilot.pause()
            assert "■ capture" in picture(app)
            foot = picture(app).splitlines()[-1]
            assert "[ ] history" in foot
            assert not {"stack", "stacks", "strace", "retry", "shell", "read", "pause"} & {
                *foot.split()
            }
        for keys in ("1b", "1B", "3s", "9R"):
            await pilot.press(*keys)
            await pilot.pause()
            assert app.told[0] == NO_NODE, keys
        await pilot.press("p")
        await pilot.pause()
        assert app.told[0].startswith(NO_NODE)
        await pilot.press("w")
        await pilot.pause()
        assert app.told[0] == "this is a capture already"
        await pilot.press("1", "s")
        assert await settled(pilot, lambda: app.told[0] == NO_NODE), "a key of Rank"
        await pilot.press("question_mark", "end")
        assert await settled(pilot, lambda: f"Keys of running jobs  {NO_NODE}" in picture(app))
        assert "s strace, S stop" in picture(app)
        await pilot.press("escape", "colon", *"stack")
        assert await settled(pilot, lambda: "Merged stacks" in picture(app))
        assert "sample" not in picture(app)


async def test_w_writes_what_is_known_with_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    some = captured("dataloader-worker").pictures[-3:]
    app = app_for(some[0])
    async with app.run_test(size=(120, 36)) as pilot:
        for one in some[1:]:
            player_of(app).play(one)
            assert await settled(pilot, lambda: app.state.newest is one)  # noqa: B023
        await pilot.press("w")
        assert await settled(pilot, lambda: "3 pictures" in app.told[0]), app.told
        written = app.told[0].partition(":")[0]
        assert written.startswith("hangtop-demo-")
        assert not app.state.writing
        await pilot.press("w")
        assert await settled(pilot, lambda: "-2.hangtop: " in app.told[0]), app.told
    found = load(written)
    assert found.header.by == "key w"
    assert [one.snapshot.at for one in found.pictures] == [one.snapshot.at for one in some]


async def test_w_writes_elsewhere_where_the_present_folder_takes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/proc/self")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = app_for(recording("skip"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("w")
        assert await settled(pilot, lambda: "IN ANOTHER FOLDER" in picture(app)), app.told
        assert "cannot write /proc/" in picture(app)
        (written,) = (tmp_path / "hangtop" / "captures").iterdir()
        assert load(str(written)).cut is None
        await pilot.press("escape")
        monkeypatch.setenv("XDG_STATE_HOME", "/proc/self")
        await pilot.press("w")
        assert await settled(pilot, lambda: "NO CAPTURE WAS WRITTEN" in picture(app)), app.told
        assert "cannot write to /proc/self/hangtop/captures" in picture(app)
        assert not app.state.writing


def test_the_slider_goes_by_time() -> None:
    some = list(captured("skip").pictures[-3:])
    first = some[1].snapshot.at - 60.0
    some[0] = replace(some[0], snapshot=replace(some[0].snapshot, at=first))
    some[1] = replace(some[1], snapshot=replace(some[1].snapshot, at=some[2].snapshot.at - 1.0))
    history = History(some)
    for width in (40, 80, 200):
        lines = [plain(slider(history, one, width)) for one in some]
        assert all(len(one) <= width for one in lines)
        first, second, third = (one.index("●") for one in lines)
        assert first < second <= third
        assert second - first >= 5 * (third - second)
    assert slider(History(), some[0], 80) == ()


def test_what_is_concluded_otherwise_now_is_told(tmp_path: Path) -> None:
    update = recording("skip")
    key = update.snapshot.jobs[0].key
    other = replace(update.diagnoses[key], state="progressing", verdicts=())
    saved = save(tmp_path / "a", [replace(update, diagnoses={key: other})], Facts(hang_after=10.0))
    found, notices = opened(saved.path)
    assert len(notices) == 1
    assert "said progressing when it was taken; this one says hung" in notices[0]
    again = diagnose(found.newest.snapshot, found.newest.snapshot.jobs[0], 10.0)
    assert found.newest.diagnoses[key] == again


async def test_of_a_picture_that_is_cut_off_the_stored_verdict_is_shown(tmp_path: Path) -> None:
    lines = gzip.decompress(path_of("skip").read_bytes()).splitlines(keepends=True)
    path = tmp_path / "cut"
    path.write_bytes(gzip.compress(b"".join(lines[:3]) + lines[3][:9]))
    found, notices = opened(str(path))
    assert notices == ["0 of 4 ranks left, verdict as it was stored: it is cut off"]
    app = app_on(found)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert await settled(pilot, lambda: "missing-collective" in picture(app))
        head, _, slider_line = picture(app).splitlines()[:3]
        assert "0 of 4 ranks" in head
        assert "HUNG" in head
        assert "■ capture" in head
        assert slider_line.endswith("incomplete")
    path.write_bytes(gzip.compress(b"".join(lines[:2])))
    with pytest.raises(BadCaptureError, match="holds too little: it ends before its end"):
        opened(str(path))


async def test_a_capture_has_no_interval(capture: Capture) -> None:
    app = app_on(capture)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app._entered("interval 5")
        await pilot.pause()
        assert "there is no interval" in picture(app)
