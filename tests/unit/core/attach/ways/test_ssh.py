"""What is run for a node, and what is made of the ways it ends."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hangtop_core.attach.ways import ssh
from hangtop_core.attach.ways.reasons import TABLE, Context, explain_login
from hangtop_core.attach.ways.ssh import AT_ONCE_BEHIND_A_JUMP, Login, OwnWords, SshLauncher
from hangtop_core.errors import UsageError

CONTEXT = Context("n1", ("ssh", "n1"), "python3", False, ("ssh", "n1", "python3", "-V"))

ENDINGS = [
    (255, "No ED25519 host key is known for n1 and you have requested strict checking.\n"
     "Host key verification failed.", "denied", False),
    (255, "Host key verification failed.", "denied", False),
    (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
     "denied", False),
    (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n"
     "Offending ED25519 key in /home/me/known hosts:7\r\n"
     "Host key for [10.0.0.7]:2222 has changed and you have requested strict checking.\n"
     "Host key verification failed.", "denied", False),
    (255, "@       WARNING: REVOKED HOST KEY DETECTED!               @\n"
     "Host key verification failed.", "denied", False),
    (255, "me@n1: Permission denied (publickey,password).", "denied", False),
    (255, "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
     "denied", False),
    (255, "ssh: connect to host n1 port 22: Connection refused", "unreachable", True),
    (255, "ssh: connect to host n1 port 22: Connection timed out", "unreachable", True),
    (255, "ssh: connect to host n1 port 22: No route to host", "unreachable", True),
    (255, "Connection timed out during banner exchange", "unreachable", True),
    (255, "ssh: Could not resolve hostname n1: Name or service not known", "unreachable", True),
    (255, "kex_exchange_identification: Connection closed by remote host\n"
     "Connection closed by UNKNOWN port 65535", "unreachable", True),
    (255, "Access denied by pam_slurm_adopt: you have no active jobs on this node",
     "denied", False),
    (255, "Bad owner or permissions on /home/me/.ssh/config", "denied", False),
    (255, "command-line line 0: Bad SSH2 KexAlgorithms '^curve25519-sha256'.", "denied", False),
    (1, "sudo: a password is required", "denied", False),
    (1, "me is not in the sudoers file.", "denied", False),
    (127, "bash: line 1: exec: sudo: not found", "denied", False),
    (1, "This account is currently not available.", "denied", False),
    (127, "bash: line 1: exec: python3: not found", "no-python", False),
    (127, "fish: Unknown command: python3", "no-python", False),
    (126, "zsh:1: permission denied: python3", "no-python", False),
    (1, "Unknown option -I\nusage: python", "no-python", False),
    (3, "something else", "unreachable", True),
    (None, "", "unreachable", True),
]  # fmt: skip
LOST = [
    (255, "Timeout, server n1 not responding."),
    (255, "client_loop: send disconnect: Broken pipe"),
    (255, "Connection to n1 closed by remote host."),
    (137, ""),
]


@pytest.mark.parametrize(("code", "stderr", "state", "retry"), ENDINGS)
def test_endings(code: int | None, stderr: str, state: str, retry: bool) -> None:
    noisy = f"Warning: Permanently added 'n1' (ED25519) to the list of known hosts.\n{stderr}\n"
    ending = explain_login(code, noisy, False, CONTEXT)
    assert (ending.state, ending.retry) == (state, retry), ending
    assert "Permanently" not in ending.reason
    assert ending.fix


@pytest.mark.parametrize("banner", [text for _, text, _, _ in ENDINGS if "refused" not in text])
def test_what_a_node_prints_is_not_taken_for_what_ssh_says(banner: str) -> None:
    # GIVEN a node whose banner says whatever there is, and whose port is closed a moment later
    own = "ssh: connect to host n1 port 22: Connection refused\r\n"
    ending = explain_login(255, banner + "\n", False, CONTEXT, log=own)
    by_node = next((one for one in TABLE if one.by_node and one.pattern.search(banner)), None)
    if by_node is not None:
        assert "ssh-keygen" not in (ending.fix_text or "")
    else:
        assert ending.reason == "nobody answers on its ssh port (connection refused)"


def test_ssh_is_believed_before_the_node_and_the_node_before_a_connection_that_ended() -> None:
    refused = "me@n1: Permission denied (publickey)."
    slurm = "you have no active jobs on this node"
    closed = "Connection closed by 10.0.0.1 port 22"
    assert "login refused" in explain_login(255, slurm, False, CONTEXT, log=refused).reason
    assert "Slurm" in explain_login(255, slurm, False, CONTEXT, log=closed).reason
    assert "Slurm" not in explain_login(255, "", False, CONTEXT, log=closed).reason


def test_what_ssh_says_is_read_from_its_log() -> None:
    launcher = SshLauncher("127.0.0.1", Login())
    command = launcher.argv()
    command[1:1] = ["-oProxyCommand=false"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input="")
    assert done.stderr == ""
    ending = launcher.explain(done.returncode, done.stderr, False)
    # Closed, or broken, by whether ssh was reading or writing when the proxy ended.
    assert ending.reason.startswith("the connection ")
    # WHEN the proxy says why, the node has not been reached and cannot have said it
    launcher.argv()
    launcher._log._fd, log = os.memfd_create("log"), launcher._log._fd
    os.write(launcher._log._fd, b"Connection closed by UNKNOWN port 65535\r\n")
    said = "ssh: Could not resolve hostname gate: Name or service not known\r\n"
    assert "name cannot be resolved" in launcher.explain(255, said, False).reason
    assert log is not None
    os.close(log)


def test_an_ssh_that_was_left_at_once_does_not_write_to_the_log_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = OwnWords()
    (_, left), (_, present) = words.begin(), words.begin()
    Path(present).write_text("Connection refused", "utf-8")
    with open(left, "a", encoding="utf-8") as late:  # it comes to open its log only now
        late.write("Permission denied")
    assert words.take() == "Connection refused"
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(ssh, "LEFT_S", 0.0)
    words.begin()
    words.begin()
    assert len(os.listdir("/proc/self/fd")) == before + 1, "the first was closed"


def test_an_ssh_that_cannot_open_its_log_is_started_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OwnWords, "possible", True)
    launcher = SshLauncher("n1", Login())
    assert "-E" in launcher.argv()
    said = "Couldn't open logfile /proc/1/fd/3: Permission denied\r\n"
    assert launcher.explain(1, said, False).retry
    assert "-E" not in launcher.argv()
    refused = "ssh: connect to host n1 port 22: Connection refused"
    assert "sshd" in (launcher.explain(255, refused, False).fix_text or "")


def test_a_changed_key_is_forgotten_by_the_name_and_in_the_file_it_stands_in() -> None:
    (stderr,) = (text for _, text, _, _ in ENDINGS if "[10.0.0.7]:2222" in text)
    fix = explain_login(255, stderr, False, CONTEXT).fix_text
    assert fix is not None
    command = fix.partition("then: ")[2]
    assert command == (
        "ssh-keygen -f '/home/me/known hosts' -R '[10.0.0.7]:2222' && "
        "ssh n1 -o StrictHostKeyChecking=ask true"
    )
    evil = stderr.replace("[10.0.0.7]:2222", "$(reboot)")
    assert "-R '$(reboot)'" in (explain_login(255, evil, False, CONTEXT).fix_text or "")


def test_every_line_of_the_table_is_of_use() -> None:
    first = [
        next((known for known in TABLE if known.pattern.search(stderr)), None)
        for _, stderr, *_ in (*ENDINGS, *LOST)
    ]
    assert [known.pattern.pattern for known in TABLE if known not in first] == []


@pytest.mark.parametrize(("code", "text"), LOST)
def test_a_node_that_was_there_is_lost_and_connected_to_again(code: int, text: str) -> None:
    ending = explain_login(code, text, True, CONTEXT)
    assert (ending.state, ending.retry) == ("lost", True)
    assert "login" not in ending.reason, "the login was done long before"


def test_nothing_a_node_prints_gets_through_uncleaned() -> None:
    ending = explain_login(9, "\x1b]0;title\x07\x1b[31mred\x1b[0m\n", False, CONTEXT)
    assert ending.reason.endswith("red")
    assert not re.search(r"[\x00-\x1f]", ending.reason)


def test_the_command_never_asks_and_never_accepts() -> None:
    launcher = SshLauncher("n1", Login(user="me", connect_timeout=3))
    argv = launcher.argv()
    assert argv[0] == "ssh"
    assert {"-T", "-a", "-x", "-oBatchMode=yes", "-oConnectTimeout=3"} <= set(argv)
    assert not [word for word in argv if "StrictHostKeyChecking" in word]
    assert argv[argv.index("-l") + 1] == "me"
    assert argv[-3:-1] == ["--", "n1"]


def test_the_remote_command_holds_nothing_a_shell_would_read() -> None:
    command = Login(python="/opt/py/bin/python3").shell_command()
    words = shlex.split(command)
    assert words[:6] == ["exec", "/opt/py/bin/python3", "-I", "-S", "-u", "-c"]
    assert len(words) == 7
    assert not set(command) & set("$!`\\*?{}<>|&\n")


def test_init_and_sudo_come_before_it() -> None:
    command = Login(init="module load python", sudo=True).shell_command()
    assert command.startswith("module load python && exec sudo -n python3 -I")


@pytest.mark.parametrize("python", ["a b", "x;y", "$(id)", "-V", "py'", "", "`id`", "a\nb"])
def test_a_python_that_is_no_path_is_refused(python: str) -> None:
    with pytest.raises(UsageError):
        Login(python=python).check()


@pytest.mark.parametrize("user", ["-oX=1", "a b", "", "a;b", "$(id)"])
def test_a_user_that_is_none_is_refused(user: str) -> None:
    with pytest.raises(UsageError):
        Login(user=user).check()


def test_few_at_once_behind_a_jump_host() -> None:
    assert SshLauncher("n1", Login()).wave.at_once == 32
    behind = SshLauncher("n1", Login(), "gate").wave
    assert behind.at_once == AT_ONCE_BEHIND_A_JUMP
    assert behind.hold_s >= 10
    assert SshLauncher("n1", Login(fanout=2), "gate").wave.at_once == 2


def test_a_shell_is_a_plain_login_of_the_same_user() -> None:
    assert SshLauncher("n1", Login(user="ada", sudo=True)).shell() == ["ssh", "-l", "ada", "n1"]
    assert SshLauncher("n1", Login()).shell() == ["ssh", "n1"]


def test_a_faster_key_exchange_only_when_asked_for() -> None:
    option = "-oKexAlgorithms=^curve25519-sha256"
    assert option not in SshLauncher("n1", Login()).argv()
    argv = SshLauncher("n1", Login(fast_kex=True)).argv()
    assert argv.index(option) < argv.index("--")


def test_what_a_person_is_told_to_try_is_what_failed() -> None:
    login = Login(user="eva", python="python9", sudo=True)
    fix = SshLauncher("n1", login).explain(9, "", False).fix_text
    assert fix == "see what happens: ssh -l eva n1 sudo -n python9 -V"
    fix = SshLauncher("n1", Login(init=". env")).explain(9, "", False).fix_text
    assert fix == "see what happens: ssh n1 '. env && python3 -V'"
