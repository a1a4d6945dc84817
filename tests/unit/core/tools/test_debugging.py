"""How a prompt is got in a rank, and what is said where it is not."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hangtop_core.model.snapshot import Fact, Node
from hangtop_core.tools.debugging import Debugging, debugging, outcome
from hangtop_hook.terminal import BLOCKED
from hangtop_probe.ranks.commands import runs_hangtop
from support.build import World
from support.situations import FUTEX, SLEEP, STDIN_READ, c10d, frame, user

RUN = {"HANGTOP_RUN_DIR": "/runs/7"}
NEW = {"env": {}, "exe": "/opt/bin/python3.14"}
PROMPT = (frame("cmdloop", "/usr/lib/python3.11/cmd.py", 126), *user("train", 3))


def plan(
    stack: Any = None,
    facts: Any = SLEEP,
    *,
    shell: str | None = None,
    capabilities: dict[str, Fact] | None = None,
    terminal: bool = True,
    **given: Any,
) -> Debugging:
    """How a prompt is got in a rank that sleeps in `train`, by the hook of its run."""
    world = World()
    node = Node("n1", "ready", uid=1000, shell=shell, capabilities=capabilities or {})
    process = {"uid": 1000, "exe": "/opt/bin/python3.11", "env": RUN, **given.pop("process", {})}
    rank = world.add(stack or user("train", 3), facts, process=process, **given)
    return debugging(world.snapshot(), rank, node, terminal=terminal)


def test_on_this_machine_by_our_own_hook() -> None:
    found = plan()
    assert found.why is None
    assert found.argv[:3] == (sys.executable, "-S", "-s")
    assert found.argv[3].endswith("/hangtop_hook/terminal.py")
    assert not found.argv[3].startswith("/runs")
    assert found.warning is None


def test_on_another_node_by_the_hook_of_the_run() -> None:
    found = plan(shell="ssh -p 22 n1")
    assert found.argv[:-1] == ("ssh", "-p", "22", "n1")
    assert found.argv[-1].startswith("exec /opt/bin/python3.11 -S -s /runs/7/hook/hangtop_hook/")


def test_srun_shows_a_prompt_that_is_no_line() -> None:
    shell = "srun --overlap --jobid=7 -w n1 sh -c"
    assert plan(shell=shell).argv[:3] == ("srun", "--pty", "--overlap")
    assert plan(shell=shell, terminal=False).argv[:2] == ("srun", "--unbuffered")


def test_python_3_14_by_its_own_remote_debugging() -> None:
    found = plan(process=NEW)
    assert found.argv[:4] == ("/opt/bin/python3.14", "-S", "-s", "-c")
    assert found.shown == f"/opt/bin/python3.14 -S -s -c '...' {found.argv[-2]} 3"
    assert runs_hangtop(found.argv)
    assert found.warning is None
    shell = "srun --jobid=7 -w n1 sh -c"
    far = plan(process={"env": {}, "exe": "/opt/bin/python3.14t"}, shell=shell)
    start = "srun --pty --jobid=7 -w n1 sh -c 'exec /opt/bin/python3.14t -S -s -c "
    assert far.shown.startswith(start)
    assert len(far.shown) < 100 < len(far.argv[-1]) < 60_000


@pytest.mark.parametrize(
    ("why", "given", "capabilities"),
    [
        ("forbids", {"process": {**NEW, "env": {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}}}, {}),
        ("forbids", {"process": {**NEW, "cmdline": ("python", "-Xdisable-remote-debug")}}, {}),
        ("sysctl", {"process": NEW}, {"ptrace": Fact(False, why="Yama", fix="sysctl x")}),
        ("(3.11.2) is older", {"process": {"env": {}, "versions": {"python": "3.11.2"}}}, {}),
    ],
)
def test_why_python_s_own_way_is_none(
    why: str, given: dict[str, Any], capabilities: dict[str, Fact]
) -> None:
    found = plan(capabilities=capabilities, **given)
    assert why in (found.why or ""), found
    assert not found.argv
    assert any("--native" in step for step in found.steps)


OURS = (
    frame("interaction", "/usr/lib/python3.11/pdb.py", 433),
    frame("interaction", "/opt/hangtop_hook/pdbsocket.py", 99),
    *user("train", 3),
)


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("hangtop run", {"process": {"env": {}}}),
        ("belongs to", {"process": {"uid": 0}}),
        ("exited", {"state": "exited"}),
        ("stopped", {"state": "stopped"}),
        ("breakpoint", {"stack": PROMPT}),
        ("breakpoint", {"facts": STDIN_READ}),
        ("hangtop holds a prompt", {"stack": OURS}),
    ],
)
def test_why_there_is_none(why: str, given: dict[str, Any]) -> None:
    found = plan(**given)
    assert found.why is not None
    assert why in found.why
    assert not found.argv


def test_a_rank_in_c_is_warned_of_and_told() -> None:
    new = plan(c10d("all_reduce"), FUTEX, process=NEW)
    found = plan(c10d("all_reduce"), FUTEX)
    assert "C code" in (found.warning or "")
    assert found.warning == new.warning
    told = outcome(BLOCKED, found)
    assert "all_reduce" in told[0]
    assert any("--native" in one for one in told[1:])
    assert outcome(0, found) == ()
    assert "status 9" in outcome(9, found)[0]
    assert "container" in outcome(127, found)[0]
