"""All stacks that samples refer to: each stack once, with shared frames, bounded.

Probes send a stack once and then refer to it, so a stack may only be dropped when no probe counts
it as sent. This takes two steps. With a new edition, which every request names, probes send all
stacks again; and once all requests of older editions are over, stacks that neither a sample uses
nor a probe sent since are dropped.

Stacks are compared by their Python frames only, so that a native sample of a rank that has not
moved still counts as the same stack. Calls of a library that only polls for the end of a wait do
not count as other functions either: a rank sampled at such a poll has made no progress.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from hangtop_core.analysis.reading import read
from hangtop_core.analysis.serving import answers
from hangtop_core.model.frames import LOOPS, library_run, since_fork
from hangtop_core.stacks import dictionary
from hangtop_core.stacks.kinds import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from hangtop_core.model.snapshot import Frame, StackSample
    from hangtop_core.stacks.kinds import Kind

T = TypeVar("T")
MAX_STACKS = 20_000
"""Number of stacks from which unused ones are dropped."""
_LOOKS_AGAIN: frozenset[Kind] = frozenset({"child", "data", "file-lock"})
"""Waits of libraries that poll: for the workers of a DataLoader every 5 s (torch 2.13
torch/utils/data/_utils/__init__.py, MP_STATUS_CHECK_INTERVAL), for a lock file 20 times a second
(filelock), for a program with a timeout (CPython's subprocess.py, `_wait`)."""


class StackTable:
    """Stacks by key, with numbers that are equal where stacks are."""

    def __init__(self, max_stacks: int = MAX_STACKS) -> None:
        self._stacks: dict[str, tuple[Frame, ...]] = {}
        self._max = max_stacks
        self._frames: dict[Frame, Frame] = {}
        self._shapes: dict[str, tuple[int, int]] = {}
        self._depths: dict[str, tuple[int, int]] = {}
        self._kinds: dict[str, bool] = {}
        self._published: Mapping[str, tuple[Frame, ...]] = {}
        self._changed = False
        self._limit = max_stacks
        self._edition = 0
        self._lent: Counter[int] = Counter()
        self._sent: set[str] | None = None
        """Keys of stacks sent since the present edition began; None when nothing is to be
        dropped."""

    def __contains__(self, key: str) -> bool:
        return key in self._stacks

    def __len__(self) -> int:
        return len(self._stacks)

    def add(self, key: str, frames: tuple[Frame, ...]) -> None:
        """Add a stack, innermost frame first; a key always means the same stack.

        For a forked process the frames of its parent are left out.
        """
        if self._sent is not None:
            self._sent.add(key)
        if key in self._stacks:
            return
        shared = tuple(self._frames.setdefault(frame, frame) for frame in since_fork(frames))
        self._stacks[key] = shared
        self._changed = True

    def shape(self, key: str) -> tuple[int, int]:
        """Return two numbers: equal for equal functions and lines, and for equal functions."""
        numbers = self._shapes.get(key)
        if numbers is None:
            python = self._python(key)
            numbers = self._shapes[key] = (
                hash(tuple((f.file, f.name, f.line) for f in python)),
                hash(tuple((f.file, f.name) for f in python[_inside(python) :])),
            )
        return numbers

    def waits_for_ranks(self, key: str) -> bool:
        """Return whether a main thread with this stack waits for other ranks."""
        waits = self._kinds.get(key)
        if waits is None:
            waits = self._kinds[key] = read(self._stacks.get(key, ())).kind in COMMUNICATION
        return waits

    def frames(self, key: str) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first."""
        return self._stacks.get(key, ())

    def _python(self, key: str) -> list[Frame]:
        """Return the frames of a stack without C frames."""
        return [frame for frame in self._stacks.get(key, ()) if not frame.native]

    def served(self, sample: StackSample) -> tuple[tuple[int | None, int], ...]:
        """Return a number for the functions of each thread that answers a call by RPC."""
        own = [thread for thread in sample.threads[1:] if answers(self.frames(thread.stack))]
        return tuple((thread.tid, self.shape(thread.stack)[1]) for thread in own)

    def homes(self, key: str) -> tuple[int, int | None]:
        """Return numbers for the functions of a stack, and for those without the innermost one.

        The second is None where the calling line is not in a `while`: such a caller may loop for
        ever, but a `for` goes from item to item.
        """
        python = self._python(key)
        own, caller = self.shape(key)[1], None
        loops = (
            [text for _, text in (python[1].within or ()) if text.startswith(LOOPS)][-1:]
            if len(python) > 1
            else []
        )
        if loops and loops[0].startswith("while "):
            caller = hash(tuple((f.file, f.name) for f in python[1:]))
        return own, caller

    def only_deeper(self, old: str, new: str) -> bool:
        """Return whether a stack only has a few more calls of functions that it was in already.

        A function that retries by calling itself grows by a frame each time, without progress.
        Recursion that does work also returns, and calls new functions.
        """
        before, after = self._depth(old), self._depth(new)
        return before[0] < after[0] and before[1] == after[1]

    def equal(self, old: StackSample | None, new: StackSample) -> tuple[bool, bool]:
        """Return whether two samples have equal lines, and whether they have equal functions."""
        if old is None or not old.threads or not new.threads:
            return False, False
        before, after = old.threads[0].stack, new.threads[0].stack
        shape, new_shape = self.shape(before), self.shape(after)
        functions = shape[1] == new_shape[1] or self.only_deeper(before, after)
        return shape[0] == new_shape[0], functions and self.served(old) == self.served(new)

    def _depth(self, key: str) -> tuple[int, int]:
        """Return how many frames a stack has, and a number for its functions, each taken once."""
        depth = self._depths.get(key)
        if depth is None:
            python = self._python(key)
            outermost_first = [(f.file, f.name) for f in reversed(python[_inside(python) :])]
            depth = len(outermost_first), hash(tuple(dict.fromkeys(outermost_first)))
            self._depths[key] = depth
        return depth

    def lend(self) -> int:
        """Return the edition for a request for stacks; `give_back` it when the request is over."""
        self._lent[self._edition] += 1
        return self._edition

    def give_back(self, edition: int) -> None:
        """Note that a request of this edition is over."""
        self._lent[edition] -= 1
        if not self._lent[edition]:
            del self._lent[edition]

    def trim(self, used: Callable[[], Iterable[str]]) -> None:
        """Take the next step of dropping stacks that are not ``used``, if it is due."""
        if self._sent is None and len(self._stacks) > self._limit:
            self._edition += 1
            self._sent = set()
        elif self._sent is not None and not any(old < self._edition for old in self._lent):
            self._keep_only(self._sent.union(used()))
            self._sent = None
            self._limit = max(self._max, 2 * len(self._stacks))

    def _keep_only(self, used: set[str]) -> None:
        kept = {key: self._stacks[key] for key in used if key in self._stacks}
        self._stacks = kept
        self._shapes = _only(kept, self._shapes)
        self._depths = _only(kept, self._depths)
        self._kinds = _only(kept, self._kinds)
        self._frames = {frame: frame for frames in kept.values() for frame in frames}
        self._changed = True

    def publish(self) -> Mapping[str, tuple[Frame, ...]]:
        """Return an immutable view; the same object as long as nothing changed."""
        if self._changed:
            self._published = dict(self._stacks)
            self._changed = False
        return self._published


def _only(keys: Container[str], table: Mapping[str, T]) -> dict[str, T]:
    return {key: value for key, value in table.items() if key in keys}


def _inside(stack: Sequence[Frame]) -> int:
    """Return the number of innermost frames below a library's polling wait."""
    run = tuple(library_run(stack))
    match = dictionary.match(run)
    if match is None or match[0].kind not in _LOOKS_AGAIN:
        return 0
    return max(index for index, frame in enumerate(run) if frame is match[1])
