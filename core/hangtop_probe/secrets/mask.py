"""Mask secrets in all texts that leave the node.

Command lines, environments and logs hold access tokens (`--token hf_…`, WANDB_API_KEY,
https://user:password@host). They are replaced here, before anything is sent, so the head never
sees them.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Callable, Iterable, List, Optional, Tuple

from . import secretcommands, secretplaces, secrettokens
from .secretforms import HEX, HEX_KEY, PREFIXED, RANDOM, TOKENS, is_digest, is_login, is_random
from .secretnames import PLAIN_REPR, PLAIN_VALUE, SENSITIVE, is_secret, is_secret_name

if TYPE_CHECKING:
    Note = Callable[[str], object]


MASK = "***"
KERNEL_NAME = 15
MAX_ARGUMENT = 512
MAX_ARGUMENTS = 128
MIN_SECRET = 3
"""Least characters of a secret after a word such as `pass`."""

_HINT_WORDS = (
    "pass pw pswd pwd secret token key auth cred cookie bear sig dsn basic psk sess jwt contrase"
    " senha otp"
)
_HINTS = _HINT_WORDS.split()
"""Texts in lower case of which each match of `SENSITIVE` or a header has one."""
_LONG = re.compile(r"[A-Za-z0-9/+]{40}")
_LONG_WORD = re.compile(r"[A-Za-z0-9]{20}")
"""Words of which each token without hints below has one."""
_WORD_NAMES = frozenset(
    ("pass", "token", "auth", "signature", "cookie", "credential", "credentials")
)
"""Names that are also words in sentences and code: `forward pass: 12ms`, `token = next(it)`."""
_OF_CODE = frozenset(("pass", "token", "auth", "signature"))
"""Names whose plural is common in code and its output: `tokens=["Hello"]`."""
_SCHEMES = ("bearer", "basic", "token", "bot")
"""Words before the secret in a header that a shell has split."""
_NUMBER = re.compile(r"\d[\d.]*(?:/\d+|[mun]?s|[kKMGT]i?B?|min|h|x|%|st|nd|rd|th)?[.)\]]*$")
_ORDINARY = re.compile(r"[A-Za-z][a-z]{0,15}[.!?:)]{0,2}$")
_CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]")
_DRAWN = re.compile(r"(?=\D{0,99}\d)[A-Za-z0-9_+/=-]{16,}$")
"""A random word rather than the name of a variable."""
_PEM = r"-{4,5} ?%s [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_PRIVATE_KEY = re.compile(
    r"%s[\s\S]*?(?:%s|\Z)|Private-Lines: \d{1,4}\s[\s\S]*?(?:Private-MAC: \S+|\Z)"
    % (_PEM % "BEGIN", _PEM % "END")
)
_KEY_END = re.compile(_PEM % "END")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16,76}$")
MAX_KEY_LINES = 200
# Every repetition before the value is bounded: text of a stranger must not cost quadratic time.
_URL_LOGIN = re.compile(
    r"(?<=://)(?:[^/\s]{1,400}|[^/\s:@]{0,64}:(?!\d{1,5}/)[^\s@'\"]{1,200})(?=@)"
    r"|(?<=%3A%2F%2F)[^%\s]{1,64}%3A[^\s&]{1,200}?(?=%40)"
)
_LOGIN = re.compile(r"((?:^|[\s,;'\"=])[\w.+-]{1,64}:)[^\s/@:]{1,200}(?=@[\w\[])")
_COLOUR = r"\x1b\[[0-9;]{0,20}m"
_BEFORE = r"\s:,;{'\"(/\[$>=+`|&<"
"""Characters that may precede a name."""
_ESCAPED = (("\\n", "\x1c"), ("\\r", "\x1d"), ("\\t", "\x1e"))
"""White space as `repr` and JSON write it, and its substitute while a text is masked."""
_LINE_END = r"[\n\x1c]"
_NEXT_LINE = (
    r"(?:(?:[|>][+-]?|\\)[^\S\n]{0,2}%s[ \t]{0,64}"
    r"|%s[ \t]{0,64}(?!['\"]?[\w.-]{1,64}['\"]?:(?:\s|$)|-\s|[\w.]{1,99}[(\[]"
    r"|(?:return|continue|break|pass|raise|try|else)\b)"
    r"(?=['\"\\]|\S{1,400}[^\S\n]{0,4}(?:%s|$)))?" % (_LINE_END, _LINE_END, _LINE_END)
)
"""The way to a value alone on the next line that is no code and no part of a mapping or list."""
_NAMED_PART = r"[\w.-]{1,64}['\"]?\s{0,2}[:=]"
_INLINE = re.compile(
    r"((?:^|[{before}]|{colour})-{{0,2}}[\w.-]{{0,64}}{name}[\w.-]{{0,64}}\\{{0,3}}['\"]?(?:\(\)|\])?(?:{colour})?\s{{0,24}}"
    r"(?:[=:-]>|:=|==?|::?|\u2192)[^\S\n\x1c]{{0,24}}(?:{colour})?{next_line}"
    r"(?![{{\[(]{{1,4}}(?:\s|$|['\"]?{part})|[\w.-]{{0,64}}{name}['\"]?:\s)"
    r"\\{{0,3}}(?:[bf](?=['\"]))?(?=\S))"
    r"(['\"]?)(?:(?<=')[^'\n]{{1,400}}(?=')|(?<=\")[^\"\n]{{1,400}}(?=\")"
    r"|[^\s'\",;]+(?:(?<=[=:(])['\"][^\s'\",;]+|(?:(?<=\w)['\"](?=\w)|,(?=[\w!#$%&*+./@^~-]))(?!{part})[^\s'\",;]+)*)".format(
        before=_BEFORE, colour=_COLOUR, name=SENSITIVE, next_line=_NEXT_LINE, part=_NAMED_PART
    ),
    re.IGNORECASE,
)
_ASSIGNS = re.compile(
    r"\s{0,8}(?:[=:-]>|:=|==?|::?|\u2192)\s{0,8}(?:[|>][+-]?|\\)?\s{0,24}\\{0,3}[bf]?$"
)
_OPTION = re.compile(
    r"((?:^|[\s'\"])(?:setenv\s{1,4}|set\s{1,4}-\w{1,3}\s{1,4}|(?=-))(-{0,2}[\w.-]{0,64}%s[\w.-]{0,64})"
    r"\s{1,4}(?:\\\n\s{0,16})?)([^\s'\"-][^\s'\"]*)" % SENSITIVE,
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"((?:['\"]-|\(b?['\"])(-?[\w.-]{0,64}%s[\w.-]{0,64})['\"]\s{0,2},\s{0,2}b?['\"])[^'\"\n]+"
    % SENSITIVE,
    re.IGNORECASE,
)
"""An option and its value, or a pair, in a list printed by Python."""
_SEVERAL = re.compile(
    r"(%ss?['\"]?\s{0,2}[:=]\s{0,2}[bf]?)"
    r"([\[{][^\]})]{1,2000}|\([^)\]}\n]{1,400}|(?:%s[ \t]{0,32}-[ \t]{1,4}[^\n\x1c]{1,400}){1,64})"
    % (SENSITIVE, _LINE_END),
    re.IGNORECASE,
)
_NAME_END = re.compile(r"[\w.-]{1,128}(?=['\"]?\s{0,2}[:=]\s{0,2}[bf]?$)")
_ITEM = re.compile(
    r"(['\"])([^'\"\n]{1,400})(\1(?:\s{0,2}:)?)"
    r"|(?=\S{0,60}\d)(?=\S{0,60}[A-Za-z])(?<![\w.])[^\s,'\"\[\](){}=:]{6,400}(?![(\[=:])"
)
"""An item of a list that may be secret, and is no key of a mapping."""
_CALL = re.compile(r"(\b[\w.]{0,64}login)(\([^()\n]{1,400})")
_GIVEN = re.compile(r"([(,]\s{0,4}(?:key\s?=\s?)?b?\\{0,3}['\"])[^'\"\\\n]{1,400}")
_HEADER = re.compile(r"\b(bearer|basic)[ \t]+([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)


def _ignore(kind: str) -> None:
    """Do not count."""


def mask_text(value: str, note: Note = _ignore) -> str:
    """Mask secrets in any text: known token forms, URL logins, `token=…`.

    ``note`` is called with the kind of each secret that is masked.
    """

    if "\\" not in value or any(char in value for _, char in _ESCAPED):
        return _mask(value, note)
    for written, char in _ESCAPED:
        value = value.replace(written, char)
    value = _mask(value, note)
    for written, char in _ESCAPED:
        value = value.replace(char, written)
    return value


def _mask(value: str, note: Note) -> str:
    """Mask a text in which no white space is escaped."""
    if "PRIVATE KEY" in value or "Private-Lines: " in value:
        value = _mask_private_keys(value, note)
    if "@" in value or "%40" in value:
        value = _URL_LOGIN.sub(partial(_mask_login, note=note), value)
        value = _LOGIN.sub(partial(_mask_tail, kind="login", note=note), value)
    lower = value.lower()
    for kind, form in secretplaces.places(lower):
        value = form.sub(partial(_mask_tail, kind=kind, note=note), value)
    if any(map(lower.__contains__, _HINTS)):
        for form, mask in _NAMED:
            value = form.sub(partial(mask, note=note), value)
    if "login(" in value:
        given = partial(_mask_tail, kind="argument", note=note)
        value = _CALL.sub(lambda call: call[1] + _GIVEN.sub(given, call[2]), value)
    option = partial(_mask_tail, kind="option", note=note)
    for form in secretcommands.forms(value):
        value = form.sub(option, value)
    value = _mask_tokens(value, note)
    if _LONG_WORD.search(value):
        value = PREFIXED.sub(partial(_mask_prefixed, note=note), value)
    return RANDOM.sub(partial(_mask_random, note=note), value)


def _mask_tail(match: "re.Match[str]", kind: str, note: Note) -> str:
    """Mask the text after the first group."""
    if match.group(0)[len(match.group(1)) :].strip() != MASK:
        note(kind)
    return match.group(1) + MASK


def _mask_login(match: "re.Match[str]", note: Note) -> str:
    if match.group(0) != MASK:
        note("login in a URL")
    return MASK


def _mask_tokens(value: str, note: Note) -> str:
    """Mask tokens that are recognised by their form alone."""
    if secrettokens.LONG.search(value):
        for hints, form in secrettokens.FORMS:
            if any(map(value.__contains__, hints)):
                value = form.sub(partial(_mask_token, kind="API key", note=note), value)
    long = _LONG.search(value) is not None
    for kind, hints, form in TOKENS:
        if any(map(value.__contains__, hints)) if hints else long:
            value = form.sub(partial(_mask_token, kind=kind, note=note), value)
    return value


def _mask_token(match: "re.Match[str]", kind: str, note: Note) -> str:
    if kind == HEX_KEY and is_digest(match.string, match.start()):
        return match.group(0)
    note(kind)
    return MASK


def mask_name(name: str) -> str:
    """Mask the name of a process or a thread, which the kernel cuts to 15 characters."""
    masked = mask_text(name)
    if masked == name and len(name) == KERNEL_NAME:
        return secrettokens.BEGUN.sub(MASK, name)
    return masked


def mask_value(name: str, value: str) -> str:
    """Mask the repr of a variable's value: all of it if the name is sensitive."""
    if name != "key" and is_secret_name(name):
        return value if PLAIN_REPR.fullmatch(value) else MASK
    masked = mask_text("%s=%s" % (name, value))
    return masked[len(name) + 1 :] if masked.startswith(name + "=") else MASK


