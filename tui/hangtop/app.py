"""Starting the app: what must be set before Textual is imported, and what is refused."""

from __future__ import annotations

import codecs
import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

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
"""Read by Textual at import. A monitor needs neither animation nor sixty frames a second."""


def begin() -> None:
    """Prepare to start a session.

    No garbage is looked for while modules are loaded and nodes come in, for nearly all that is made
    meanwhile is to stay; the app ends that. What nodes say is taken in meanwhile, but modules go
    first: a screen that tells how many of them are there comes sooner.
    """
    gc.disable()
    SCREENS.begin()


def diagnose(snapshot: Snapshot, job: Job | None, hang_after: float) -> Diagnosis:
    """Judge a job as `engine.diagnose`; a first sight of ranks does not wait for all rules."""
    from hangtop_core.analysis.verdict import engine

    return engine.diagnose(snapshot, job, hang_after)


def _load() -> None:
    for name, value in TEXTUAL_SETTINGS.items():
        os.environ.setdefault(name, value)
    import_module("hangtop.application")  # after the settings


def prepare(environ: Mapping[str, str] = os.environ) -> None:
    """Check that there is a terminal that can show screens.

    Raises:
        UsageError: when there is none, with the command that gives the same as text.
    """
    hint = "`hangtop diagnose` prints the verdict, `hangtop dump` the stacks, as plain text."
    if environ.get("TERM", "") in ("", "dumb"):
        raise UsageError(f"TERM={environ.get('TERM') or '(not set)'} cannot show screens", hint)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.__stderr__)):
        raise UsageError("the screens need a terminal on stdin and stderr", hint)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; Python has none for one that was closed."""
    return stream is not None and stream.isatty()


def _carries_unicode(stream: TextIO | None) -> bool:
    """Whether frames can be written there; Python itself takes the locale C for UTF-8."""
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
    """Run the screens on a started session until the user leaves; the exit status.

    It is drawn with ASCII characters where the locale has an encoding without the others.
    With `job_key` that job is shown first; with `files` what those show, and nothing else; with
    `capture` its pictures.
    `nettest` is the command that tests the network between the nodes of the session; `slurm`
    notes a job that is to be opened after this one, `programs` a program;
    `notice` is told for some seconds.

    Raises:
        UsageError: when the terminal cannot show screens.
    """
    prepare()
    _load()
    from hangtop.application import FilesApp, HangtopApp  # after the settings
    from hangtop.terminal.loop import run
    from hangtop.terminal.terminal import end_with_terminal
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
    if sys.__stdin__ is not None:  # `prepare` has seen that it is a terminal
        end_with_terminal(sys.__stdin__.fileno())
    run(app.run_async(mouse=mouse))
    return app.return_code or 0
