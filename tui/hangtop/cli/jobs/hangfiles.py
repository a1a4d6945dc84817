"""What `hangtop watch --output DIR` keeps: a directory for every hang, the newest few of them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.output.writing import check_folder
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME = re.compile(r"hang-\d{8}T\d{6}Z(-\d+)?")
UNFINISHED = ".hang-"


class HangFiles:
    """One directory below which hangs are kept."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Make the directory, for its owner only, if it is not there.

        Raises:
            UsageError: when it cannot be written to.
        """
        self.directory, self.keep = directory.absolute(), keep
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output {directory}: {error.strerror}") from error
        check_folder(self.directory)

    def write(
        self, files: Mapping[str, str], at: float, also: Callable[[Path], None] | None = None
    ) -> Path:
        """Write files of one hang and return their directory; ``also`` writes more into it.

        It gets its name once they are whole, so whoever sees it sees all of them. Only the owner
        can read them: stacks and logs tell much.

        Raises:
            OSError: when they cannot be written; nothing is left of them then.
        """
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.directory))
        try:
            for name, text in files.items():
                _write(unfinished / name, text)
            if also is not None:
                also(unfinished)
            stamp = time.strftime("hang-%Y%m%dT%H%M%SZ", time.gmtime(at))
            final = self._take(unfinished, stamp)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._prune(final)
        return final

    def _take(self, unfinished: Path, stamp: str) -> Path:
        """Give a directory its name; with a number where that is taken."""
        number = 1
        while True:
            final = self.directory / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                # Renaming onto a directory that is not empty fails; none of ours is empty.
                unfinished.rename(final)
            except OSError:
                if not final.exists():
                    raise
                number += 1
            else:
                return final

    def _prune(self, newest: Path) -> None:
        """Remove the oldest beyond those to keep; only what this class has named."""
        ours = [
            one
            for one in self.directory.iterdir()
            if NAME.fullmatch(one.name) and one.is_dir() and not one.is_symlink()
        ]
        ours.sort(key=lambda one: (one != newest, -_written(one), one.name))
        for one in ours[self.keep :]:
            shutil.rmtree(one, ignore_errors=True)


def _written(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:
        return 0.0


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
