"""Forms of tokens and keys that are known wherever they stand, and how random a word looks."""

from __future__ import annotations

import re
from typing import Tuple

from .procfs import words

TOKENS: Tuple[Tuple[str, Tuple[str, ...], "re.Pattern[str]"], ...] = tuple(
    (kind, tuple(words(hints)), re.compile(form))
    for kind, hints, form in (
        ("token of Hugging Face", "hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
        (
            "token of GitHub or GitLab",
            "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glcbt- glptt-",
            r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}"
            r"|gl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{16,}",
        ),
        (
            "API key",
            "sk- sk_ rk- rk_ pk_ wandb_v r8_ gsk_ nvapi- dapi SG. hvs. hvb. dop_v1_ doo_v1_ "
            "dor_v1_ dckr_pat_ lin_api_ :AA AGE-SECRET-KEY-1 SK key-",
            r"(?<![A-Za-z0-9])(?:[sr]k[-_]|pk_)[A-Za-z0-9_-]{16,}|wandb_v\d_[A-Za-z0-9_]{16,}"
            r"|r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|nvapi-[A-Za-z0-9_-]{30,}|dapi[0-9a-f]{32}"
            r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|hv[sb]\.[A-Za-z0-9_-]{20,}"
            r"|do[opr]_v1_[0-9a-f]{32,}|dckr_pat_[A-Za-z0-9_-]{20,}|lin_api_[A-Za-z0-9]{30,}"
            r"|(?<!\d)\d{8,10}:AA[A-Za-z0-9_-]{33}|AGE-SECRET-KEY-1[A-Z0-9]{40,}"
            r"|(?<![A-Za-z0-9])(?:SK|key-)[0-9a-f]{32}(?![0-9a-f])",
        ),
        (
            "token of Slack or Discord",
            "xox xapp- hooks.slack.com discord",
            r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"
            r"|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{16,}"
            r"|discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]{16,}",
        ),
        (
            "key of AWS",
            "AKIA ASIA ABIA ACCA ZXIvYXdzE IQoJb3JpZ2lu AQoDYXdzE",
            r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"
            r"|(?:F[wQ]oGZXIvYXdzE|IQoJb3JpZ2lu|AQoDYXdzE)[A-Za-z0-9/+=]{16,}",
        ),
        ("secret of Azure", "Q~", r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),
        (
            "key of 60 characters or more",
            "",
            r"(?<![A-Za-z0-9/+=_.-])(?=[a-z0-9]{0,60}[A-Z])(?=[A-Z0-9]{0,60}[a-z])"
            r"(?=[A-Za-z]{0,60}[0-9])[A-Za-z0-9]{60,}(?![A-Za-z0-9/+_.-])",
        ),
        (
            "key of 40 characters",
            "",
            r"(?<![A-Za-z0-9/+=_.-])(?=[a-z0-9/+]{0,39}[A-Z])(?=[A-Z0-9/+]{0,39}[a-z])"
            r"(?=[A-Za-z/+]{0,39}[0-9])[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![A-Za-z0-9/+=_.-])",
        ),
        (
            "key of Google",
            "AIza ya29. GOCSPX-",
            r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}",
        ),
        (
            "token of a package index",
            "npm_ pypi- rubygems_ oy2",
            r"npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|rubygems_[0-9a-f]{40,}|oy2[a-z0-9]{43}",
        ),
        (
            "JSON web token",
            "eyJ",
            r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",
        ),
        ("key of 40 hex digits", "", r"(?<![/\w])[0-9a-f]{40}(?![/\w])"),
    )
)
"""Forms that are known wherever they stand: keys of Weights & Biases have 40 hex digits, those of
AWS 40 characters. With each what is in every text that has one, for looking is slow."""

RANDOM = re.compile(
    r"((?:^|[\s,;{(\[&?>])['\"]?([\w.-]{1,64})['\"\]]{0,2}\s{0,2}(?:[=:-]>|:=|==?|:|\u2192)\s{0,2}b?['\"]?"
    r"|^b?['\"])([A-Za-z0-9+/_-]{20,400}={0,2})(?![\w.:/+@-])"
)
"""What is assigned to a name, or is all there is between quotes."""
_NO_SECRET = re.compile(
    r"(?:id|uuid|sha\d*|md5|hash|digest|checksum|crc\w*|etag|commit|rev(?:ision)?|version|fingerprint)s?$",
    re.IGNORECASE,
)
"""Names of what only looks so, and tells one thing from another."""
_CLASSES = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/_-",
    "a" * 26 + "A" * 26 + "0" * 10 + "/" * 4,
)


def is_random(name: str, word: str) -> bool:
    """Whether a word is as mixed as a key that was drawn: of small and large letters and digits.

    Words of code, models and paths change less between these, or have more between them; digests,
    commits and ids in hex have small letters alone.
    """
    whole = word.rstrip("=").translate(_CLASSES)
    classes = whole.replace("/", "")
    parted = len(whole) - len(classes) > len(whole) / 8
    if parted or classes.count("0") < 2 or _NO_SECRET.search(name):
        return False
    changes = sum(map(str.__ne__, classes, classes[1:]))
    return "a" in classes and "A" in classes and changes >= 0.45 * len(classes)
