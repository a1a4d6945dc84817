"""Masking of secrets in all texts that leave the node.

Command lines, environments and logs hold access tokens (`--token hf_…`, WANDB_API_KEY,
https://user:password@host). They are replaced here, before anything is sent; the head never
sees them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Callable, Iterable, List, Tuple

from .procfs import words
from .secretforms import RANDOM, TOKENS, is_random

Note = Callable[[str], object]

MASK = "***"
MAX_ARGUMENT = 512
MAX_ARGUMENTS = 128
MAX_NAME = 256
"""Characters of the name of an option or a variable; what is longer is none, and costs time."""
MAX_TOOLS = 8
"""Arguments at the beginning among which the name of a program is looked for."""
MIN_SECRET = 3
"""Characters: what is shorter is not taken for a secret after a word such as `pass`."""

_SENSITIVE = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|pw|secret|token|api[-_]?key|access[-_]?key"
    r"|account[-_]?key|private[-_]?key|auth(?:orization)?|credentials?|cookie|bearer|signature|dsn|psk|bindpw|key[-_]data)"
)
_SENSITIVE_HINTS = tuple(
    words("pass pw secret token key auth credential cookie bear sig dsn basic psk")
)
"""What is in every text that `_SENSITIVE` or a header is in, in small letters."""
_LONG = re.compile(r"[A-Za-z0-9/+]{40}")
"""What is in every text with a token that has no hints below."""
_SECRET_NAME = re.compile(r"(?:^|[-_.])%s(?:$|[-_.])" % _SENSITIVE, re.IGNORECASE)
_GLUED_NAME = re.compile(r"(?:pass(?:word|wd|phrase)|secret|(?:api|auth|access)token)$", re.I)
"""`PGPASSWORD`."""
_KEY_NAME = re.compile(r"(?:^|[-_.])key$|[a-z]key$", re.IGNORECASE)
_HUMP_NAME = re.compile(r"[a-z0-9](?:Pass(?:word|wd|phrase)?|Secret|Token|Credentials?|Signature)$")
"""`SessionToken`, and not `TokenError`."""
_HARMLESS = re.compile(
    r"^-*(?:job[-_]key|.*(?:tokenizer|parallel"
    r"|(?<![a-z])(?:num|max|min|n|per|pad|eos|bos|unk|special|next|first|last|stop|new|prev|mask|image)[-_]?tokens?"
    r"|tokens?[-_](?:per|id|ids|len|length|count|budget|type|drop|dispatcher)"
    r"|attn|attention).*)$",
    re.IGNORECASE,
)
_PLAIN_VALUE = re.compile(
    r"^(?:[0-9][0-9_.eE+-]{0,12}|true|false|yes|no|on|off|none|(?:str|bytes|int)[:)]{0,2})?$", re.I
)
_WORD_NAMES = frozenset(words("pass token auth signature cookie credential credentials"))
"""Names that are also words of sentences and of code: `forward pass: 12ms`, `token = next(it)`."""
_NUMBER = re.compile(r"\d[\d.]*(?:/\d+|[mun]?s|[kKMGT]i?B?|min|h|x|%|st|nd|rd|th)?[.)\]]*$")
_ORDINARY = re.compile(r"[A-Za-z][a-z]{0,15}[.!?:)]{0,2}$")
_CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_KEY_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16,76}$")
MAX_KEY_LINES = 200
# Every repetition before the value is bounded: text of a stranger must not cost quadratic time.
_URL_LOGIN = re.compile(
    r"(?<=://)(?:[^/\s]{1,400}|[^/\s:@]{0,64}:(?!\d{1,5}/)[^\s@'\"]{1,200})(?=@)"
    r"|(?<=%3A%2F%2F)[^%\s]{1,64}%3A[^\s&]{1,200}?(?=%40)"
)
_LOGIN = re.compile(r"((?:^|[\s,;'\"=])[\w.+-]{1,64}:)[^\s/@:]{1,200}(?=@[\w\[])")
_QUERY = re.compile(
    r"((?:[?&;]|%%3F|%%26)[^=&?;\s]{0,64}?(?:%s|sig|key(?==))[^=&?;\s]{0,64}?(?:=|%%3D))(?:(?!%%26)[^&\s])+"
    % _SENSITIVE,
    re.IGNORECASE,
)
_COLOUR = r"\x1b\[[0-9;]{0,20}m"
_BEFORE = r"\s:,;{'\"(/\[$>"
"""What may stand before a name."""
_INLINE = re.compile(
    r"((?:^|[%s]|%s)-{0,2}[\w.-]{0,64}%s[\w.-]{0,64}\\{0,3}['\"]?(?:\(\)|\])?(?:%s)?\s{0,4}"
    r"(?:[=:-]>|:=|==?|::?|\u2192)\s{0,4}(?:%s)?(?:(?:[|>][+-]?|\\)\n[ \t]{0,16})?"
    r"\\{0,3}(?:[bf](?=['\"]))?(?=\S))"
    r"(['\"]?)(?:(?<=')[^'\n]{1,400}(?=')|(?<=\")[^\"\n]{1,400}(?=\")"
    r"|[^\s'\",;]+(?:(?<=[=:(])['\"][^\s'\",;]+)?)"
    % (_BEFORE, _COLOUR, _SENSITIVE, _COLOUR, _COLOUR),
    re.IGNORECASE,
)
_ASSIGNS = re.compile(
    r"\s{0,8}(?:[=:-]>|:=|==?|::?|\u2192)\s{0,8}(?:[|>][+-]?|\\)?\s{0,24}\\{0,3}[bf]?$"
)
_ELEMENT = re.compile(
    r"(<[\w:.-]{0,64}%s[\w.-]{0,64}>)[^<\s]{1,400}(?=<)" % _SENSITIVE, re.IGNORECASE
)
_OPTION = re.compile(
    r"((?:^|[\s'\"])(?:setenv\s{1,4}|set\s{1,4}-\w{1,3}\s{1,4}|(?=-))(-{0,2}[\w.-]{0,64}%s[\w.-]{0,64})"
    r"\s{1,4}(?:\\\n\s{0,16})?)([^\s'\"-][^\s'\"]*)" % _SENSITIVE,
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"((?:['\"]-|\(b?['\"])(-?[\w.-]{0,64}%s[\w.-]{0,64})['\"]\s{0,2},\s{0,2}b?['\"])[^'\"\n]+"
    % _SENSITIVE,
    re.IGNORECASE,
)
"""An option and its value, or a pair, in a list that Python has written."""
_NAMED_BEFORE = re.compile(
    r"(\b(?:password|passphrase|passcode|bindpw|(?:(?:api|secret|access)[ _-]key|"
    r"(?:access|api|auth|client|signing)[ _-](?:token|secret)))\s{1,4}(?:is\s{1,4})?['\"]?)"
    r"(?=[^\s\d]{0,100}\d)(?=[^\sA-Za-z]{0,100}[A-Za-z])[^\s'\",;]{6,}",
    re.IGNORECASE,
)
_SHORT_OPTION = re.compile(
    r"(\b(?:sshpass|(?:docker|podman)\s{1,4}login|mysql\w{0,9}|mariadb\w{0,9})\b(?:\s{1,4}[^\s|;&]{1,200}){0,9}?"
    r"\s{1,4}-p\s{0,4}|\bredis-cli\b[^|;&\n]{0,200}?\s-a\s{1,4}"
    r"|(?:^|\s)(?:-u\s{0,4}|--user[=\s]\s{0,3})[\w.@+-]{1,64}:(?!\d{1,9}(?:\s|$)))[^\s'\"-][^\s'\"]*"
)
_HEADER = re.compile(r"\b(bearer|basic)[ \t]+([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_SCHEME = re.compile(
    r"(\bauthorization['\"]?\s{0,2}[:=,]\s{0,2}b?['\"]?[a-z][a-z-]{2,20}\s{1,2})"
    r"(?=[^\s'\"]{0,200}\d)[^\s'\"]{6,}(?:,[^\n]{1,400})?",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"(\bcookie['\"]?\s{0,2}:\s{0,2}['\"]?)(?=[^'\"\n=]{1,64}=)[^'\"\n]{1,4000}", re.IGNORECASE
)
_NETRC = re.compile(r"(\blogin\s{1,4}\S{1,100}\s{1,8}password\s{1,4})\S+")


def _ignore(kind: str) -> None:
    """Nobody counts."""


def is_secret_name(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret: not `--max-tokens`."""
    bare = name.lstrip("-")
    if len(bare) > MAX_NAME or _HARMLESS.match(bare):
        return False
    return any(form.search(bare) for form in (_SECRET_NAME, _GLUED_NAME, _KEY_NAME, _HUMP_NAME))


