"""Who else has a file open, in words: of nodes nothing gets to the terminal as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis import openers
from hangtop_core.analysis.openers import holder_text, names_by_node, openers_text
from hangtop_core.model.descriptors import Holder, Opener, Openers
from support.build import World

if TYPE_CHECKING:
    import pytest

    from hangtop_core.model.snapshot import Snapshot

ESCAPE = "\x1b[2J\x1b]0;owned\x07\n"


def test_what_a_node_says_of_an_opener_is_cleaned() -> None:
    world = World()
    rank = world.add(None, None)
    opener = Opener(9, 4, f"tee{ESCAPE}", f"S{ESCAPE}", "r", f"has it open{ESCAPE}" + "x" * 400)
    lines = openers_text(world.snapshot(), rank, 3, Openers(f"/x{ESCAPE}", (opener,)))
    holder = Holder(9, f"tee{ESCAPE}", f"S{ESCAPE}", f"reads{ESCAPE}")
    for line in (*lines, holder_text({}, holder)):
        assert line.isprintable(), line
        assert len(line) < 200


def test_names_of_processes_are_worked_out_once_for_all_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    rank, other = (world.add(None, None) for _ in range(2))
    snapshot = world.snapshot()
    worked_out: list[Snapshot] = []

    def noted(of: Snapshot) -> dict[str, dict[int, str]]:
        worked_out.append(of)
        return names_by_node(of)

    monkeypatch.setattr(openers, "names_by_node", noted)
    held = tuple(Opener(other.process.pid, fd, "python3") for fd in range(50))
    lines = openers_text(snapshot, rank, 3, Openers("/x", held))
    assert all(line.startswith("  rank 1 (pid ") for line in lines[1:])
    assert worked_out == [snapshot]
