"""The first inf and nan of ranks: the contents of their files, and which came first.

The format is that of hangtop_hook.numericsfile, described in docs/numerics.md. This module is pure:
`hangtop_core.tools.numerics_files` reads the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hangtop_core.text.clean import Text, clean
from hangtop_core.text.rank_sets import rank_name

if TYPE_CHECKING:
    from collections.abc import Iterable


Number = float | Text | None
"""A value; `nan`, `inf` or `-inf` as a word, since JSON has none; None where it was not read."""


class Measure(Struct, frozen=True, array_like=True):
    """Smallest and largest absolute value of one tensor."""

    role: Text
    """input, output, weight, gradient."""
    name: Text
    shape: Annotated[tuple[int, ...], Meta(max_length=64)] = ()
    low: Number = None
    high: Number = None

    @property
    def label(self) -> str:
        """Return `input 0`: the name, after its role where the name does not begin with it."""
        name = clean(self.name, 60)
        return name if name.startswith(self.role) else f"{clean(self.role, 20)} {name}"

    @property
    def size(self) -> str:
        """Return the shape as `8x512`."""
        return "x".join(str(length) for length in self.shape) or "scalar"


class Frame(Struct, frozen=True, kw_only=True):
    """One call of a module (`forward`), its gradient (`backward`), or gradients at a `step`.

    `weights` are checked ahead of a pass: those that FSDP shards, or compiled ones.
    """

    batch: int
    way: Text = "forward"
    module: Text = ""
    """Name below the outermost module; empty for the outermost one."""
    module_class: Text = ""
    root: Text = ""
    file: Text = ""
    """Where the program calls it."""
    line: int = 0
    function: Text = ""
    measures: Annotated[tuple[Measure, ...], Meta(max_length=4096)] = ()

    @property
    def where(self) -> str:
        """Return the name of the module with its class."""
        name = clean(self.module, 120) or clean(self.root, 60) or "a module"
        kind = clean(self.module_class, 60)
        return f"{name} ({kind})" if kind and kind != name else name

    @property
    def site(self) -> str:
        """Return file and line of the call; empty where unknown."""
        return f"{clean(self.file, 300)}:{self.line}" if self.file else ""

    @property
    def place(self) -> str:
        """Return file and line of the call without folders."""
        return self.site.rpartition("/")[2]


class First(Frame, frozen=True, kw_only=True):
    """The first value of a kind that was not finite."""

    kind: Text = "activation"
    """activation, weight, gradient, scaled gradient."""
    what: Text = "nan"
    role: Text = ""
    tensor: Text = ""
    at: float = 0.0
    """Seconds since the epoch, on the rank's node, when the value was read at the end of the
    pass."""
    expected: bool = False
    """Whether the program expects it: gradients that GradScaler scales overflow by design."""
    frames: Annotated[tuple[Frame, ...], Meta(max_length=10_000)] = ()

    @property
    def sentence(self) -> str:
        """Return in words what the value is and where."""
        if self.role == "weight" or self.way == "step":
            owner = clean(self.module, 120) or clean(self.root, 60)
            what = f"{owner}.{clean(self.tensor, 60)}" if owner else clean(self.tensor, 60)
        else:
            what = f"{clean(self.tensor, 60)} of {self.where}"
        by = ", as GradScaler expects now and then" if self.expected else ""
        return f"{clean(self.what, 8)} in {what} at batch {self.batch}{by}"


class Header(Struct, frozen=True):
    """The first line of a file."""

    schema: Text = ""
    rank: int | None = None
    node: Text = ""
    pid: int = 0
    attempt: Text = "0"
    torch: Text = ""
    frames: int = 0


class Seen(Struct, frozen=True):
    """The last batch that a rank reached."""

    batch: int = 0
    at: float = 0.0


class Note(Struct, frozen=True):
    """Why a rank checks values no more."""

    text: Text = ""


class Numerics(Struct, frozen=True, gc=False):
    """What one rank has detected so far."""

    rank: int | None
    node: Text
    pid: int
    path: Text
    attempt: Text = "0"
    firsts: tuple[First, ...] = ()
    seen: Seen | None = None
    notes: tuple[Text, ...] = ()
    traced: tuple[Frame, ...] = ()
    """Frames of traced batches, where they were read."""
    failure: Text | None = None
    """Why the values are unknown or incomplete."""

    @property
    def first(self) -> First | None:
        """Return the first value that the program does not expect."""
        return min(
            (first for first in self.firsts if not first.expected),
            key=lambda first: (first.batch, first.at),
            default=None,
        )

    @property
    def who(self) -> str:
        """Return the name of the rank, or the pid of a process that is no rank."""
        return rank_name(self.rank) if self.rank is not None else f"pid {self.pid}"


def earliest(ranks: Iterable[Numerics]) -> tuple[Numerics, First] | None:
    """Return the first value of a job in the order of `in_order`."""
    return next(iter(in_order(ranks)), None)


def in_order(ranks: Iterable[Numerics]) -> list[tuple[Numerics, First]]:
    """Return the ranks with a value: the earliest batch first, then the earliest by the clock.

    Weights come before forward, and forward before backward, whatever the clocks of nodes say.
    """
    order = {"weights": 0, "forward": 1, "backward": 2, "step": 3}
    pairs = [(rank, rank.first) for rank in ranks]
    detected = [(rank, first) for rank, first in pairs if first is not None]
    return sorted(detected, key=lambda pair: (pair[1].batch, order.get(pair[1].way, 4), pair[1].at))
