"""Find secrets that programs take without a sensitive name: `mysql -p…`, `curl -u me:…`."""

from __future__ import annotations

import re
from typing import Dict, Iterator, Sequence, Tuple

_WORDS = r"\b(?:\s{1,4}[^\s|;&]{1,200}){0,9}?\s{1,4}"
"""Words of the same command between its name and the option."""
_VALUE = r"[^\s'\"-][^\s'\"]*"
_QUOTE = r"\\{0,3}['\"]?"
_LOGINS = r"(?:docker|podman|nerdctl|helm|oras|skopeo|buildah|az)\s{1,4}(?:registry\s|acr\s)?login"
_STDIN = (
    r"sudo\s[^|\n]{0,40}?-\w{0,4}S\b|[^|\n]{0,200}?--password-stdin|kinit\b"
    r"|(?:sudo\s{1,4})?chpasswd"
)

COMMANDS: Tuple[Tuple[Tuple[str, ...], "re.Pattern[str]"], ...] = tuple(
    (tuple(hints.split()), re.compile(r"((?:%s)%s)%s" % (before, _QUOTE, value)))
    for hints, before, value in (
        (
            "sshpass mongo mysql mariadb cqlsh influx twine 7z login",
            r"\b(?:sshpass|mongo\w{0,9}|mysql\w{0,9}|mariadb[\w-]{0,9}|cqlsh|influx|twine|7z[ar]?|%s)%s-p\s{0,4}"
            % (_LOGINS, _WORDS),
            _VALUE,
        ),
        (
            "zip sqlcmd bcp tsql ipmitool mosquitto_",
            r"\b(?:(?:un)?zip|sqlcmd|bcp|tsql|ipmitool|mosquitto_\w{3})%s-P\s{0,4}" % _WORDS,
            _VALUE,
        ),
        ("ldap", r"\bldap\w{3,9}%s-w\s{0,4}" % _WORDS, _VALUE),
        ("redis-cli", r"\bredis-cli%s-a\s{1,4}" % _WORDS, _VALUE),
        ("ssh-keygen", r"\bssh-keygen%s-[NP]\s{1,4}" % _WORDS, _VALUE),
        ("lftp", r"\blftp%s-u\s{0,4}[\w.@+-]{1,64}," % _WORDS, _VALUE),
        (
            "htpasswd",
            r"\bhtpasswd\s{1,4}-\w{0,6}b\w{0,6}\s{1,4}\S{1,200}\s{1,4}\S{1,64}\s{1,4}",
            _VALUE,
        ),
        (
            "rabbitmqctl",
            r"\brabbitmqctl\s{1,4}(?:add_user|change_password)\s{1,4}\S{1,64}\s{1,4}",
            _VALUE,
        ),
        ("curl", r"\bcurl%s(?:-E|--cert|-U)[\s=]{0,4}[^\s:'\"]{1,200}:" % _WORDS, _VALUE),
        (
            "curl",
            r"\bcurl%s(?:-b|--cookie)[\s=]{0,4}\\{0,3}['\"]?(?=[\w.-]{1,64}=)" % _WORDS,
            r"[^\s'\"|]+",
        ),
        (
            "-u --user --proxy-user",
            r"(?:^|\s)(?:-u\s{0,4}|--(?:proxy-)?user[=\s]\s{0,3})[\w.@+-]{1,64}:(?!\d{1,9}(?:\s|$))",
            _VALUE,
        ),
        ("-U --user", r"(?:^|\s)(?:-U\s{0,4}|--user[=\s]\s{0,3})[\w.\\+-]{1,64}%", _VALUE),
        ("--from-literal", r"--from-literal[=\s]\s{0,3}\\{0,3}['\"]?[\w.-]{1,64}=", r"[^\s'\"]+"),
        (
            "sqlplus sqlldr expdp impdp oracle connect conn",
            r"\b(?:(?:sqlplus|sqlldr|expdp|impdp)(?:\s{1,4}-\w{1,9}){0,3}|conn(?:ect)?)\s{1,4}\\{0,3}['\"]?"
            r"[\w$#]{1,64}/(?=[^\s@/'\"]{1,100}@)|\boracle:(?:thin|oci8?):[\w$#]{1,64}/",
            r"[^\s@'\"]+",
        ),
        ("--password-stdin", r"--password-stdin\s{1,4}<<<\s{0,4}", r"[^\s'\"]+"),
        (
            "sudo stdin kinit chpasswd",
            r"\b(?:echo|printf)\s{1,4}(?:-\w{1,3}\s{1,4}){0,2}(?:\\{0,3}['\"]?[\w.-]{1,64}:)?",
            r"[^\s'\"|]{1,200}(?=\\{0,3}['\"]?\s{0,4}\|\s{0,4}(?:%s))" % _STDIN,
        ),
        (
            "pass bindpw key token secret KEY TOKEN SECRET PASS Pass Key Token Secret API",
            r"(?i:(?<![A-Za-z0-9])(?:[\w-]{0,24}?passw(?:or)?d|passphrase|passcode|bindpw"
            r"|(?:api|secret|access)[ _-]key"
            r"|(?:access|api|auth|client|signing|bot|session|refresh|service|user|hub|deploy|slack|github"
            r"|gitlab|hf|wandb)[ _-](?:token|secret)))"
            r"(?:['\"]?\]?\s{1,24}(?:is\s{1,4})?['\"]?|\s{0,4}[:=]\s{0,4}"
            r"|\s{1,2}\[[^\]\n]{0,40}\]\s{0,2}:\s{1,4}|\sfor\s(?:\S{1,60}\s)?\S{1,100}:\s{1,4})",
            r"(?![{<(\[])(?=[^\s\d]{0,100}\d)(?=[^\sA-Za-z]{0,100}[A-Za-z])[^\s'\",;]{6,}",
        ),
        (
            "pass pwd key PASS PWD KEY Pass Key",
            r"(?i:(?:pass(?:word|wd|phrase)|pwd|(?:api|access|secret)[ _-]?key)['\"]?\]?\s{1,24})"
            r"(?=['\"])",
            r"(?:(?<=')[^'\n]{1,400}(?=')|(?<=\")[^\"\n]{1,400}(?=\"))",
        ),
        (
            "secret token pass pwd key SECRET TOKEN PASS PWD KEY Secret Token Pass Key",
            r"(?i:(?<![A-Za-z0-9])[\w-]{0,32}?"
            r"(?:secret|token|pass(?:word|wd)?|pwd|(?:api|access|secret)[ _-]?key)"
            r"['\"]?\]?\s{1,24}['\"]?)",
            r"(?=[A-Za-z_+/=-]{0,99}\d)(?=[0-9_+/=-]{0,99}[A-Za-z])[A-Za-z0-9_+=-]{20,400}(?![\w./:])",
        ),
        (
            "wandb api hf comet neptune login key auth",
            r"(?:(?:^|\s)--?[\w.-]{0,40}?(?:api|key|auth|wandb|hf)|\b(?:wandb|api|hf|comet|neptune|login))"
            r"['\"]?[\s,]{1,4}",
            r"(?:[0-9a-f]{32,128}|[0-9A-F]{32,128})(?![\w.:/+@-])",
        ),
    )
)
"""Hints of which each match has one, the text before the secret, and the secret: all bounded."""
_APART = re.compile(r"[\s'\"|;&]")


def hidden(arguments: Sequence[str]) -> Dict[int, int]:
    """Return the indices of arguments with such a secret, and the offset at which it begins."""
    line = " ".join(_APART.sub("_", argument) for argument in arguments)
    found: Dict[int, int] = {}
    for form in forms(line):
        for match in form.finditer(line):
            _note(found, arguments, match.end(1))
    return found


def forms(text: str) -> "Iterator[re.Pattern[str]]":
    """Return the forms whose hints are in the text: searching for a form is slow."""
    return (form for hints, form in COMMANDS if any(map(text.__contains__, hints)))


def _note(found: Dict[int, int], arguments: Sequence[str], start: int) -> None:
    """Note the argument in which a secret begins, by its place in the line."""
    for number, argument in enumerate(arguments):
        if start < len(argument):
            found[number] = min(start, found.get(number, start))
            return
        start -= len(argument) + 1
