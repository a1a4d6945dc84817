"""Starting the app: settings before Textual is imported, and the checks of the terminal."""

from __future__ import annotations

import codecs
import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

from hangtop.terminal.hangup import end_with_terminal
from hangtop_core.errors import UsageError
from hangtop_core.scheduling.ui_priority import SCREENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop.keys.keymap import Keymap
    from hangtop.source.programs import Programs
    from hangtop.source.slurm_jobs import SlurmJobs
    from hangtop.source.source import Source
    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.capture import Capture
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot

TEXTUAL_SETTINGS = {
    "TEXTUAL_FPS": "30",
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
}
"""Variables that Textual reads at import. A monitor needs neither animation nor sixty frames a
second.
"""


def begin() -> None:
    """Prepare to start a session.

    Garbage collection is off while modules are loaded and nodes connect, as nearly all objects made
    meanwhile stay; the app turns it on again. Loading modules has priority over processing node
    messages: a screen that counts the connected nodes appears sooner.
    """
    gc.disable()
    SCREENS.begin()


def diagnose(snapshot: Snapshot, job: Job | None, hang_after: float) -> Diagnosis:
    """Diagnose a job as `engine.diagnose`, without waiting for all rules on its first snapshot."""
    from hangtop_core.analysis.verdict import engine

    return engine.diagnose(snapshot, job, hang_after)


def _load() -> None:
    for name, value in TEXTUAL_SETTINGS.items():
        os.environ.setdefault(name, value)
    import_module("hangtop.application")  # after the settings


def prepare(environ: Mapping[str, str] = os.environ) -> None:
    """Check that there is a terminal that can show screens.

    Raises:
        UsageError: there is none; the message names the command that prints the same as text.
    """
    hint = "`hangtop diagnose` prints the verdict, `hangtop dump` the stacks, as plain text."
    if environ.get("TERM", "") in ("", "dumb"):
        raise UsageError(f"TERM={environ.get('TERM') or '(not set)'} cannot show screens", hint)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.__stderr__)):
        raise UsageError("the screens need a terminal on stdin and stderr", hint)


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; Python has none for a closed one."""
    return stream is not None and stream.isatty()


def _carries_unicode(stream: TextIO | None) -> bool:
    """Return whether frames can be written there; Python itself takes the locale C for UTF-8."""
    return stream is None or codecs.lookup(stream.encoding).name.startswith("utf")


def run_app(
    source: Source,
    *,
    ascii: bool = False,  # noqa: A002 - as on the command line
    light: bool = False,
    mouse: bool = False,
    live: bool = True,
    job_key: str | None = None,
    files: Picture | None = None,
    capture: Capture | None = None,
    notice: str = "",
    keymap: Keymap | None = None,
    nettest: Sequence[str] = (),
    slurm: SlurmJobs | None = None,
    programs: Programs | None = None,
) -> int:
    """Run the screens on a started session until the user leaves; return the exit status.

    Uses ASCII characters where the locale's encoding does not have the others. With `job_key` that
    job is shown first; with `files` only those; with `capture` its snapshots. `nettest` is the
    command that tests the network between the nodes of the session; `slurm` records a job that is
    to be opened next, `programs` a program; `notice` is shown for some seconds.

    Raises:
        UsageError: the terminal cannot show screens.
    """
    prepare()
    _load()
    from hangtop.application import FilesApp, HangtopApp  # after the settings
    from hangtop.terminal.loop import run
    from hangtop.terminal.theme import use_light

    if light:
        use_light()

    options = getattr(source, "options", None)
    kind = HangtopApp if files is None else FilesApp
    app = kind(
        source,
        ascii=ascii or not _carries_unicode(sys.__stderr__),
        mouse=mouse,
        readonly=bool(getattr(options, "readonly", False)),
        live=live,
        files=files,
        capture=capture,
        keymap=keymap,
    )
    app.state.job_name = job_key
    app.nettest = tuple(nettest)
    app.slurm, app.programs = slurm, programs
    app.state.in_slurm = slurm is not None
    app.tell(notice)
    if sys.__stdin__ is not None:  # `prepare` has checked that it is a terminal
        end_with_terminal(sys.__stdin__.fileno())
    run(app.run_async(mouse=mouse))
    return app.return_code or 0
