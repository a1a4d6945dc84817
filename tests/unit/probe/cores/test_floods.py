"""Programs that are tried for a line or two, and write megabytes."""

from __future__ import annotations

import threading
import tracemalloc
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from hangtop_probe import check
from hangtop_probe.cores import cores
from hangtop_probe.gpu import gpus
from hangtop_probe.nettest import nettest_ranks
from hangtop_probe.node import node
from hangtop_probe.wire.tools import Done

if TYPE_CHECKING:
    from collections.abc import Callable

FLOOD = b"\xff" * (4 << 20)
MOST = 2 << 20
CANCEL = threading.Event()


class Flooding:
    """Stands in for `Tools`."""

    def run(self, *_: Any) -> Done:
        return Done(1, FLOOD, FLOOD)


TRIED: dict[str, Callable[[Any], object]] = {
    "version": lambda tools: check.version(tools, "gdb", [], CANCEL),
    "torch": lambda tools: nettest_ranks.with_torch(["python3"], tools, mock.Mock()),
    "gpus": lambda tools: gpus.Gpus(tools).once(CANCEL),
    "core": lambda tools: cores._why(tools.run(), 60.0),
    "py-spy": lambda _: node._asked_version("/bin/py-spy"),
}


@pytest.mark.parametrize("name", TRIED)
def test_only_as_much_is_read_as_is_shown(name: str) -> None:
    """Bytes that are no text take four times their room, and a tenth of a microsecond each."""
    tools = Flooding()
    with (
        mock.patch("hangtop_probe.wire.tools.Tools", return_value=tools),
        mock.patch("shutil.which", return_value="/bin/x"),
    ):
        tracemalloc.start()
        try:
            TRIED[name](tools)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < MOST
