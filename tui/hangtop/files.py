"""The Recorder screen on dump files: the same app on a job of which nothing but those is there."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hangtop_core.errors import RequestError
from hangtop_core.model import Job, Snapshot
from hangtop_core.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.asks import Ask
    from hangtop_core.outputs import Wanted

NOTHING_RUNS = "these are files: there are no processes, stacks or nodes to look at"
SCREENS = frozenset({"recorder", "verdict"})
"""What can be shown of files."""


def job_of(picture: Picture, name: str) -> Job:
    """A job without any process."""
    size = len(picture.world.ranks) or None
    return Job(key=name, name=name, launcher=None, id=None, world_size=size, master=None)


class FileSource:
    """One update, and nobody to ask. Fits `hangtop.source.Source`."""

    def __init__(self, picture: Picture, name: str) -> None:
        """`name` is what the job is called: where its dumps are."""
        job = job_of(picture, name)
        at = datetime.fromisoformat(picture.diagnosis.observed_at).timestamp()
        snapshot = Snapshot(at=at, observed_since=at, tick=0, jobs=(job,))
        self.latest = Update(snapshot, {job.key: picture.diagnosis})
        self.commands: tuple[Any, ...] = ()

    def subscribe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """Nothing will ever come."""
        return lambda: None

    def sample(
        self, pids: Mapping[str, Sequence[int]] | None = None, *, mode: Any = ""
    ) -> Future[Any]:
        """Refused."""
        return _refused()

    def descriptors(self, node: str, pids: Sequence[int]) -> Future[Any]:
        """Refused."""
        return _refused()

    def recorder(self, node: str, pids: Sequence[int], *, trigger: bool = False) -> Future[Any]:
        """Refused."""
        return _refused()

    def log(self, wanted: Wanted, window: int | None = None) -> Future[Any]:
        """Refused."""
        return _refused()

    def strace(
        self, node: str, pid: int, seconds: float, on_lines: Callable[[Sequence[str]], None]
    ) -> Future[Any]:
        """Refused."""
        return _refused()

    def holders(self, node: str, pid: int, fd: int) -> Future[Any]:
        """Refused."""
        return _refused()

    def cancel_strace(self, node: str, pid: int) -> None:
        """There is no trace."""

    def ask(self, node: str, ask: Ask, result: Callable[[Any], Any]) -> Future[Any]:
        """Refused."""
        return _refused()

    def retry(self, node: str) -> None:
        """There is no node."""

    def shell(self, node: str) -> None:
        """There is no node."""

    def note_command(self, node: str, what: str) -> Callable[[str], None]:
        """Nothing is run."""
        return lambda outcome: None


def _refused() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(RequestError(NOTHING_RUNS))
    return future
