"""`hangtop nettest`: options that cannot be used, and what is said about them."""

from __future__ import annotations

import pytest

from hangtop.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "0"], "'0' is not a port (1 to 65535)"),
        (["--port", "ssh"], "'ssh' is not a port"),
        (["--limit", "0"], "0 is not a number of seconds above 0"),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nettest", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_too_many_nodes_are_refused_before_any_is_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nettest", "-w", "n[1-513]", "--via", "ssh"]) == 2
    assert "512 nodes at most" in capsys.readouterr().err


def test_pdsh_cannot_do_it(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["nettest", "-w", "n1,n2", "--via", "pdsh"])
    assert status == 2
    assert "pdsh" in capsys.readouterr().err


def test_this_machine_alone_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["nettest", "--no-job", "--port", "29533"])
    captured = capsys.readouterr()
    assert status == 0, captured.out
    assert captured.out.startswith("PASSED: 1 node")
    assert "port 29533   1 of 1 way between nodes work" in captured.out
    assert captured.err == ""


def test_an_interface_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nettest", "--no-job", "--interface", "nosuch0"]) == 2
    said = capsys.readouterr().err
    assert "--interface nosuch0: no node has an address there" in said
    assert "These have addresses: " in said
