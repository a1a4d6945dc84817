"""Who else has a file open, in words: of nodes nothing gets to the terminal as it is."""

from __future__ import annotations

from hangtop_core.analysis.openers import holder_text, openers_text
from hangtop_core.descriptors import Holder, Opener, Openers
from support.build import World

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
