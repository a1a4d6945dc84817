"""Which module of the program's model this is: its name below the root, wrappers left out."""

from __future__ import annotations

import weakref
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

_INNER = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
"""Classes that wrap a module, and what they call it: torch 2.13, DeepSpeed 0.15."""


class Name(NamedTuple):
    """The name of a module, empty for the root, and the classes of module and root."""

    module: str
    kind: str
    root: str


class Names:
    """Names of modules and parameters, made out when a module without one is called."""

    def __init__(self) -> None:
        self._modules: Dict[int, Tuple[Any, Name]] = {}
        self._parameters: Dict[int, Tuple[Any, Name, str]] = {}

    def of(self, module: Any, root: Any) -> Optional[Name]:
        """Return the name of a module that was called, below ``root``, the outermost one.

        None for the graph of a compiler, which stands for modules that have names.
        """
        found = self._look(module)
        if found is None:
            self._walk(root, "", class_of(unwrapped(root)), set())
            found = self._look(module)
        if found is None and type(module).__name__.startswith("GraphModule"):
            return None
        if found is None:  # made in passing, and belongs to nothing
            found = Name("", class_of(module), class_of(unwrapped(root)))
        return found

    def of_parameter(self, parameter: Any) -> Tuple[Optional[Name], str]:
        """Return the owner of a parameter and what it calls it; no owner where nobody knows."""
        found = self._parameters.get(id(parameter))
        if found is None or found[0]() is not parameter:
            return None, "parameter"
        return found[1], found[2]

    def _look(self, module: Any) -> Optional[Name]:
        found = self._modules.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def _walk(self, module: Any, name: str, root: str, seen: Set[int]) -> None:
        """Name everything below; a module that stands in two places goes by the first."""
        if id(module) in seen:
            return
        seen.add(id(module))
        mine = Name(name, class_of(module), root)
        self._modules[id(module)] = weakref.ref(module), mine
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                self._parameters[id(parameter)] = weakref.ref(parameter), mine, key
        inner = _INNER.get(type(module).__name__)
        for key, child in list(module._modules.items()):
            if child is not None:
                below = name if key == inner else "%s.%s" % (name, key) if name else key
                self._walk(child, below, root, seen)


def unwrapped(module: Any) -> Any:
    """Return what is inside of wrappers."""
    while type(module).__name__ in _INNER:
        inner = module._modules.get(_INNER[type(module).__name__])
        if inner is None:
            break
        module = inner
    return module


def class_of(module: Any) -> str:
    """Name a module's class; `fully_shard` makes a FSDPLinear of FSDPModule and Linear."""
    kind = type(module)
    if any(base.__name__ == "FSDPModule" for base in kind.__bases__):
        kind = kind.__bases__[-1]
    return kind.__name__
