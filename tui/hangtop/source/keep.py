"""Key `w`: write the kept snapshots to a capture, on a thread while the screens continue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from hangtop.terminal.spans import line
from hangtop_core.capture import Facts, default_name, masked, save, target_names, unused
from hangtop_core.diagnosis import HANG_AFTER_S
from hangtop_core.errors import CaptureWriteError
from hangtop_core.text.clean import clean, plural, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangtop.application import HangtopApp
    from hangtop_core.capture import Saved
    from hangtop_core.errors import HangtopError


def capture(app: HangtopApp) -> None:
    """Write the kept snapshots to a new file: in the current folder, else in hangtop's own."""
    state = app.state
    newest = state.newest
    if newest is None:
        app.tell("nothing is known yet", "warn")
        return
    pictures = state.history.pictures or (newest,)
    commands = tuple(app.source.commands)
    options = getattr(app.source, "options", None)
    facts = Facts(
        by="key w",
        targets=target_names(newest),
        job=state.job.key if state.job is not None else None,
        hang_after=getattr(options, "hang_after", HANG_AFTER_S),
    )
    name = default_name(newest, state.job)
    state.writing = True
    app.tell(f"writing {name}…", "info")

    def work() -> None:
        wrong: list[HangtopError] = []
        folders = [user_state_path("hangtop") / "captures"]
        try:
            folders.insert(0, Path.cwd())
        except OSError as error:  # the folder was removed
            wrong.append(CaptureWriteError(f"cannot write to this folder: {error.strerror}"))
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                stop = not_running(app)
                saved = save(unused(folder / name), pictures, facts, None, commands, stop)
            except OSError as error:
                wrong.append(CaptureWriteError(f"cannot write to {folder}: {error.strerror}"))
            except CaptureWriteError as error:
                wrong.append(error)
            else:
                app.call_from_thread(_written, app, saved, wrong)
                return
        app.call_from_thread(_failed, app, wrong)

    app.run_worker(work, thread=True, group="capture", exit_on_error=False)


def not_running(app: HangtopApp) -> Callable[[], bool]:
    """Return a check whether the user has left the app: the part written so far must then do."""
    return lambda: not app.is_running


def _failed(app: HangtopApp, wrong: Sequence[HangtopError]) -> None:
    app.state.writing = False
    app.tell("no capture was written", "warn")
    app.read("NO CAPTURE WAS WRITTEN", [line(clean(str(one), 600)) for one in wrong])


def _written(app: HangtopApp, saved: Saved, wrong: Sequence[HangtopError]) -> None:
    app.state.writing = False
    count = plural(saved.header.holds.get("pictures", 1), "picture")
    places = masked(saved.header.redactions)
    told = f", secrets masked in {plural(places, 'place')}" if places else ""
    path = saved.path if wrong else Path(saved.path).name  # in the current folder
    app.tell(f"{path}: {size(saved.bytes)}, {count}{told}", "good")
    if wrong:
        lines = [line((saved.path, "code")), line("It is there because here it could not be:")]
        lines += [line(clean(str(one), 600)) for one in wrong]
        app.read("THE CAPTURE IS IN ANOTHER FOLDER", lines)
