"""Secrets that are known by the place they stand in: headers, URLs, netrc, pgpass, SQL."""

from __future__ import annotations

import re
from typing import Iterator, Tuple

from .secretnames import SENSITIVE

_QUERY = re.compile(
    r"((?:[?&;]|%%3F|%%26)[^=&?;\s]{0,64}?(?:%s|sig|key(?==))[^=&?;\s]{0,64}?(?:=|%%3D))(?:(?!%%26)[^&\s])+"
    % SENSITIVE,
    re.IGNORECASE,
)
_ELEMENT = re.compile(
    r"(<[\w:.-]{0,64}%s[\w.-]{0,64}>)[^<\s]{1,400}(?=<)" % SENSITIVE, re.IGNORECASE
)
_IDENTIFIED = re.compile(
    r"(\bidentified\s{1,4}(?:with\s{1,4}\S{1,64}\s{1,4})?by\s{1,4}(?:password\s{1,4})?['\"])[^'\"\n]+",
    re.I,
)
_DIGEST_PART = r"\w{2,12}=(?:\\{0,3}\"[^\"\n]{0,400}\"|[^\s,'\"]{1,400})"
_DIGEST = re.compile(
    r"(\bDigest\s{1,4})(?=(?:username|realm|nonce|uri|qop|algorithm|response|opaque|cnonce|nc|domain)=)"
    r"%s(?:\s{0,4},\s{0,4}%s){0,16}" % (_DIGEST_PART, _DIGEST_PART)
)
_COOKIE_OF = re.compile(r"(<Cookie\s[\w.-]{1,64}=)[^\s>]+")
_PGPASS = re.compile(
    r"((?:^|(?<=[\s'\"]))[\w.*-]{1,255}:(?:543\d|6432|\*):[\w*-]{1,64}:[\w.@*-]{1,64}:)[^\s:'\"]{3,}"
)
_AUTHORIZATION = re.compile(
    r"(authorization\\{0,3}['\"]?\s{0,2}(?:[=-]>|[:=,])\\?\s{0,2}\[?b?\\{0,3}['\"]?"
    r"(?:bearer|basic|token|api-?key|bot|negotiate|ntlm|oauth|jwt|key|geniekey|ssws|splunk|flyv1|mac|hawk"
    r"|[a-z][a-z0-9]{2,9}-hmac-sha\d{3}|aws)\\?\s{1,4})"
    r"[^\s'\"\\]*[^\s'\"\\,;)\]}>](?:,\s?\w{1,24}=[^\n'\"]{1,400})?",
    re.IGNORECASE,
)
_BEARER = re.compile(r"((?<!\w)b?['\"]bearer\s{1,2})[^\s'\"]{1,4000}(?=['\"])", re.IGNORECASE)
"""All there is between quotes."""
_PAIR = re.compile(
    r"(auth(?:=\(|\()\s?['\"][^'\"\n]{0,100}['\"]\s?,\s?b?['\"])[^'\"\n]{1,400}(?=['\"])",
    re.IGNORECASE,
)
"""A user and a password, as they are given to a request."""
_CONNECTION = re.compile(
    r"((?:^|[;'\"])\s?(?:[\w-]{1,40}\s){0,2}[\w-]{0,40}?(?:password|pwd|(?:account|access)key|secret)\s?=\s?)"
    r"(?:\{[^}\n]{1,200}\}|[^;'\"\n]{1,400}(?=;))",
    re.IGNORECASE,
)
"""In a connection string, where a value goes on to the next semicolon."""
_SCHEME = re.compile(
    r"(\bauthorization['\"]?\s{0,2}[:=,]\s{0,2}b?['\"]?[a-z][a-z-]{2,20}\s{1,2})"
    r"(?=[^\s'\"]{0,200}\d)[^\s'\"]{6,}(?:,[^\n]{1,400})?",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"(\bcookie['\"]?\s{0,2}:\s{0,2}['\"]?)(?=[^'\"\n=]{1,64}=)[^'\"\n]{1,4000}", re.IGNORECASE
)
_NETRC = re.compile(
    r"(\blogin\s{1,4}(?![=:])\S{1,100}\s{1,8}(?:account\s{1,4}\S{1,100}\s{1,8})?password\s{1,4})\S+"
)
_IN_A_PATH = re.compile(
    r"(://[^\s'\"<>]{1,200}?/(?:hooks?|web-?hook\w{0,2}|keys?|tokens?|secrets?|api-?key)/)"
    r"(?=(?:[\w@.-]{1,100}/){0,4}(?=[A-Za-z-]{0,99}\d[A-Za-z-]{0,99}\d)[A-Za-z0-9-]{16,100}(?![\w.]))"
    r"[^\s'\"<>?#]+",
    re.IGNORECASE,
)
"""A key as part of a URL's path: who has the URL may use it."""
_CHANNEL = re.compile(r"(://(?:[\w.-]{0,64}\.)?conda[\w.-]{0,64}(?::\d{1,5})?/t/)[\w-]{8,}")

_PLACES: Tuple[Tuple[str, Tuple[str, ...], "re.Pattern[str]"], ...] = tuple(
    (kind, tuple(hints.split()), form)
    for kind, hints, form in (
        ("signature or token in a URL", "? & ; %3f %26", _QUERY),
        ("key in a URL", "://", _IN_A_PATH),
        ("key in a URL", "/t/", _CHANNEL),
        ("header of a request", "digest", _DIGEST),
        ("header of a request", "cookie", _COOKIE),
        ("header of a request", "<cookie", _COOKIE_OF),
        ("header of a request", "authorization", _AUTHORIZATION),
        ("header of a request", "authorization", _SCHEME),
        ("header of a request", "bearer", _BEARER),
        ("argument", "auth=( auth(", _PAIR),
        ("password", ";", _CONNECTION),
        ("named value", "</ &lt;", _ELEMENT),
        ("password", "identified", _IDENTIFIED),
        ("password", "login", _NETRC),
        ("password", ":*: :543 :6432:", _PGPASS),
    )
)
"""With each what is in every text that has one, in small letters: looking is slow."""


def places(lower: str) -> Iterator[Tuple[str, "re.Pattern[str]"]]:
    """Return kinds and forms that a text may have; the secret follows the first group."""
    return ((kind, form) for kind, hints, form in _PLACES if any(map(lower.__contains__, hints)))
