"""Key `w`: what the app knows, written to a capture by a thread while the screens go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hangtop_core.capture import Facts, default_name, save, target_names, unused
from hangtop_core.errors import HangtopError
from hangtop_core.text import clean, plural, size

if TYPE_CHECKING:
    from hangtop.application import HangtopApp
    from hangtop_core.capture import Saved


def capture(app: HangtopApp) -> None:
    """Write the pictures that are kept to a new file in the present folder."""
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
        hang_after=getattr(options, "hang_after", 30.0),
    )
    path = unused(Path(default_name(newest, state.job)).absolute())
    state.writing = True
    app.tell(f"writing {path.name}…", "info")

    def work() -> None:
        try:
            saved = save(path, pictures, facts, None, commands, lambda: not app.is_running)
        except HangtopError as error:
            app.call_from_thread(_failed, app, error)
        else:
            app.call_from_thread(_written, app, saved)

    app.run_worker(work, thread=True, group="capture", exit_on_error=False)


def _failed(app: HangtopApp, error: HangtopError) -> None:
    app.state.writing = False
    app.tell(f"{clean(str(error), 300)}  {error.help}", "warn")


def _written(app: HangtopApp, saved: Saved) -> None:
    app.state.writing = False
    count = plural(saved.header.holds.get("pictures", 1), "picture")
    masked = sum(saved.header.redactions.values())
    told = f", {plural(masked, 'secret')} masked" if masked else ""
    app.tell(f"{saved.path}: {size(saved.bytes)}, {count}{told}", "good")
