"""Forms of the keys and tokens of single vendors, by their prefixes.

They are public, in the vendors' documents and in the rules of gitleaks, trufflehog, kingfisher and
detect-secrets. Secrets without such a form are recognised by their name or place, if at all.
"""

from __future__ import annotations

import re
from typing import Tuple

_PREFIXES = """
    ATATT3 ATBB ATCTT3 bkaj_ bkct_ bkua_ CCIPAT_ CCIPRJ_ CFPAT- CLOJARS_ dckr_oat_ duffel_live_
    duffel_test_ esecret_ fo1_ figd_ fio-u- FLWSECK- FLWSECK_TEST- GR1348941 glagent- glcbt- gldt-
    glffct- glft- glimt- gloas- glpat- glptt- glrt- glsoat- glwt- HRKU- KGAT_ lin_oauth_
    nvapi- pscale_oauth_ pscale_pw_ pscale_tkn_ sb_secret_ sbp_ sgp_ shippo_live_ shippo_test_
    sntryi_ sntrys_ sntryu_ sq0atp- sq0idp- tk-us- tvly- whsec_ xaat- xapt- xkeysib-
    xsmtpsib- bce-v3/
"""
"""Prefixes of keys of one vendor each that begin no word; 20 characters or more follow."""
_SHORT_PREFIXES = """
    aio_ EZAK EZTK flb_live_ fpk_ fw_ hcaik_ hcxik_ ico- jina_ ion_ napi_ nfp_ npg_ odt_ p8e-
    pa- pat_ phx_ pnb_ pnu_ rdme_ re_ rnd_ rpa_ shltm_ slk_ sqa_ sqp_ squ_ tfp_ vcp_ vcst_
"""
"""Prefixes that words may have, too: 20 letters and digits must follow, one of them a digit."""
_OTHERS = """
    hf_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ sk- sk_ rk_ r8_ gsk_ dapi SG\\. hvs\\. dop_v1_
    dckr_pat_ lin_api_ pcsk_ xai- pplx- lsv2_ glsa_ glc_ ntn_ shpat_ tskey- PMAK- xox[a-z]-
    xapp- AKIA ASIA LTAI AIza ya29\\. GOCSPX- npm_ pypi- rubygems_ eyJ
"""
"""Prefixes of other keys, whose forms are in `secretforms`."""
_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_MIXED = r"(?=[a-z0-9_-]{0,60}[A-Z])(?=[A-Z0-9_-]{0,60}[a-z])"

_FORMS = (
    (
        _PREFIXES,
        r"(?:%s)[A-Za-z0-9_=+/-]{20,}" % "|".join(_PREFIXES.split()),
    ),
    (
        _SHORT_PREFIXES,
        r"(?:%s)(?=[A-Za-z]{0,99}\d)[A-Za-z0-9]{20,}(?!\w)" % "|".join(_SHORT_PREFIXES.split()),
    ),
    ("fm1r_ fm1a_ fm2_", r"fm(?:1[ra]|2)_[A-Za-z0-9+/=_-]{40,}"),
    ("sl.", r"sl\.(?:u\.)?[A-Za-z0-9_-]{60,}"),
    ("AQ.", r"AQ\.[A-Za-z0-9_-]{30,}"),
    ("k.eyJ", r"[pst]k\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("pat", r"pat(?:[A-Za-z0-9]{14}\.[a-f0-9]{60,66}|-[a-z]{2}\d-%s)" % _UUID),
    ("pat. sat.", r"[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),
    ("ak- as- wk- ws-", r"[aw][ks]-%s[A-Za-z0-9]{22}(?![\w-])" % _MIXED),
    ("_live_ _test_", r"[a-z]{2,8}_(?:live|test)_(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,}"),
    ("dt0c01.", r"dt0c01\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{60,}"),
    ("tkn.v1_", r"tkn\.v1_[A-Za-z0-9]{30,}"),
    ("sha256~", r"sha256~[\w-]{43}"),
    ("cmVmd ABSK ops_", r"(?:cmVmd|ABSK|ops_eyJ)[A-Za-z0-9+/]{50,}"),
    ("EAA", r"EAA(?:A[\w-]{50,60}|[A-Z][A-Za-z0-9]{90,})"),
    ("v1.0-", r"v1\.0-[a-f0-9]{24,64}-[a-f0-9]{100,}"),
    ("softlayer", r"api.softlayer.com/soap/v3(?:.1)?/[a-zA-Z0-9]{64}"),
    ("sq0csp-", r"sq0csp-[\w\\-]{43}"),
    ("AC SK", r"(?:AC|SK)(?=[a-z]{0,31}\d)[a-z0-9]{32}(?!\w)"),
    ("_mmk", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk(?!\w)"),
    ("A3-", r"A3-[A-Z0-9]{6}-[A-Z0-9]{5,11}(?:-[A-Z0-9]{5,6}){3,4}"),
    ("-us", r"[0-9a-z]{32}-us\d{1,2}(?!\w)"),
    ("VF.", r"VF\.(?:[DW][MS]\.)?[a-f0-9]{24}\.[A-Za-z0-9]{16}"),
    ("dose dkea dsapi", r"(?:dose|dkea|dsapi)[0-9a-f]{32,}"),
    ("A3T", r"A3T[A-Z0-9]{17}"),
    ("BBFF-", r"BBFF-[A-Za-z0-9]{30}"),
    ("NRJS- NRII- NRIQ- NRSP- NRAA-", r"NR(?:JS|II|IQ|SP|AA)-[A-Za-z0-9_-]{16,}"),
    ("bitbucket.org/ x-token-auth", r"x-token-auth:[A-Za-z0-9_=-]{16,}"),
    ("webhook", r"[\w-]{1,64}\.webhook\.office\.com/webhookb2/[^\s'\"<>]{40,}"),
    ("outlook.office", r"outlook\.office(?:365)?\.com/webhook/[^\s'\"<>]{40,}"),
    ("1000.", r"1000\.[0-9a-f]{30,34}\.[0-9a-f]{30,34}"),
    ("00D", r"00D[A-Za-z0-9]{12,15}![A-Za-z0-9._]{80,}"),
    ("1//0", r"1//0[A-Za-z0-9_-]{40,}"),
    ("ey", r"eyJ(?=[A-Za-z]{0,200}\d)[A-Za-z0-9+/_-]{60,}={0,2}(?!\w|\.\w)"),
    ("y0_ y1_ t1. AQVN", r"(?:y[01]_|t1\.|AQVN)%s[A-Za-z0-9_-]{34,}" % _MIXED),
)

BEGUN = re.compile(
    r"(?<![A-Za-z0-9])(?:%s)(?=[A-Za-z_-]{0,12}\d)[A-Za-z0-9_=+-]{4,}$"
    % "|".join((_PREFIXES + _SHORT_PREFIXES + _OTHERS).split())
)
"""The beginning of such a key, at the end of a cut text."""
LONG = re.compile(r"[A-Za-z0-9_=/+-]{20}")
"""A word that each match of `FORMS` has."""
FORMS: Tuple[Tuple[Tuple[str, ...], "re.Pattern[str]"], ...] = tuple(
    (tuple(hints.split()), re.compile(r"(?<![A-Za-z0-9_.-])(?:%s)" % form))
    for hints, form in _FORMS
)
"""Forms, each with hints of which every match has one, since searching is slow."""
