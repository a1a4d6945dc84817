"""Absolute minimum and maximum of tensors: enqueued while the program runs, read all at once.

`abs().aminmax()` keeps nan and inf, is ten times faster on a CPU than norms or `isfinite().all()`
(torch 2.4.1 and 2.13), and autocast does not change it. It needs the memory of one tensor for a
moment. Only `read` waits for a device.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Optional, Tuple

MAX_TENSORS = 16
"""Limit of tensors per structure: lists of thousands are caches, not activations."""
MAX_DEPTH = 4
_RECENT = 16


class Measure:
    """One tensor in one role, with its measured values.

    ``low`` and ``high`` are the smallest and largest absolute value; ``top``, for inputs only, the
    largest value. Each is a tensor without dimensions until `read`, then a float.
    """

    __slots__ = ("high", "low", "name", "role", "shape", "top")

    def __init__(
        self, role: str, name: str, shape: Tuple[int, ...], values: Tuple[Any, ...]
    ) -> None:
        self.role = role
        self.name = name
        self.shape = shape
        self.low, self.high, self.top = values

    def bad(self) -> Optional[str]:
        """Return `nan` or `inf`; for an input -inf alone does not count, as masks contain it."""
        if math.isnan(self.high):
            return "nan"
        if math.isinf(self.high):
            return None if self.top is not None and self.top < math.inf else "inf"
        return None


class Measurer:
    """Measures tensors; a tensor that is passed from module to module is measured once."""

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self._recent: "OrderedDict[int, Tuple[Any, int, Tuple[Any, ...]]]" = OrderedDict()

    def measure(self, role: str, name: str, tensor: Any) -> Optional[Measure]:
        """Enqueue the measuring of a tensor; return None if it holds no ordinary floats."""
        plain = self.plain(tensor)
        if plain is None:
            return None
        signed = role == "input"
        values = self._cached(plain, signed) if role != "weight" else None
        if values is None:
            values = self._enqueue(plain, signed)
            if role != "weight":
                self._remember(plain, values)
        return Measure(role, name, tuple(tensor.shape), values)

    def plain(self, tensor: Any) -> Any:
        """Return the tensor, the part of it this rank holds, or None."""
        if type(tensor).__name__ == "DTensor":
            tensor = tensor._local_tensor
        torch = self.torch
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None
        if tensor.device.type == "meta" or tensor.layout != torch.strided or not tensor.numel():
            return None
        if tensor.is_complex():
            return torch.view_as_real(tensor.detach())
        # One-byte formats do not support the operation.
        return tensor if tensor.is_floating_point() and tensor.element_size() > 1 else None

    def _enqueue(self, plain: Any, signed: bool) -> Tuple[Any, ...]:
        plain = plain.detach()
        low, high = plain.abs().aminmax()
        return low, high, plain.amax() if signed else None

    def _cached(self, plain: Any, signed: bool) -> Optional[Tuple[Any, ...]]:
        entry = self._recent.get(id(plain))
        if entry is None or entry[0]() is not plain or entry[1] != _version(plain):
            return None
        values = entry[2]
        if signed and values[2] is None:
            # The output of a module was already counted, with or without its sign.
            return values
        return values if signed else (values[0], values[1], None)

    def _remember(self, plain: Any, values: Tuple[Any, ...]) -> None:
        version = _version(plain)
        if version is None:
            return
        self._recent[id(plain)] = (weakref.ref(plain), version, values)
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Hide operations in the body from autograd, and from modes that the program is in."""
        core = self.torch._C
        with self.torch.no_grad(), core.DisableTorchFunction(), core._DisableTorchDispatch():
            yield


def _version(tensor: Any) -> Optional[int]:
    """Return the version that changes with in-place writes; tensors of inference mode have none."""
    version: Optional[int] = None if tensor.is_inference() else tensor._version
    return version


def tensors(value: Any, name: str, depth: int = MAX_DEPTH) -> Iterator[Tuple[str, Any]]:
    """Yield the tensors in arguments or results, by the path to each."""
    if hasattr(value, "numel") and hasattr(value, "dtype"):
        yield name, value
    elif depth and isinstance(value, (tuple, list)):
        for place, item in enumerate(value[:MAX_TENSORS]):
            yield from tensors(item, "%s[%d]" % (name, place), depth - 1)
    elif depth and isinstance(value, dict):
        for key in list(value)[:MAX_TENSORS]:
            yield from tensors(value[key], "%s[%.40s]" % (name, key), depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        for key in list(value.__dataclass_fields__)[:MAX_TENSORS]:
            yield from tensors(getattr(value, key, None), "%s.%s" % (name, key), depth - 1)


def read(torch: Any, measures: List[Measure]) -> None:
    """Turn what was enqueued into floats: one wait for each device and type."""
    groups: Dict[Any, List[Tuple[Measure, str, Any]]] = {}
    for measure in measures:
        for field in ("low", "high", "top"):
            value = getattr(measure, field)
            if value is not None and not isinstance(value, float):
                groups.setdefault((value.device, value.dtype), []).append((measure, field, value))
    for group in groups.values():
        values = torch.stack([value for _, _, value in group]).tolist()
        for (measure, field, _), number in zip(group, values):
            setattr(measure, field, float(number))
