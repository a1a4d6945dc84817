"""The exceptions that hangtop raises, each with what happened, why, and what to try.

    HangtopError
    ├── UsageError            an argument that cannot be used
    │   └── BadCaptureError       a file that is no capture, or none that can be opened
    ├── CaptureWriteError     a capture could not be written
    ├── NoJobError            no training job where it was looked for
    │   └── NoNodeError           nothing is known of one: no node answered, or none lets it be read
    ├── NoDumpError           no flight-recorder dump where it was looked for
    ├── NoLogError            no log that can be read where it was looked for
    ├── NoCoreError           no core file where it was looked for
    ├── RequestError          a request to a node got no answer
    │   ├── UnknownNodeError      no such node in this session
    │   ├── NodeNotReadyError     the node cannot be asked now
    │   ├── ReadOnlyError         refused, because hangtop was started with --readonly
    │   ├── RequestTimeoutError   no answer within its deadline
    │   ├── RequestCancelledError given up by the caller, or by the end of the session
    │   └── RefusedError          the probe refused or failed, with its own reason and fix
    ├── StartError            a process of hangtop itself could not be started
    └── ClosedError           the session is over

A failure of a node or a rank is no exception: it is a state with a reason in the `Snapshot`. These
errors are for the one request, or the one command, that cannot go on.
"""

from __future__ import annotations

from typing import ClassVar

from hangtop_core.text.launchers import LOOKED_FOR


class HangtopError(Exception):
    """Base of all errors that hangtop raises on purpose.

    ``str(error)`` is what happened, in one line; `help` is why, and the exact commands to try.
    """

    HELP: ClassVar[str] = ""

    def __init__(self, text: str, help_text: str | None = None) -> None:
        super().__init__(text)
        self._help = help_text

    @property
    def help(self) -> str:
        """Return why it happened and what to try, maybe in several lines; ``""`` when unknown."""
        return self.HELP if self._help is None else self._help


class UsageError(HangtopError):
    """An argument cannot be used."""

    HELP = "`hangtop --help` shows every option with examples."


class BadCaptureError(UsageError):
    """A file is no capture, or one that cannot be opened."""

    HELP = "`hangtop capture -o FILE` writes captures, and so does key w on the screens."


class CaptureWriteError(HangtopError):
    """A capture could not be written."""

    HELP = "-o FILE writes it to another place."


class NoJobError(HangtopError):
    """There is no training job where it was looked for."""

    HELP = (
        "hangtop looks for Python processes in a process group of torch, for a rank in their\n"
        f"environment ({LOOKED_FOR}),\n"
        "and for launchers.\n"
        "Try: hangtop --all-users        when the job belongs to somebody else\n"
        "     hangtop --pid PID          for any other Python process and its children\n"
        "     hangtop demo               to see hangtop at work"
    )


class NoNodeError(NoJobError):
    """No node answered, or none lets its ranks be read: nothing is known of a training job."""

    HELP = "No probe could be started."


class NoDumpError(HangtopError):
    """There is no flight-recorder dump where it was looked for."""

    HELP = (
        "A dump is one file per rank, named by a prefix and the rank: comm_lib_trace_rank_3.\n"
        "torch writes them to the prefix in TORCH_FR_DUMP_TEMP_FILE (before torch 2.8:\n"
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE) when a collective times out, if the recorder is on:\n"
        "from torch 2.11 it is; before, set TORCH_FR_BUFFER_SIZE=2000 (before 2.8:\n"
        "TORCH_NCCL_TRACE_BUFFER_SIZE) and TORCH_NCCL_DUMP_ON_TIMEOUT=1."
    )


class NoLogError(HangtopError):
    """There is no log where it was looked for."""

    HELP = "Name log files, folders that hold some, or - for standard input."


class NoCoreError(HangtopError):
    """There is no core file where it was looked for."""

    HELP = "Name the core file: hangtop core CORE."


class RequestError(HangtopError):
    """A request to a node got no answer."""


class UnknownNodeError(RequestError):
    """There is no such node in this session."""

    HELP = "The nodes of a session are those of its target options; see `hangtop --help`."


class NodeNotReadyError(RequestError):
    """The node cannot be asked now: connecting, lost or refused."""

    HELP = "The node's state says why. Connections are retried by themselves."


class ReadOnlyError(RequestError):
    """A request was refused because it would touch a process beyond reading /proc."""

    HELP = "hangtop was started with --readonly. Start it without, to allow this."


class RequestTimeoutError(RequestError):
    """No answer came within the request's deadline."""

    HELP = (
        "The node may be overloaded, or a tool on it (py-spy, strace) may hang. The request was\n"
        "given up and cancelled on the node; asking again does no harm."
    )


class RequestCancelledError(RequestError):
    """The request was given up."""

    HELP = "Nothing failed: it was cancelled before its answer was complete."


class RefusedError(RequestError):
    """The probe refused the request or failed at it.

    Attributes:
        kind: one of the kinds of `hangtop_core.model.Failure`.
    """

    def __init__(self, text: str, kind: str = "error", fix: str | None = None) -> None:
        super().__init__(text, fix or "")
        self.kind = kind


class StartError(HangtopError):
    """A process of hangtop itself could not be started."""

    HELP = "Check the limits of this shell: ulimit -u (processes), -n (open files), -v (memory)."


class ClosedError(HangtopError):
    """The session is over."""

    HELP = "A session that was closed cannot be used again; make a new one."
