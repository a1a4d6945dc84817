"""Commands of the user's own that reach a node: what is run, and what their ends mean."""

from __future__ import annotations

import shlex

import pytest

from hangtop_core.attach.ways.command import CommandLauncher, Template
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.errors import UsageError
from hangtop_probe.wire.boot import BOOT


def argv(template: str, login: Login | None = None, node: str = "n1") -> list[str]:
    return CommandLauncher(node, login or Login(), Template(template)).argv()


def test_the_boot_is_appended_word_by_word() -> None:
    assert argv("env -i X=%h '%h %%h' --") == [
        *("env", "-i", "X=n1", "n1 %h", "--"),
        *("python3", "-I", "-S", "-u", "-c", BOOT),
    ]


def test_no_shell_reads_the_template() -> None:
    assert argv("env '$(id)' ';' %h")[:4] == ["env", "$(id)", ";", "n1"]


def test_for_a_shell_the_boot_is_one_word() -> None:
    words = argv("env %h %c", Login(python="/opt/bin/python3", init="cd /"))
    assert words[:2] == ["env", "n1"]
    (inner,) = words[2:]
    assert shlex.split(inner) == [
        *("cd", "/", "&&", "exec", "/opt/bin/python3", "-I", "-S", "-u", "-c", BOOT)
    ]


def test_init_gets_a_shell_and_sudo_does_not() -> None:
    assert argv("env %h", Login(sudo=True))[2:5] == ["sudo", "-n", "python3"]
    shell = argv("env %h", Login(init="module load python", sudo=True))[2:]
    assert shell[:2] == ["sh", "-c"]
    assert shell[2].startswith("module load python && exec sudo -n python3 -I")
    assert len(shell) == 3


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("", "nothing in it"),
        ("env '%h", "No closing quotation"),
        ("env %n", "%n stands for nothing"),
        ("env %", "% stands for nothing"),
        ("env %c %h", "%c is no word of its own at the end"),
        ("env %h 'cd / && %c'", "%c is no word of its own at the end"),
        ("%c", "is not found here"),
        ("no-such-program-here %h", "is not found here"),
    ],
)
def test_a_template_that_cannot_be_used_says_why(template: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Template(template)
    assert caught.value.help


DOCKER = 'OCI runtime exec failed: exec failed: unable to start container process: exec: "python3"'
ENDINGS = [
    (1, "Error response from daemon: No such container: n1", "unreachable", "No such container"),
    (1, 'Error from server (NotFound): pods "n1" not found', "unreachable", "NotFound"),
    (127, f"{DOCKER}: executable file not found in $PATH: unknown", "no-python", "no python3 in"),
    (126, f"{DOCKER}: stat python3: no such file or directory", "no-python", "no python3 in it"),
    (1, f"{DOCKER}: executable file not found in $PATH\ncommand terminated with exit code 126",
     "no-python", "no python3 in it"),
    (127, "nsenter: failed to execute python3: No such file or directory", "no-python",
     "there is no python3"),
    (1, "nsenter: cannot open /proc/4/ns/mnt: No such file", "unreachable", "status 1"),
    (1, "dial tcp 10.0.0.1:443: connect: connection refused", "unreachable", "dial tcp"),
    (2, "bash: -c: line 1: syntax error near unexpected token `('", "incompatible", "to a shell"),
    (1, "sudo: a password is required", "denied", "sudo asks"),
    (1, "error: exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- ... instead\n"
     "See 'kubectl exec --help' for usage.", "incompatible", "kubectl wants -- between"),
    (7, "what went wrong\ncommand terminated with exit code 7", "unreachable", "what went wrong"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "stderr", "state", "reason"), ENDINGS)
def test_endings(code: int, stderr: str, state: str, reason: str) -> None:
    launcher = CommandLauncher("n1", Login(), Template("env NODE=%h"))
    ending = launcher.explain(code, stderr, False)
    assert (ending.state, ending.retry) == (state, state == "unreachable"), ending
    assert reason in ending.reason
    assert ending.fix
    if state == "unreachable":
        assert ending.fix_text == "see what happens: env NODE=n1 python3 -V"


@pytest.mark.parametrize("option", ["-it", "-ti", "-t", "--tty"])
def test_a_terminal_that_was_asked_for_is_what_has_to_go(option: str) -> None:
    """docker refuses it with its reason, podman ends with status 130 and without a word."""
    launcher = CommandLauncher("n1", Login(), Template(f"env exec {option} %h"))
    said = launcher.explain(1, "the input device is not a TTY", False)
    assert "not a TTY" in said.reason
    for ending in (said, launcher.explain(130, "", False)):
        assert ending.fix_text == "leave out -t, which asks for a terminal: exec -i"
    sudo = launcher.explain(1, "sudo: a password is required", False)
    assert (sudo.state, "terminal" in (sudo.fix_text or "")) == ("denied", False)
    plain = CommandLauncher("n1", Login(), Template("env exec -i %h"))
    assert "terminal" not in (plain.explain(130, "", False).fix_text or "")


def test_what_a_person_is_told_to_type_goes_the_same_way() -> None:
    launcher = CommandLauncher("n1", Login(sudo=True), Template("env %h"))
    assert launcher.by_hand.stored()["shell"] == "env n1 sh -c"
    assert launcher.by_hand.stored()["options"] == "-w n1 --sudo --command 'env %h'"
    launcher = CommandLauncher("n1", Login(), Template("env %h %c"))
    assert launcher.by_hand.stored()["shell"] == "env n1"
    assert launcher.explain(9, "", False).fix_text == "see what happens: env n1 'python3 -V'"
    login = Login(sudo=True, init=". env")
    fix = CommandLauncher("n1", login, Template("env %h")).explain(9, "", False).fix_text
    assert fix == "see what happens: env n1 sh -c '. env && sudo -n python3 -V'"
