"""How `hangtop doctor` tells what it found: as text, as JSON, by its exit status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.output import output
from hangtop.cli.tools import doctor
from hangtop_core.analysis.ladder.rung import Ladder, Rung, missing, ok, skipped, unreached, warning
from hangtop_core.model.node.check import Cleaned
from support.documents import misfits

if TYPE_CHECKING:
    from collections.abc import Sequence


def ladder(node: str, *rungs: Rung) -> Ladder:
    given = {rung.name: rung for rung in rungs}
    usual = (
        ok("reach", "port 22 takes connections", f"in {len(node)} ms"),
        ok("login", "accepted", "as alice"),
        ok("probe", "runs from its cache"),
        ok("ptrace", "may look into the processes of alice"),
        ok("strace", "6.1", "/usr/bin/strace"),
        skipped("nvml", "no NVIDIA driver there"),
    )
    return Ladder(node, tuple(given.get(rung.name, rung) for rung in usual))


FIX = (
    "start it with --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add) " + "x" * 70
)
NO_PTRACE = missing("ptrace", "root without CAP_SYS_PTRACE", FIX)
REFUSED = (
    missing("reach", "port 22: Connection refused", "check that sshd runs on gpu9"),
    *(unreached(name) for name in ("login", "probe", "ptrace", "strace", "nvml")),
)
NO_STRACE = missing("strace", "strace is not on PATH (only needed for system calls)", "apt-get x")


@pytest.mark.parametrize(
    ("ladders", "status"),
    [
        ([ladder("gpu1")], 0),
        ([ladder("gpu1", NO_STRACE, warning("probe", "slow"))], 0),
        ([ladder("gpu1"), ladder("gpu2", NO_PTRACE)], 3),
        ([ladder("gpu1", NO_PTRACE), ladder("gpu9", *REFUSED)], 4),
    ],
)
def test_the_exit_status_is_that_of_the_worst_node(ladders: list[Ladder], status: int) -> None:
    assert doctor.exit_status(ladders) == status
    said = json.loads(json.dumps(doctor.document(ladders, status)))
    assert (said["ok"], said["exit_status"]) == (status == 0, status)


def test_one_node_is_told_in_full() -> None:
    assert doctor.report([ladder("gpu1", NO_STRACE)], 80) == (
        "gpu1: all that matters is there\n"
        "  ok       reach            port 22 takes connections (in 4 ms)\n"
        "  ok       login            accepted (as alice)\n"
        "  ok       probe            runs from its cache\n"
        "  ok       ptrace           may look into the processes of alice\n"
        "  missing  strace           strace is not on PATH (only needed for system calls)\n"
        "                            fix: apt-get x\n"
        "  n/a      nvml             no NVIDIA driver there\n"
    )


def test_of_other_nodes_only_what_differs() -> None:
    nodes = [ladder(f"gpu{n}") for n in (1, 2, 3, 10)]
    text = doctor.report([*nodes, ladder("gpu4", NO_PTRACE), ladder("gpu9", *REFUSED)], 80)
    lines = text.splitlines()
    assert lines[0] == (
        "6 nodes: 4 can be observed, 1 answer but hide their ranks, 1 cannot be observed"
    )
    assert lines[1:3] == ["at all", ""]
    assert "gpu[1-3,10]: all that matters is there" in lines
    assert lines[4] == "  ok       reach            port 22 takes connections"  # times differ
    fourth = text.partition("gpu4: ranks are hidden (ptrace)\n")[2].partition("\n\n")[0]
    assert fourth.startswith("  missing  ptrace           root without CAP_SYS_PTRACE\n")
    assert fourth.endswith("  the rest as on gpu[1-3,10]")
    assert "strace" not in fourth
    assert text.endswith(
        "gpu9: cannot be observed (reach)\n"
        "  missing  reach            port 22: Connection refused\n"
        "                            fix: check that sshd runs on gpu9\n"
        "  -        not reached      login, probe, ptrace, strace, nvml\n"
    )


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_lines_fit_and_no_command_is_cut(columns: int) -> None:
    text = doctor.report([ladder("gpu1", NO_PTRACE)], columns)
    long = [line for line in text.splitlines() if len(line) > columns]
    assert [line for line in long if len(line.split()) != 1] == []
    assert len(long) <= (1 if columns >= 80 else 2)
    assert "securityContext.capabilities.add" in text


def test_colours_mark_states_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = doctor.report([ladder("gpu1", NO_STRACE)], 80)
    assert doctor.coloured(text) == text
    monkeypatch.setattr(doctor, "has_colour", lambda: True)
    marked = doctor.coloured(text)
    assert f"  \x1b[{output.RED}mmissing\x1b[0m  strace" in marked
    assert f"\x1b[{output.GREEN}mok     \x1b[0m" in marked
    assert "\x1b" not in marked.splitlines()[0]


@pytest.mark.parametrize(
    ("cleaned", "failed", "status", "lines"),
    [
        (
            {"n1": Cleaned("/c", 2, 1 << 20), "n2": Cleaned("/c", 2, 1 << 20)},
            {},
            0,
            ["n[1-2]: removed 1.0 MiB from /c"],
        ),
        ({"n1": Cleaned("/c")}, {}, 0, ["n1: nothing to remove"]),
        (
            {"n1": Cleaned("/c", 0, 0, ("/c/x",), "it does not look like hangtop's")},
            {},
            3,
            ["n1: nothing to remove; left /c/x: it does not look like hangtop's"],
        ),
        ({"n1": Cleaned("/c")}, {"n2": "\x1b[31mrefused"}, 4, ["n2: not reached: refused"]),
    ],
)
def test_what_was_removed(
    cleaned: dict[str, Cleaned],
    failed: dict[str, str],
    status: int,
    lines: Sequence[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert doctor.tell_cleaned(cleaned, failed, False) == status
    out = capsys.readouterr().out
    assert set(lines) <= set(out.splitlines())
    assert doctor.tell_cleaned(cleaned, failed, True) == status
    said = json.loads(capsys.readouterr().out)
    assert misfits(said) == []
    assert (said["schema"], len(said["nodes"])) == (
        "hangtop.doctor.clean/1",
        len(cleaned) + len(failed),
    )


def test_progress_names_who_has_not_answered() -> None:
    assert doctor.progress(3, ["n1", "n2"]) == "1 of 3 nodes done, waiting for n[1-2]"
    assert doctor.progress(3, []) == ""