def is_secret(name: str, value: str) -> bool:
    """Whether what is given under this name is a secret: not empty, a number, a yes or no."""
    return is_secret_name(name) and not _PLAIN_VALUE.match(value)


def mask_text(value: str, note: Note = _ignore) -> str:
    """Mask what looks like a secret in any text: known token forms, URL logins, `token=…`.

    ``note`` is told the kind of everything that is masked.
    """

    def tail(kind: str) -> Callable[["re.Match[str]"], str]:
        """Mask what follows the first group."""

        def masked(match: "re.Match[str]") -> str:
            if match.group(0)[len(match.group(1)) :].strip() != MASK:
                note(kind)
            return match.group(1) + MASK

        return masked

    def login(match: "re.Match[str]") -> str:
        if match.group(0) != MASK:
            note("login in a URL")
        return MASK

    def token(kind: str) -> Callable[["re.Match[str]"], str]:
        def masked(match: "re.Match[str]") -> str:
            note(kind)
            return MASK

        return masked

    if "PRIVATE KEY" in value:
        value = _mask_private_keys(value, note)
    if "@" in value or "%40" in value:
        value = _URL_LOGIN.sub(login, value)
        value = _LOGIN.sub(tail("login"), value)
    lower = value.lower()
    if any(word in lower for word in _SENSITIVE_HINTS):
        value = _QUERY.sub(tail("signature or token in a URL"), value)
        value = _COOKIE.sub(tail("header of a request"), value)
        value = _SCHEME.sub(tail("header of a request"), value)
        value = _ELEMENT.sub(tail("named value"), value)
        value = _HEADER.sub(lambda match: _mask_header(match, note), value)
        value = _INLINE.sub(lambda match: _mask_inline(match, note), value)
        value = _OPTION.sub(lambda match: _mask_option(match, note), value)
        value = _LISTED.sub(lambda match: _mask_listed(match, note), value)
        value = _NAMED_BEFORE.sub(tail("named value"), value)
    if "login" in value:
        value = _NETRC.sub(tail("password"), value)
    if " -" in value or value.startswith(("-u", "--user=")):
        value = _SHORT_OPTION.sub(tail("option"), value)
    long = _LONG.search(value) is not None
    for kind, hints, form in TOKENS:
        if any(hint in value for hint in hints) if hints else long:
            value = form.sub(token(kind), value)
    return RANDOM.sub(lambda match: _mask_random(match, note), value)


