"""Names of secrets: of options, variables, keys and headers."""

from __future__ import annotations

import re

MAX_NAME = 256
"""Most characters of a name; longer ones are no names, and matching them is slow."""

SENSITIVE = (
    r"(?:pass(?:word|wort|wd|phrase|code|key)?|contrase[nñ]a|senha|pswd|pwd|pw|secret|token|jwt"
    r"|(?:api|access|account|priv(?:ate)?|client|db|database|signing|encryption|master|licen[cs]e"
    r"|subscription|deploy|service|ssh|hmac|webhook|shared|ingest(?:ion)?|integration|routing|write|admin)[-_]?key|(?<=-)key(?![\w-])"
    r"|auth(?:orization)?|cred(?:ential)?s?|cookie|bearer|signature|dsn|psk|bindpw"
    r"|key[-_]data|j?sessionid|phpsessid|csrftoken|otp|access[-_]?code|g(?:h|it|ithub|itlab)[-_]pat)"
)
"""Parts of sensitive names."""
_SECRET_NAME = re.compile(r"(?:^|[-_.])%s(?:$|[-_.])" % SENSITIVE, re.IGNORECASE)
_GLUED_NAME = re.compile(
    r"(?:pass(?:word|wd|phrase)|p(?:s|ass)?wd|secret|(?:api|access|secret)key"
    r"|(?:api|db|user|root|admin|pg|sql|ssh|smtp|ldap|key|store)p(?:ass|w)"
    r"|(?:api|auth|access|identity|refresh|session|bot|bearer|user)token)$",
    re.IGNORECASE,
)
"""`PGPASSWORD`."""
_KEY_NAME = re.compile(r"(?:^|[-_.])key$|[a-z]key$", re.IGNORECASE)
_HUMP_NAME = re.compile(
    r"[a-z0-9](?:Pass(?:word|wd|phrase)?|Secret|Token|TOKEN|Credentials?|Signature)$"
)
"""`SessionToken`, and not `TokenError`."""
_HARMLESS = re.compile(
    r"^-*(?:job[-_]key|(?:.*[-_.])?(?:cache|sort|group|primary|foreign|partition|public|idempotency)[-_]?key"
    r"|.*(?:tokenizer|parallel|-stdin$"
    r"|(?<![a-z])(?:num|max|min|n|per|pad|eos|bos|unk|special|next|first|last|stop|new|prev|mask|image)[-_]?tokens?"
    r"|tokens?[-_](?:per|id|ids|len|length|count|budget|type|drop|dispatcher)"
    r"|attn|attention).*)$",
    re.IGNORECASE,
)
_PLAIN = r"(?:[0-9][0-9_.eE+-]{0,12}|true|false|yes|no|on|off|none|(?:str|bytes|int)[:)]{0,2})"
PLAIN_VALUE = re.compile(r"^(?:%s(?:,%s)*)?$" % (_PLAIN, _PLAIN), re.IGNORECASE)
"""Values that are no secret under any name: numbers, types."""

PLAIN_REPR = re.compile(
    r"(?:-?[0-9][0-9_.eE+-]*|True|False|None|b?['\"]{2}|\[\]|\{\}|\(\)"
    r"|<[\w.]{1,99} (?:object )?at 0x[0-9a-f]+>)?"
)
"""Reprs that are no secret as the value of any variable."""


def is_secret_name(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret: not `--max-tokens`."""
    bare = name.lstrip("-")
    if len(bare) > MAX_NAME or _HARMLESS.match(bare):
        return False
    return any(form.search(bare) for form in (_SECRET_NAME, _GLUED_NAME, _KEY_NAME, _HUMP_NAME))


def is_secret(name: str, value: str) -> bool:
    """Whether a value under this name is a secret: not empty, a number, a yes or no."""
    return is_secret_name(name) and not PLAIN_VALUE.match(value)
