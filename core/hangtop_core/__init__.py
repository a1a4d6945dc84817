"""The core of hangtop, for programs and notebooks; docs/api.md says how to use it.

    import hangtop_core as ht

    with ht.attach() as session:
        diagnosis = ht.diagnose(session.snapshot())
    print(diagnosis.state, *(verdict.summary for verdict in diagnosis.verdicts), sep="\n")

The public interface is `__all__`, and the values it returns and raises, in `model`, `diagnosis` and
`errors`. Everything else may change with any version. Modules are loaded when first used: an import
of one module of the core does not load all of them.
"""

from typing import TYPE_CHECKING

from hangtop_core.version import __version__

if TYPE_CHECKING:
    from hangtop_core.api import (
        Capture,
        Diagnosis,
        HangtopError,
        Session,
        Snapshot,
        attach,
        diagnose,
        open_capture,
        read_dumps,
        to_json,
        to_text,
    )
else:
    # The first import of the package `attach` binds its name here, in place of the function; so
    # this happens now. Modules in the package are imported by `from hangtop_core.attach.connect
    # import link`.
    from hangtop_core import attach

    del attach

__all__ = [
    "Capture",
    "Diagnosis",
    "HangtopError",
    "Session",
    "Snapshot",
    "__version__",
    "attach",
    "diagnose",
    "open_capture",
    "read_dumps",
    "to_json",
    "to_text",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hangtop_core import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