@lru_cache(maxsize=4096)
def mask_path(path: str) -> str:
    """Mask a path or another link's target, which hardly ever holds anything."""
    return mask_text(path)


def _mask_private_keys(text: str, note: Note) -> str:
    """Mask private keys in PEM, line by line, and the rest of one that began before the text."""

    def key(match: "re.Match[str]") -> str:
        note("private key")
        return "\n".join(MASK for _ in match.group(0).split("\n"))

    text = _PRIVATE_KEY.sub(key, text)
    if not _KEY_END.search(text):
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _KEY_END.search(line):
            note("private key")
            first = number
            while first > max(number - MAX_KEY_LINES, 0) and _KEY_LINE.search(lines[first - 1]):
                first -= 1
            lines[first : number + 1] = [MASK] * (number + 1 - first)
    return "\n".join(lines)


def _mask_random(match: "re.Match[str]", note: Note) -> str:
    if not is_random(match.group(2) or "", match.group(3)):
        return match.group(0)
    note("random value")
    return match.group(1) + MASK


def _mask_header(match: "re.Match[str]", note: Note) -> str:
    if _ORDINARY.match(match.group(2)):
        return match.group(0)
    note("header of a request")
    return match.group(1) + " " + MASK


def _mask_inline(match: "re.Match[str]", note: Note) -> str:
    told = _ASSIGNS.sub("", re.sub(_COLOUR, " ", match.group(1)))
    name = re.split("[%s]" % _BEFORE, told.rstrip("()]'\"\\ "))[-1]
    value = match.group(0)[len(match.group(1)) + len(match.group(2)) :]
    if not is_secret(name, value) or value == MASK:
        return match.group(0)
    if not match.group(2) and (_is_code(told, value) or _is_of_a_sentence(match, name, value)):
        return match.group(0)
    note("named value")
    return match.group(1) + match.group(2) + MASK


