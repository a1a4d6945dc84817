"""`hangtop open`: the terminal app on a capture; also opens captures for other commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangtop.app import prepare, run_app
from hangtop.cli import config
from hangtop.cli.arguments.arguments import complete
from hangtop.cli.output.output import StatusLine
from hangtop.source.dump_files import CaptureSource
from hangtop_core.capture import is_capture, load
from hangtop_core.errors import BadCaptureError
from hangtop_core.judging.rejudging import rejudge
from hangtop_core.text.clean import clean, plural

if TYPE_CHECKING:
    import argparse

    from hangtop_core.capture import Capture, Header
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.updates import Update


def run(arguments: argparse.Namespace) -> int:
    """Run the app; return when the user leaves it."""
    arguments = complete(arguments)
    keymap = config.keymap(config.config_path())
    if not is_capture(arguments.capture):
        load(arguments.capture)  # reports errors in it
    prepare()  # before all of it is read: without a terminal there is no reason to read it
    capture, notices = opened(arguments.capture)
    return run_app(
        CaptureSource(capture),
        ascii=arguments.ascii,
        light=arguments.light,
        mouse=arguments.mouse,
        live=False,
        job_key=capture.header.job,
        capture=capture,
        notice="; ".join(notices),
        keymap=keymap,
    )


def opened(path: str) -> tuple[Capture, list[str]]:
    """Return a capture, its newest snapshot diagnosed again, and notices about it.

    Raises:
        BadCaptureError: it cannot be opened.
    """
    with StatusLine() as status:
        status.show(f"reading {clean(path, 60)} ...")  # takes some seconds for thousands of ranks
        return _judged(path, load(path))


def _judged(path: str, capture: Capture) -> tuple[Capture, list[str]]:
    """Return a capture with its newest snapshot diagnosed again, and notices about it."""
    notices = [f"not all of it could be read: {capture.cut}"] if capture.cut else []
    newest, header = capture.newest, capture.header
    if capture.partial:
        if not newest.diagnoses:
            raise BadCaptureError(f"{clean(path, 200)} holds too little: {capture.cut}")
        recorded = sum(len(job.ranks) for job in newest.snapshot.jobs)
        of = header.holds.get("ranks") or sum(j.world_size or 0 for j in newest.snapshot.jobs)
        ranks = f"{recorded} of {plural(of, 'rank')}" if of else plural(recorded, "rank")
        return capture, [f"{ranks} left, verdict as it was stored: {capture.cut}"]
    try:
        pictures = rejudge(capture.pictures, header.hang_after)
    except Exception as error:  # captures come from anywhere: the recorded diagnosis remains
        if not newest.diagnoses:
            raise BadCaptureError(f"{clean(path, 200)} does not make sense: {error!r}") from None
        return capture, [*notices, f"it cannot be judged anew: {clean(repr(error), 200)}"]
    judged = pictures[-1]
    changed = [
        key for key, diagnosis in judged.diagnoses.items() if _differs(newest, key, diagnosis)
    ]
    if changed:
        notices.append(_differing(header, newest, judged, changed[0]))
    return replace(capture, pictures=pictures), notices


def _differs(update: Update, key: str, judged: Diagnosis) -> bool:
    before = update.diagnoses.get(key)
    return before is not None and _gist(before) != _gist(judged)


def _gist(diagnosis: Diagnosis) -> tuple[object, ...]:
    """Return state, and causes with culprits: texts may improve without changing that."""
    blamed = tuple(
        (verdict.cause, tuple((c.node, c.rank, c.pid) for c in verdict.culprits))
        for verdict in diagnosis.verdicts[:1]
    )
    return diagnosis.state, blamed


def _differing(header: Header, then: Update, now: Update, key: str) -> str:
    def verdict_of(update: Update) -> str:
        diagnosis = update.diagnoses[key]
        return ", ".join([diagnosis.state, *(v.cause for v in diagnosis.verdicts[:1])])

    version = clean(header.hangtop, 20)
    old, new = verdict_of(then), verdict_of(now)
    return f"hangtop {version} said {old} when it was taken; this one says {new}"


def tell(notices: list[str]) -> None:
    """Report notices about a capture on stderr."""
    for text in notices:
        print(f"hangtop: {text}", file=sys.stderr)
