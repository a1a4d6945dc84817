"""Every error is one of hangtop's own, and says what helps."""

from __future__ import annotations

import inspect

from hangtop_core import errors


def test_every_error_is_in_the_tree_and_has_help() -> None:
    classes = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ]
    for kind in classes:
        assert issubclass(kind, errors.HangtopError)
        assert kind.__name__ in (errors.__doc__ or "")
    leaves = [k for k in classes if not k.__subclasses__() and k is not errors.RefusedError]
    assert all(kind("x").help for kind in leaves)


def test_help_of_one_error_overrides_that_of_its_class() -> None:
    error = errors.RefusedError("strace: the process is stopped", "stopped", "kill -CONT 7")
    assert (str(error), error.kind, error.help) == (
        "strace: the process is stopped",
        "stopped",
        "kill -CONT 7",
    )
