"""The directory of `hangtop watch --output DIR`: a subdirectory per hang, the newest ones kept."""

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
    """A directory below which hangs are kept."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Create the directory, for its owner only, if it does not exist.

        Raises:
            UsageError: it cannot be written to.
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
        """Write the files of a hang and return their directory; ``also`` writes more into it.

        The directory gets its name once all files are complete, so it is never seen in part. Only
        the owner can read it: stacks and logs may hold secrets.

        Raises:
            OSError: they cannot be written; no part of them is left.
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
        """Rename a directory to its final name; with a number where that exists."""
        number = 1
        while True:
            final = self.directory / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                # Renaming onto a directory that is not empty fails, and hang directories are never
                # empty.
                unfinished.rename(final)
            except OSError:
                if not final.exists():
                    raise
                number += 1
            else:
                return final

    def _prune(self, newest: Path) -> None:
        """Remove the oldest hangs beyond those to keep; only directories that this class named."""
        ours = [
            folder
            for folder in self.directory.iterdir()
            if NAME.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink()
        ]
        ours.sort(key=lambda folder: (folder != newest, -_written(folder), folder.name))
        for folder in ours[self.keep :]:
            shutil.rmtree(folder, ignore_errors=True)


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
