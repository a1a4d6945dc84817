"""The first inf and nan of ranks: what their files and the probe say, and which came first.

The format is that of hangtop_hook.numericsfile, told in docs/numerics.md. Pure:
files are read by `hangtop_core.tools.numerics_files`.
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
        """`input 0`: its name, after what it is where the name does not say that."""
        name = clean(self.name, 60)
        return name if name.startswith(self.role) else f"{clean(self.role, 20)} {name}"

    @property
    def size(self) -> str:
        """`8x512`, as lengths of its dimensions."""
        return "x".join(str(length) for length in self.shape) or "scalar"


class Frame(Struct, frozen=True, kw_only=True):
    """One call of a module (`forward`), its gradient (`backward`), or gradients at a `step`.

    `weights` are those that are looked at ahead of a pass: spread by FSDP, or compiled.
    """

    batch: int
    way: Text = "forward"
    module: Text = ""
    """Name below the outermost module; empty for that one."""
    module_class: Text = ""
    root: Text = ""
    file: Text = ""
    """Where the program calls it."""
    line: int = 0
    function: Text = ""
    measures: Annotated[tuple[Measure, ...], Meta(max_length=4096)] = ()

    @property
    def where(self) -> str:
        """Name of the module, with its class."""
        name = clean(self.module, 120) or clean(self.root, 60) or "a module"
        kind = clean(self.module_class, 60)
        return f"{name} ({kind})" if kind and kind != name else name

    @property
    def site(self) -> str:
        """File and line of the call; empty where it is not known."""
        return f"{clean(self.file, 300)}:{self.line}" if self.file else ""

    @property
    def place(self) -> str:
        """The same without folders."""
        return self.site.rpartition("/")[2]


class First(Frame, frozen=True, kw_only=True):
    """The first value of a kind that was not finite."""

    kind: Text = "activation"
    """activation, weight, gradient, scaled gradient."""
    what: Text = "nan"
    role: Text = ""
    tensor: Text = ""
    at: float = 0.0
    """Seconds since the epoch, on the rank's node; when it was read, at the end of the pass."""
    expected: bool = False
    """Whether the program is made for it: gradients that GradScaler scales overflow by design."""
    frames: Annotated[tuple[Frame, ...], Meta(max_length=10_000)] = ()

    @property
    def sentence(self) -> str:
        """What it is and where, in words."""
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
    """How far a rank has come."""

    batch: int = 0
    at: float = 0.0


class Note(Struct, frozen=True):
    """Why a rank looks no more."""

    text: Text = ""


class Numerics(Struct, frozen=True, gc=False):
    """What one rank has found so far."""

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
    """Why it is not known, or not all of it."""

    @property
    def first(self) -> First | None:
        """The first that the program is not made for."""
        return min(
            (one for one in self.firsts if not one.expected),
            key=lambda one: (one.batch, one.at),
            default=None,
        )

    @property
    def who(self) -> str:
        """The rank, or the process that is none."""
        return rank_name(self.rank) if self.rank is not None else f"pid {self.pid}"


def earliest(ranks: Iterable[Numerics]) -> tuple[Numerics, First] | None:
    """Return the first of a job, as `in_order` has it."""
    return next(iter(in_order(ranks)), None)


def in_order(ranks: Iterable[Numerics]) -> list[tuple[Numerics, First]]:
    """Return who has seen any: the earliest batch first, and there the earliest by the clock.

    Weights come before forward, and that before backward, whatever clocks of nodes say.
    """
    order = {"weights": 0, "forward": 1, "backward": 2, "step": 3}
    found = [(one, one.first) for one in ranks]
    told = [(one, first) for one, first in found if first is not None]
    return sorted(told, key=lambda pair: (pair[1].batch, order.get(pair[1].way, 4), pair[1].at))