@lru_cache(maxsize=4096)
def mask_path(path: str) -> str:
    """Mask a path or another link's target, which rarely has a secret."""
    return mask_text(path)


def _mask_private_keys(text: str, note: Note) -> str:
    """Mask private keys in PEM, line by line, and the end of a key that began before the text."""

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


def _mask_prefixed(match: "re.Match[str]", note: Note) -> str:
    if not is_random("", match.group(1)):
        return match.group(0)
    note("API key")
    return MASK


def _mask_header(match: "re.Match[str]", note: Note) -> str:
    scheme, value = match.groups()
    if _ORDINARY.match(value) or (scheme.lower() == "basic" and not is_login(value)):
        return match.group(0)
    note("header of a request")
    return scheme + " " + MASK


def _mask_inline(match: "re.Match[str]", note: Note) -> str:
    told = _ASSIGNS.sub("", re.sub(_COLOUR, " ", match.group(1)))
    name = re.split("[%s]" % _BEFORE, told.rstrip("()]'\"\\ "))[-1]
    value = match.group(0)[len(match.group(1)) + len(match.group(2)) :]
    if not is_secret(name, value) or value == MASK:
        return match.group(0)
    if not any(map(str.isalnum, value)) and len(value) < MIN_SECRET:
        return match.group(0)
    if not match.group(2) and (_is_code(told, value) or _is_of_a_sentence(match, name, value)):
        return match.group(0)
    note("named value")
    return match.group(1) + match.group(2) + MASK


