"""Forms of tokens and keys that are recognised anywhere, and tests for random words."""

from __future__ import annotations

import binascii
import re
from typing import Tuple

HEX_KEY = "key of 40 hex digits"
TOKENS: Tuple[Tuple[str, Tuple[str, ...], "re.Pattern[str]"], ...] = tuple(
    (kind, tuple(hints.split()), re.compile(form))
    for kind, hints, form in (
        (
            "token of Slack or Discord",
            "M N O",
            r"(?<![\w-])[MNO][A-Za-z\d_-]{23,27}\.[A-Za-z\d_-]{6}\.[A-Za-z\d_-]{27,40}(?![\w-])",
        ),
        (
            "API key",
            ":",
            r"(?<!\d)\d{8,10}:(?=[a-z0-9_-]{0,34}[A-Z])(?=[A-Z0-9_-]{0,34}[a-z])[\w-]{35}(?![\w-])",
        ),
        ("API key", "AKC", r"(?<![\w.-])AKC[A-Za-z0-9]{10,}(?!\w)"),
        ("API key", "AP", r"(?<![\w.-])AP(?=[A-Za-z]{0,60}\d)[\dA-F][A-Za-z0-9]{8,}(?!\w)"),
        ("token of Hugging Face", "hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
        (
            "token of GitHub or GitLab",
            "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glcbt- glptt-",
            r"gh[pousr]_[A-Za-z0-9_]{16,}|github_pat_[A-Za-z0-9_]{20,}"
            r"|gl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{16,}",
        ),
        (
            "API key",
            "sk- sk_ rk- rk_ pk_ wandb_v r8_ gsk_ dapi SG. hvs. hvb. dop_v1_ doo_v1_ "
            "dor_v1_ dckr_pat_ lin_api_ AGE-SECRET-KEY-1 SK key- pcsk_ xai- pplx- lsv2_ "
            "glsa_ glc_ sbp_ ntn_ secret_ shp dp. pul- tskey- PMAK- NRAK- "
            "tgp_v1_ csk- atlasv1.",
            r"(?<![A-Za-z0-9])(?:[sr]k[-_]|pk_)[A-Za-z0-9_-]{16,}|wandb_v\d_[A-Za-z0-9_]{16,}"
            r"|r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|dapi[0-9a-f]{32}"
            r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|hv[sb]\.[A-Za-z0-9_-]{20,}"
            r"|do[opr]_v1_[0-9a-f]{32,}|dckr_pat_[A-Za-z0-9_-]{20,}|lin_api_[A-Za-z0-9]{30,}"
            r"|AGE-SECRET-KEY-1[A-Z0-9]{40,}"
            r"|(?<![A-Za-z0-9])(?:SK|key-)[0-9a-f]{32}(?![0-9a-f])"
            r"|(?<![A-Za-z0-9_])(?:(?:pcsk_|xai-|pplx-|ntn_|secret_|csk-)[A-Za-z0-9_]{32,}"
            r"|(?:lsv2_(?:pt|sk)_|gls?[ac]_|tgp_v1_)[A-Za-z0-9_=-]{32,}"
            r"|(?:sbp_|pul-)[0-9a-f]{40}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|tskey-[a-z]{2,9}-[A-Za-z0-9-]{16,}"
            r"|dp\.(?:pt|st|sa|ct|scim|audit)\.[A-Za-z0-9._-]{40,}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}"
            r"|NRAK-[A-Z0-9]{27})|\.atlasv1\.[A-Za-z0-9_-]{60,}",
        ),
        (
            "token of Slack or Discord",
            "xox xapp- hooks.slack discord",
            r"xox[a-z]-[A-Za-z0-9-]{3,}|xapp-[A-Za-z0-9-]{10,}"
            r"|hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{5,}"
            r"|discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]{16,}",
        ),
        (
            "key of AWS",
            "AKIA ASIA ABIA ACCA ZXIvYXdzE IQoJb3JpZ2lu AQoDYXdzE",
            r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"
            r"|(?:F[wQ]oGZXIvYXdzE|IQoJb3JpZ2lu|AQoDYXdzE)[A-Za-z0-9/+=]{16,}",
        ),
        (
            "key of Alibaba or Tencent",
            "LTAI AKID",
            r"(?<![A-Za-z0-9])(?:LTAI[A-Za-z0-9]{12,20}|AKID[A-Za-z0-9]{32})",
        ),
        (
            "hash of a password",
            "$1$ $5$ $6$ $7$ $8$ $9$ $y$ $2a$ $2b$ $2y$ $argon2 $krb5",
            r"\$(?:[1-9y]|2[aby]|argon2\w{1,2}|krb5\w{2,6})\$[A-Za-z0-9./$=,+:@*-]{20,2000}",
        ),
        ("secret of Azure", "Q~", r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),
        (
            "key of 60 characters or more",
            "",
            r"(?<![A-Za-z0-9/+=_.-])(?=[a-z0-9]{0,60}[A-Z])(?=[A-Z0-9]{0,60}[a-z])"
            r"(?=[A-Za-z]{0,60}[0-9])[A-Za-z0-9]{60,}(?![A-Za-z0-9/+_-]|\.\w)",
        ),
        (
            "key of 40 characters",
            "",
            r"(?<![A-Za-z0-9/+=_.-])(?=[a-z0-9/+]{0,39}[A-Z])(?=[A-Z0-9/+]{0,39}[a-z])"
            r"(?=[A-Za-z/+]{0,39}[0-9])[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![A-Za-z0-9/+=_-]|\.\w)",
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
            r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}={0,2}\.[A-Za-z0-9_-]{10,}={0,2}(?:\.[A-Za-z0-9_.-]*)?",
        ),
        (HEX_KEY, "", r"(?<![/\w])[0-9a-f]{40}(?![/\w])"),
    )
)
"""Forms that are recognised anywhere: keys of Weights & Biases have 40 hex digits, those of AWS 40
characters. Each has hints of which every match has one, since searching is slow."""