def _is_code(told: str, value: str) -> bool:
    """Whether it is a line such as `kept[token] = node` or `def get_secret() -> Secret:`."""
    if told.endswith("()"):
        return value.endswith(":") or _CODE.match(value) is not None
    return told.endswith("]")


def _is_of_a_sentence(match: "re.Match[str]", name: str, value: str) -> bool:
    """Whether a name and what follows it are words of a sentence, or code, rather than a secret."""
    if name in ("pwd", "PWD", "OLDPWD"):
        return value.startswith(("/", "~"))
    if name.strip("-").lower() not in _WORD_NAMES:
        return False
    if len(value) < MIN_SECRET or _NUMBER.match(value):
        return True
    if "=" in match.group(1):
        return _CODE.match(value) is not None
    before = match.string[max(match.start() - 1, 0) : match.start() + 1]
    return len(before) > 1 and before[0].isalnum() and _ORDINARY.match(value) is not None


def _mask_listed(match: "re.Match[str]", note: Note) -> str:
    value = match.group(0)[len(match.group(1)) :]
    if not is_secret(match.group(2), value) or value == MASK:
        return match.group(0)
    note("option")
    return match.group(1) + MASK


def _mask_option(match: "re.Match[str]", note: Note) -> str:
    if not is_secret(match.group(2), match.group(3)):
        return match.group(0)
    if match.group(3) != MASK:
        note("option")
    return match.group(1) + MASK


def mask_arguments(arguments: Iterable[str], note: Note = _ignore) -> Tuple[str, ...]:
    """Mask a command line: `--token X`, `-u me:X`, `KEY=X`, URLs, known forms; of some `-p X`.

    Cut to 128 arguments of 512 characters each, which is said by a last argument.
    """
    masked: List[str] = []
    given = list(arguments)
    before, expecting = "", False
    tools = {argument.rpartition("/")[2] for argument in given[:MAX_TOOLS]}
    by_p = "sshpass" in tools or ("login" in tools and not tools.isdisjoint(("docker", "podman")))
    glued = any(tool.startswith(("mysql", "mariadb")) for tool in tools)
    for argument in given[:MAX_ARGUMENTS]:
        name, equals, value = argument.partition("=")
        if glued and argument.startswith("-p") and len(argument) > len("-p"):
            masked.append("-p" + MASK)
            note("option")
            continue
        login = (by_p and before == "-p") or (before in ("-u", "--user") and ":" in argument)
        if (expecting and not argument.startswith("-")) or login:
            plain = not login and (_PLAIN_VALUE.match(argument) or argument == MASK)
            masked.append(argument if plain else MASK)
            if not plain:
                note("option")
            before, expecting = "", False
            continue
        option = argument.startswith("-")
        before = argument
        expecting = option and not equals and " " not in name and is_secret_name(name)
        if equals and " " not in name and is_secret(name, value):
            masked.append(name + "=" + MASK)
            if value != MASK:
                note("option")
        else:
            masked.append(cut(mask_text(argument, note), MAX_ARGUMENT))
    if len(given) > MAX_ARGUMENTS:
        masked.append("… %d more" % (len(given) - MAX_ARGUMENTS))
    return tuple(masked)


def cut(value: str, room: int) -> str:
    """The first ``room`` characters, of which the last says that there were more."""
    return value if len(value) <= room else value[: room - 1] + "…"