def _mask_several(match: "re.Match[str]", note: Note) -> str:
    """Mask the items of a list under a name such as `api_keys`, or of a mapping: `cookies`."""
    start = max(match.start() - 64, 0)
    told = _NAME_END.search(match.string[start : match.end(1)])
    name = told.group(0).strip("-") if told else ""
    single = name[:-1] if name.endswith("s") else name
    if re.split("[-_.]", single.lower())[-1] in _OF_CODE or not is_secret_name(single):
        return match.group(0)

    def item(found: "re.Match[str]") -> str:
        quote, inside, end = found.group(1) or "", found.group(2), found.group(3) or ""
        inside = inside or found.group(0)
        if end.endswith(":") or inside == MASK or PLAIN_VALUE.match(inside):
            return found.group(0)
        note("named value")
        return quote + MASK + end

    return match.group(1) + _ITEM.sub(item, match.group(2))


def _is_code(told: str, value: str) -> bool:
    """Whether the match is code, such as `kept[token] = node` or `def get_secret() -> Secret:`."""
    if told.endswith("()"):
        return value.endswith(":") or _CODE.match(value) is not None
    return told.endswith("]") and not _DRAWN.match(value)


def _is_of_a_sentence(match: "re.Match[str]", name: str, value: str) -> bool:
    """Whether a name and its value are words of a sentence, or code, rather than a secret."""
    if name in ("pwd", "PWD", "OLDPWD"):
        return value.startswith(("/", "~"))
    if name.strip("-").lower() not in _WORD_NAMES:
        return False
    value = value.partition(",")[0]
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


