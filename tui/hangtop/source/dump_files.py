"""Offline sources: dump files, a job that consists only of them, and captures."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hangtop_core.errors import RequestError
from hangtop_core.model.snapshot import Job, Snapshot
from hangtop_core.model.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.capture import Capture
    from hangtop_core.collect.requests import Ask
    from hangtop_core.state.outputs import Wanted

NOTHING_RUNS = "these are files: there are no processes, stacks or nodes to look at"
NO_NODE = "this is a capture: no node is asked"
SCREENS = frozenset({"recorder", "verdict"})
"""Screens that are available for dump files."""


def job_of(picture: Picture, name: str) -> Job:
    """Return a job without any process."""
    size = len(picture.world.ranks) or None
    return Job(key=name, name=name, launcher=None, id=None, world_size=size, master=None)


class Offline:
    """A fixed update without live nodes. Fits `hangtop.source.source.Source`."""

    def __init__(self, latest: Update, why: str, commands: tuple[CommandRecord, ...] = ()) -> None:
        """Create it; `why` is the reason given for every refused request."""
        self.latest = latest
        self.commands = commands
        self._why = why

    def subscribe(
        self, callback: Callable[[Any], None], *, unjudged: bool = False
    ) -> Callable[[], None]:
        """Do nothing: there are no further updates."""
        return lambda: None

    def sample(
        self, pids: Mapping[str, Sequence[int]] | None = None, *, mode: Any = ""
    ) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def descriptors(self, node: str, pids: Sequence[int]) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def recorder(self, node: str, pids: Sequence[int], *, trigger: bool = False) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def log(self, wanted: Wanted, window: int | None = None) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def strace(
        self, node: str, pid: int, seconds: float, on_lines: Callable[[Sequence[str]], None]
    ) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def holders(self, node: str, pid: int, fd: int) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def cancel_strace(self, node: str, pid: int) -> None:
        """Do nothing: there is no trace."""

    def ask(self, node: str, ask: Ask, result: Callable[[Any], Any]) -> Future[Any]:
        """Refuse the request."""
        return self._refused()

    def retry(self, node: str) -> None:
        """Do nothing: there is no node."""

    def shell(self, node: str) -> None:
        """Return None: there is no node."""

    def note_command(self, node: str, what: str) -> Callable[[str], None]:
        """Do nothing: no command runs."""
        return lambda outcome: None

    def _refused(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(RequestError(self._why, ""))
        return future


class FileSource(Offline):
    """The source for dump files."""

    def __init__(self, picture: Picture, name: str) -> None:
        """Create it; `name` is the name of the job: the place of its dumps."""
        job = job_of(picture, name)
        at = datetime.fromisoformat(picture.diagnosis.observed_at).timestamp()
        snapshot = Snapshot(at=at, observed_since=at, tick=0, jobs=(job,))
        super().__init__(Update(snapshot, {job.key: picture.diagnosis}), NOTHING_RUNS)


class CaptureSource(Offline):
    """The source for a capture: its newest snapshot; the app keeps the others as history."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture.newest, NO_NODE, capture.commands)
