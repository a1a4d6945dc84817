"""What one stack says on its own, whatever the kernel says of its thread."""

from __future__ import annotations

from itertools import takewhile

from msgspec import Struct

from hangtop_core.analysis.sourcelines import makes_store
from hangtop_core.model.frames import Loop, endless_loops, library_run, plain_name, site
from hangtop_core.model.snapshot import Frame
from hangtop_core.stacks.dictionary import match
from hangtop_core.stacks.kinds import Kind

_PROGRAM = frozenset(
    {
        "<module>",
        "_run_module_as_main",
        "spawn_main",
        "_bootstrap",
        "BaseProcess._bootstrap",
        "Thread._bootstrap",
    }
)
"""One of these is at the bottom of a main thread until its program is through; handlers that were
registered with atexit are called with nothing below them."""
_AWAITS = frozenset({"wait", "trigger_wait", "tolist", "__torch_dispatch__"})
"""Functions of AsyncCollectiveTensor that wait for it, where it is used first."""
DISTRIBUTED_BREAKPOINT = "sits in torch.distributed.breakpoint()"


class Reading(Struct, frozen=True, gc=False):
    """What a stack says; worked out once for each distinct one."""

    top: Frame | None
    site: Frame | None
    """The user's code it came from."""
    kind: Kind | None
    """None when the innermost frame is the user's own, or no known function is called."""
    text: str
    op: str | None
    """Plain name of the function that was recognised."""
    loading: bool
    """Below a DataLoader's fetch: the user's code prepares a batch."""
    own: bool
    """The innermost frame is the user's own code."""
    natives: tuple[Frame, ...] = ()
    """C frames that the innermost Python frame is in, innermost first; known where asked for."""
    after: bool = False
    """Nothing of a program is below: the interpreter calls this by itself, as it ends."""
    endless: tuple[Loop, ...] = ()
    """Loops around it that only a line in them ends, outermost first."""


def read(stack: tuple[Frame, ...]) -> Reading:
    """Read one stack, innermost frame first."""
    run = tuple(library_run(stack))
    frames = tuple(frame for frame in run if not frame.native)
    met = match(frames)
    outer = stack[len(run) :]
    loading = any("/torch/utils/data/_utils/fetch.py" in frame.file for frame in outer)
    top = next((frame for frame in stack if not frame.native), None)
    kind: Kind | None = None
    text, op = "", None
    if met is not None:
        pattern, frame = met
        kind, op = pattern.kind, plain_name(frame.name)
        op = "wait_tensor" if kind == "collective" and op in _AWAITS else op
        text = pattern.text.format(name=op)
        if kind == "prompt" and any(map(_is_distributed_breakpoint, frames)):
            text = DISTRIBUTED_BREAKPOINT
    elif makes_store(top):
        kind, text = "init", "waits in TCPStore"
    elif waits_for_calls(top):
        kind, text, op = "queue", "waits for calls of its actor", "main_loop"
    return Reading(
        top=top,
        site=site(stack),
        kind=kind,
        text=text,
        op=op,
        loading=loading or kind == "inline-data",
        own=not frames,
        natives=tuple(takewhile(lambda one: one.native, stack)),
        after=top is not None and not any(frame.name in _PROGRAM for frame in stack),
        endless=tuple(endless_loops(stack)),
    )


def waits_for_calls(frame: Frame | None) -> bool:
    """Whether a worker of Ray runs nothing: its loop runs in C (2.60, Worker.main_loop)."""
    in_file = frame is not None and "/ray/_private/worker.py" in "/" + frame.file
    return in_file and frame is not None and plain_name(frame.name) == "main_loop"


def _is_distributed_breakpoint(frame: Frame) -> bool:
    """Whether a frame is torch.distributed.breakpoint: the other ranks are in its barrier."""
    in_file = "/torch/distributed/__init__.py" in "/" + frame.file
    return in_file and plain_name(frame.name) == "breakpoint"