_NAMED = (
    (_HEADER, _mask_header),
    (_SEVERAL, _mask_several),
    (_INLINE, _mask_inline),
    (_OPTION, _mask_option),
    (_LISTED, _mask_listed),
)
"""Patterns of named secrets, each with its replacement, in the order of use."""


def mask_arguments(arguments: Iterable[str], note: Note = _ignore) -> Tuple[str, ...]:
    """Mask a command line: `--token X`, `-u me:X`, `KEY=X`, URLs, known forms; for some `-p X`.

    The result is cut to 128 arguments of 512 characters each; a last argument counts the others.
    """
    masked: List[str] = []
    given = list(arguments)
    expecting = False
    hidden = secretcommands.hidden([one[:MAX_ARGUMENT] for one in given[:MAX_ARGUMENTS]])
    for number, argument in enumerate(given[:MAX_ARGUMENTS]):
        if expecting and argument.strip("'\"").lower() in _SCHEMES:
            masked.append(argument)
        elif number in hidden or (expecting and not argument.startswith("-")):
            masked.append(_mask_given(argument, hidden.get(number), note))
            expecting = False
        else:
            masked.append(_mask_argument(argument, given[number - 1] + " " if number else "", note))
            expecting = _announces(argument)
    if len(given) > MAX_ARGUMENTS:
        masked.append("… %d more" % (len(given) - MAX_ARGUMENTS))
    return tuple(masked)


def _mask_given(argument: str, start: Optional[int], note: Note) -> str:
    """Mask an option's value from ``start`` on, or, with None, all of it unless it is plain."""
    if argument[start:] == MASK or (start is None and PLAIN_VALUE.match(argument)):
        return argument
    note("option")
    return mask_text(argument[: start or 0]) + MASK


def _announces(argument: str) -> bool:
    """Whether the next argument is a secret: after `--token` or `Authorization:`."""
    if argument.endswith(":") and is_secret_name(argument.strip("{[('\":")):
        return True
    is_option = argument.startswith("-") and "=" not in argument and " " not in argument
    return is_option and is_secret_name(argument)


def _mask_argument(argument: str, before: str, note: Note) -> str:
    name, equals, value = argument.partition("=")
    if equals and " " not in name and is_secret(name, value):
        if value != MASK:
            note("option")
        return name + "=" + MASK
    is_plain = is_digest(before, len(before)) and HEX.fullmatch(argument)
    return cut(argument if is_plain else mask_text(argument, note), MAX_ARGUMENT)


def cut(value: str, room: int) -> str:
    """Return at most ``room`` characters, the last of which is an ellipsis if the text is cut."""
    return value if len(value) <= room else value[: room - 1] + "…"
