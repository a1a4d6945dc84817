"""The variables that enable torch's flight recorder, and where it writes, by torch version.

Read in the C++ libraries of torch 2.4.1, 2.8.0, 2.13.0 and 2.15.0. The first name of a group that
is set wins in torch; an old name in a newer torch works, with a line of warning per process.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

Version = Tuple[int, int]
ENTRIES = 2000
"""Entries the recorder keeps per rank: torch's own default since 2.11."""


class Variable(NamedTuple):
    """One name of one setting, and the versions of torch [since, before) that use it."""

    group: str
    name: str
    since: Version = (0, 0)
    before: Version = (999, 0)


TABLE = (
    Variable("entries", "TORCH_FR_BUFFER_SIZE", since=(2, 8)),
    # 2.8 to 2.10 make the dump pipe only if the recorder is enabled by the old name.
    Variable("entries", "TORCH_NCCL_TRACE_BUFFER_SIZE", before=(2, 11)),
    Variable("on-timeout", "TORCH_FR_DUMP_ON_TIMEOUT", since=(2, 15)),
    Variable("on-timeout", "TORCH_NCCL_DUMP_ON_TIMEOUT", before=(2, 15)),
    Variable("files", "TORCH_FR_DUMP_TEMP_FILE", since=(2, 8)),
    Variable("files", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", before=(2, 8)),
    Variable("pipe", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
)


def version_of(text: str) -> Optional[Version]:
    """Return (2, 13) for "2.13.0+cpu", None if the text is not a version."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def prefix(directory: str) -> str:
    """Return the prefix of the rank's number in the names of dumps and pipes."""
    return directory + "/flight/rank_"


def variables(
    version: Optional[Version], environ: Mapping[str, str], directory: Optional[str] = None
) -> Dict[str, str]:
    """Return what to add to ``environ`` for this torch; for all versions where it is None.

    A setting that the user made, by whatever name, is kept: it is only repeated under the right
    name. Names of files need ``directory``, which must exist on the node.
    """
    values = {"entries": str(ENTRIES), "on-timeout": "1"}
    if directory is not None:
        values.update(files=prefix(directory), pipe=prefix(directory))
    added = {}
    for group, default in values.items():
        names = _names(group)
        value = next(
            (environ[variable.name] for variable in names if variable.name in environ), default
        )
        for variable in names:
            if variable.name not in environ and (
                version is None or variable.since <= version < variable.before
            ):
                added[variable.name] = value
    return added


def _names(group: str) -> List[Variable]:
    return [variable for variable in TABLE if variable.group == group]
