"""Secrets of many kinds as people leave them in arguments, variables and logs; made up each time.

None is written here whole, so that nobody's scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import random
import string
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

LETTERS = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"

FORMS = (
    ("after a comma", "DB_PASSWORD=ab,{}"),
    ("after a comma, last", "mount -o username=ada,password={},vers=3.0"),
    ("after another variable", "sbatch --export=HF_TOKEN={},X=1 run.sh"),
    ("pgpass", "db:5432:runs:ada:{}"),
    ("sqlplus", "sqlplus ada/{}@db"),
    ("in a mapping", "auth:\n  password: {}"),
    ("in a list", '"api_keys": ["{}", "x"]'),
    ("mongosh", "mongosh -u ada -p {} db"),
    ("sshpass, glued", "sshpass -p{} ssh n1"),
    ("unzip", "unzip -P {} a.zip"),
    ("smbclient", "smbclient //nas/x -U ada%{}"),
    ("ldapsearch", "ldapsearch -D cn=ada -w {} -b dc=x"),
    ("curl, -b", "curl -b 'sid={}' https://x"),
    ("curl, proxy", "curl --proxy-user ada:{} https://x"),
    ("kubectl", "kubectl create secret generic db --from-literal=db={}"),
    ("pipe", "echo {} | docker login -u ada --password-stdin"),
    ("call", "smtp.login('ada', '{}')"),
    ("SQL", "ALTER USER ada IDENTIFIED BY '{}'"),
    ("cookie of a jar", "<Cookie sid={} for x.com/>"),
    ("cookies", "cookies={{'sid': '{}'}}"),
    ("prompt", "[sudo] password for ada: {}"),
    ("conda", "https://conda.anaconda.org/t/{}/main"),
)
HEX_FORMS = (
    ("hex, option", "--wandb {}"),
    ("hex, name", "DD_KEY={}"),
    ("hex, key", '"routing_key": "{}"'),
    ("hex, login", "wandb login {}"),
    ("hex, call", "wandb.login('{}')"),
    ("hex, URL", "https://ci.example.com/hooks/{}"),
    ("Digest", 'Authorization: Digest username="ada", realm="x", response="{}"'),
)


class Plant(NamedTuple):
    """One secret, and how it is written."""

    kind: str
    secret: str
    """What must not be found anywhere; with line breaks, none of its lines."""
    text: str
    """As it stands in a log line or a variable; may have several lines."""
    arguments: tuple[str, ...]
    """As it stands on a command line."""


def plants(seed: int = 1) -> list[Plant]:
    """All of them."""
    rnd = random.Random(seed)

    def some(count: int, chars: str = LETTERS) -> str:
        while True:
            found = "".join(rnd.choices(chars, k=count))
            mixed = any(c.isdigit() for c in found) and any(c.isalpha() for c in found)
            cased = chars is not LETTERS or (found.lower() != found != found.upper())
            if mixed and cased:
                return found

    def block(head: str, last: str) -> tuple[str, str]:
        body = "\n".join(some(64) for _ in range(6)) + "\n" + some(24)
        return body, f"-----BEGIN {head}-----\n{body}\n-----END {last}-----"

    found: list[Plant] = []

    def plant(kind: str, secret: str, text: str, *arguments: str) -> None:
        found.append(Plant(kind, secret, text, arguments or (text,)))

    def token(kind: str, prefix: str, rest: str) -> None:
        plant(kind, prefix + rest, prefix + rest)

    token("AWS key id", "AK" + "IA", some(16, string.ascii_uppercase + string.digits))
    token("AWS secret, bare", "", some(40))
    secret = some(38) + "/+"
    plant(
        "AWS secret, named", secret, f"aws_secret_access_key = {secret}", "--aws-secret-key", secret
    )
    secret = some(120)
    plant("AWS session", secret, f"export AWS_SESSION_TOKEN={secret}")
    secret = some(64, HEX)
    plant(
        "S3 presigned",
        secret,
        f"https://b.s3.amazonaws.com/k?X-Amz-Date=2&X-Amz-Signature={secret}",
    )
    token("GCP API key", "AI" + "za", some(35))
    token("GCP OAuth", "ya" + "29.", some(60))
    body, pem = block("PRIVATE KEY", "PRIVATE KEY")
    flat = pem.replace("\n", "\\n")
    plant("GCP service account", body, f'{{"type": "service_account", "private_key": "{flat}"}}')
    token("Hugging Face", "h" + "f_", some(34))
    token("W&B", "", some(40, HEX))
    secret = some(40, LOWER)
    plant("W&B, named", secret, f"WANDB_API_KEY={secret}")
    token("GitHub classic", "gh" + "p_", some(36))
    token("GitHub fine-grained", "github" + "_pat_", some(22) + "_" + some(59))
    token("GitLab", "gl" + "pat-", some(20))
    token("Slack bot", "xo" + "xb-", "17653672481-" + some(24))
    secret = some(24)
    plant("Slack hook", secret, f"https://hooks.slack.com/services/T00000000/B00000000/{secret}")
    token("OpenAI", "s" + "k-proj-", some(48))
    token("Anthropic", "s" + "k-ant-api03-", some(80))
    token("Stripe", "s" + "k_live_", some(24))
    claims = [f'{{"{some(30)}":1}}'.encode() for _ in "ab"]
    parts = [base64.urlsafe_b64encode(one).decode().rstrip("=") for one in claims]
    token("JWT", "", f"{parts[0]}.{parts[1]}.{some(43)}")
    secret = some(20)
    plant(
        "basic auth in a URL", secret, f"pip install https://ada:{secret}@pkgs.example.com/simple"
    )
    secret = some(32)
    plant(
        "bearer header",
        secret,
        f"Authorization: Bearer {secret}",
        "-H",
        f"Authorization: Bearer {secret}",
    )
    secret = base64.b64encode(f"ada:{some(18)}".encode()).decode()
    plant("basic header", secret, f"authorization: basic {secret}")
    secret = some(18)
    plant("--password x", secret, f"run --password {secret} --steps 3", "--password", secret)
    secret = some(18)
    plant("--token=x", secret, f"run --token={secret}", f"--token={secret}")
    secret = some(18)
    plant("api_key=", secret, f"connect(api_key='{secret}', retries=3)", f"api_key={secret}")
    for kind in ("RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"):
        body, pem = block(kind, kind)
        plant(kind, body, pem)
    secret = some(43) + "%3D"
    plant("Azure SAS", secret, f"https://a.blob.core.windows.net/c?sv=2022-11-02&sp=r&sig={secret}")
    secret = base64.b64encode(rnd.randbytes(64)).decode()
    plant(
        "Azure account key",
        secret,
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={secret};E=1",
    )
    token("npm", "np" + "m_", some(36))
    token("PyPI", "py" + "pi-AgEIcHlwaS5vcmc", some(120))
    secret = some(16)
    plant("database URL", secret, f"postgresql+asyncpg://train:{secret}@db-1:5432/runs")
    secret = some(16)
    plant("redis URL", secret, f"redis://:{secret}@cache:6379/0")
    secret = some(16)
    plant("ODBC", secret, f"Driver=x;Server=db;Uid=train;Pwd={secret};")
    secret = some(16)
    plant("netrc", secret, f"machine api.example.com login ada password {secret}")
    secret = some(16)
    plant("curl -u", secret, f"curl -u ada:{secret}@x", "-u", f"ada:{secret}")
    token("Databricks", "da" + "pi", some(32, HEX))
    token("SendGrid", "S" + "G.", f"{some(22)}.{some(43)}")
    token("Docker Hub", "dckr" + "_pat_", some(27))
    secret = some(30)
    plant("JSON", secret, f'{{"user": "ada", "client_secret": "{secret}", "n": 1}}')
    plant_more(plant, some)
    return found


def plant_more(plant: Callable[..., None], some: Callable[..., str]) -> None:
    """What has no form of its own, in the ways in which it is written down."""
    for kind, form in (
        ("name that tells nothing", "MYSERVICE={}"),
        ("arrow", "cfg->secret -> {}"),
        ("JSON in JSON", '{{\\"password\\": \\"{}\\"}}'),
        ("escaped URL", "next=https%3A%2F%2Fhost%2Fx%3Ftoken%3D{}%26y%3D1"),
        ("escaped login", "proxy=http%3A%2F%2Fada%3A{}%40proxy%3A3128"),
        ("header with a scheme", "Authorization: Token {}"),
        ("headers of a request", "{{'X-Auth-Token': '{}', 'Accept': '*/*'}}"),
        ("cookie", "Cookie: theme=dark; sid={}"),
        ("words in quotes", "password='one {} two'"),
        ("bytes", "connect(api_key=b'{}')"),
        ("item", "os.environ['API_KEY'] = '{}'"),
        ("element", "<password>{}</password>"),
        ("fish", "set -x SERVICE_TOKEN {}"),
        ("csh", "setenv SERVICE_TOKEN {}"),
        ("redis-cli", "redis-cli -h cache -a {} ping"),
        ("curl, glued", "curl -uada:{} https://host/x"),
        ("kubeconfig", "client-key-data: {}"),
        ("ldap", "bindpw {}"),
        ("login with a slash", "postgres://ada:x/{}@db/runs"),
    ):
        secret = f"{some(12)}7{some(11)}3xY"
        plant(kind, secret, form.format(secret))
    for kind, form in FORMS:
        secret = "kes" + some(12, LOWER)
        plant(kind, secret, form.format(secret))
    for kind, form in HEX_FORMS:
        secret = some(32, HEX)
        plant(kind, secret, form.format(secret))


def leaks(one: Plant, text: str, length: int = 14) -> list[str]:
    """The pieces of a secret of some length that are in a text."""
    found = []
    for line in one.secret.split("\n"):
        pieces = [line[at : at + length] for at in range(max(len(line) - length, 0) + 1)]
        found += [piece for piece in pieces if len(piece) > 7 and piece in text]
    return found
