"""What a public scanner takes for a secret is masked: detect-secrets' plugins make the samples."""

from __future__ import annotations

import base64
import importlib
import inspect
import pkgutil
import random
import re
from typing import TYPE_CHECKING

import pytest
from detect_secrets import plugins
from detect_secrets.plugins import keyword
from detect_secrets.plugins.base import BasePlugin, RegexBasedDetector

from hangtop_probe.secrets.mask import MASK, mask_text
from support.drawing import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_MASKED = {
    "Base64HighEntropyString": "words of code, models and runs are as mixed as many keys",
    "HexHighEntropyString": "commits, digests and ids look the same",
    "IPPublicDetector": "addresses explain a hang; `--redact-hosts` takes them out",
}
"""Plugins whose finds stay, and why: docs/capture.md says so, too."""
BY_HAND = {"KeywordDetector", "JwtTokenDetector", "PrivateKeyDetector"}
"""Their patterns match more than secrets, or only the first line of one."""
SAMPLES = 200
PIECE = 12
"""Characters of a secret that are left nowhere."""


def detectors() -> dict[str, type[BasePlugin]]:
    found = {}
    for module in pkgutil.iter_modules(plugins.__path__):
        names = vars(importlib.import_module(f"{plugins.__name__}.{module.name}"))
        for name, kind in names.items():
            own = inspect.isclass(kind) and kind.__module__.endswith(f".{module.name}")
            if own and issubclass(kind, BasePlugin) and not inspect.isabstract(kind):
                found[name] = kind
    return found


def patterns() -> Iterator[object]:
    for name, kind in detectors().items():
        if issubclass(kind, RegexBasedDetector) and name not in NOT_MASKED and name not in BY_HAND:
            for number, pattern in enumerate(kind().denylist):
                yield pytest.param(pattern, id=f"{name}-{number}")


def secret_of(match: re.Match[str]) -> str:
    """The longest group, or everything where that is only its beginning."""
    longest = max((group or "" for group in match.groups()), key=len, default="")
    return re.sub("^[A-Za-z]+=", "", match[0]) if match[0].startswith(longest) else longest


def is_natural(text: str, secret: str) -> bool:
    """Whether quotes and brackets have a partner, and it is no path and no word of a sentence."""
    bare = re.sub(r"'[^'\"\[\] ]*'|\"[^'\"\[\] ]*\"", "", text)
    paired = not re.search("['\"]", bare) and text.count("[") == text.count("]")
    quoted = any(f"{quote}{secret}{quote}" in text for quote in "'\"")
    given = "://" in text or (quoted and re.search("[:=]", text))
    paired = paired and "\\" not in text
    return bool(paired and secret[0] != "/" and (given or re.search(r"\d", secret)))


def left(secret: str, masked: str) -> list[str]:
    last = max(len(secret) - PIECE, 0)
    pieces = (secret[at : at + PIECE] for at in range(last + 1))
    return [piece for piece in pieces if piece in masked]


@pytest.mark.parametrize("pattern", list(patterns()))
def test_what_a_plugin_matches_is_masked(pattern: re.Pattern[str]) -> None:
    lower = re.compile(pattern.pattern, pattern.flags & ~re.IGNORECASE)
    rnd = random.Random(1)
    drawn = [re.sub(" {2,}", " ", draw(lower, rnd)) for _ in range(SAMPLES)]
    matches = [match for match in map(pattern.search, drawn) if match]
    natural = [match for match in matches if is_natural(match.string, secret_of(match))]
    assert len(natural) > 5, "the samples show something"
    for match in natural:
        masked = mask_text(match.string)
        assert not left(secret_of(match), masked), (match.string, masked)


@pytest.mark.parametrize("word", keyword.DENYLIST)
@pytest.mark.parametrize(
    "form",
    ["{} = '{}'", '{}: "{}"', "{} := '{}'", '"{}": "{}",', "{}={}", "my_{}: {}", "x['{}'] = '{}'"],
)
def test_what_stands_under_a_telling_name_is_masked(word: str, form: str) -> None:
    secret = "correct-horse7battery"
    text = form.format(word.replace("_?", "_"), secret)
    assert secret not in mask_text(text)


def test_a_web_token_is_masked() -> None:
    parts = (b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"1234567890"}')
    token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    finds = detectors()["JwtTokenDetector"]().analyze_string(token)
    assert token in set(finds)
    for text in (token, f"{token}.c2lnbmF0dXJl", f"next: {token}, more", f"'{token}.x'"):
        assert token not in mask_text(text)


BODY = "MIIEowIBAAKCAQEAq9Zt4LmWx7Kd2PvB8sRnQoXz1B3zypt52J9u3jOeHwdFcAefA"


@pytest.mark.parametrize("pattern", detectors()["PrivateKeyDetector"]().denylist)  # type: ignore[attr-defined]
def test_what_follows_the_beginning_of_a_private_key_is_masked(pattern: re.Pattern[str]) -> None:
    head = pattern.pattern
    if head.startswith("PuTTY"):
        text = f"{head}: ssh-rsa\nPrivate-Lines: 2\n{BODY}\n{BODY[:20]}\nPrivate-MAC: {BODY[:40]}"
    else:
        dashes = "---- " if "SSH2" in head else "-----"
        last = dashes[::-1]
        end = head.replace("BEGIN", "END")
        text = f"{dashes}{head}{last}\n{BODY}\n{BODY[:20]}\n{dashes}{end}{last}"
    assert pattern.search(text)
    for written in (text, repr(text), text.replace("\n", "\n[rank0]: "), text.replace("\n", " ")):
        assert not left(BODY, mask_text(written)), mask_text(written)


def test_no_plugin_is_left_out() -> None:
    known = NOT_MASKED.keys() | BY_HAND
    made = {str(param.id).rpartition("-")[0] for param in patterns()}  # type: ignore[attr-defined]
    assert known | made == detectors().keys()
    assert MASK not in mask_text("10.0.0.1 is rank 3 at 9fceb02d0ae598e95dc970b74767f193")