RANDOM = re.compile(
    r"((?:^|[\s,;{(\[&?>=])['\"\\]{0,4}([\w.-]{1,64})"
    r"(?:['\"\]\\]{0,4}\s{0,2}(?:[=:-]>|:=|==?|:|\u2192)\s{0,2}b?['\"\\]{0,4}|\(b?['\"])"
    r"|^b?['\"])([A-Za-z0-9+/_-]{16,400}={0,2})(?![\w.:/+@-])"
)
"""A word assigned to a name or passed to a function of that name, or alone between quotes."""
_NO_SECRET = re.compile(
    r"(?:id|uuid|sha\d*|md5|hash|digest|checksum|crc\w*|etag|commit|rev(?:ision)?|version|fingerprint)s?$",
    re.IGNORECASE,
)
"""Names of identifiers that only look random."""
_TELLING = re.compile(
    r"(?:^|[-_.])(?:api|auth|key|pat|wandb|hf|comet|neptune|login)\d{0,2}(?:$|[-_.])|[a-z]key\d{0,2}$",
    re.IGNORECASE,
)
"""Names whose value is a secret even if it looks like a digest or a word."""
_NO_KEY = re.compile(r"cache|public|sort|group|store|primary|foreign|hash|partition", re.IGNORECASE)
HEX = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_OF_DIGEST = re.compile(
    r"(?<![a-z])(?:sha\d{0,3}|hash|digest|checksum|commit|rev(?:ision)?|checkpoint|snapshot|tree|blob)"
    r"['\"]?[\s:=@]{1,4}['\"]?$",
    re.IGNORECASE,
)
MIN_RANDOM = 20
"""Least characters of a word that is a secret under any name."""
PREFIXED = re.compile(
    r"(?<![\w./+@-])(?:[A-Za-z][A-Za-z0-9]{1,11}[_.-](?:[A-Za-z0-9]{1,10}[_-]){0,2}|(?<![=:'\"])(?=\w{32}))"
    r"([A-Za-z0-9]{20,400})(?![\w/+]|[.-]\w)"
)
"""A short word followed by a long one, as most vendors write keys, or a longer word alone."""
_CLASSES = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/_-",
    "a" * 26 + "A" * 26 + "0" * 10 + "/" * 4,
)


def is_digest(text: str, start: int) -> bool:
    """Whether the text before a position announces a git digest, as `--revision` does."""
    return _OF_DIGEST.search(text, max(start - 24, 0), start) is not None


def is_login(word: str) -> bool:
    """Whether a word is user and password in base64, as in a Basic header."""
    try:
        return b":" in binascii.a2b_base64(word + "==")
    except ValueError:
        return False


def is_random(name: str, word: str) -> bool:
    """Whether a word mixes lower case, upper case and digits as a random key does.

    Words of code, models and paths alternate less, or have more separators; digests, commits and
    ids in hex have lower case only, and are keys only under a sensitive name.
    """
    whole = word.rstrip("=").translate(_CLASSES)
    classes = whole.replace("/", "")
    parted = len(whole) - len(classes) > len(whole) / 8
    if parted or classes.count("0") < 2 or _NO_SECRET.search(name):
        return False
    changes = sum(map(str.__ne__, classes, classes[1:]))
    if _TELLING.search(name) and not _NO_KEY.search(name):
        return HEX.fullmatch(word) is not None or changes >= len(word) / 8
    mixed = "a" in classes and "A" in classes
    return mixed and len(word) >= MIN_RANDOM and changes >= 0.45 * len(classes)
