"""Secrets that are known by where they stand: headers, connection strings, files of credentials."""

from __future__ import annotations

import pytest

from hangtop_probe.secrets.mask import MASK, mask_arguments, mask_text

SHORT = "zq"
"""So short and plain that nothing but its place tells."""

AUTHORIZATION = (
    "Authorization: {}",
    "authorization: {}",
    "Authorization:{}",
    "Proxy-Authorization: {}",
    "HTTP_AUTHORIZATION={}",
    "{{'Authorization': '{}'}}",
    '{{"Authorization": "{}", "Accept": "*/*"}}',
    '{{\\"Authorization\\": \\"{}\\"}}',
    "[('authorization', '{}'), ('accept', '*/*')]",
    "(b'authorization', b'{}')",
    "<CIMultiDict('Authorization': '{}', 'Accept': '*/*')>",
    '"authorization":["{}"]',
    "curl -H 'Authorization: {}' https://host/x",
    'curl --header "Authorization: {}" https://host/x',
    "wget --header='Authorization: {}' https://host/x",
    "send: b'GET / HTTP/1.1\\r\\nAuthorization: {}\\r\\nAccept: */*\\r\\n\\r\\n'",
    "request.add_header('Authorization', '{}')",
    "metadata=(('authorization', '{}'),)",
    "Headers({{'host': 'x', 'proxy-authorization': '{}'}})",
)
SCHEMES = (
    "Bearer",
    "bearer",
    "Basic",
    "Token",
    "token",
    "ApiKey",
    "Bot",
    "Negotiate",
    "OAuth",
    "JWT",
)


@pytest.mark.parametrize("form", AUTHORIZATION)
def test_what_authorizes_is_masked_however_short(form: str) -> None:
    for scheme in SCHEMES:
        text = form.format(f"{scheme} {SHORT}")
        assert MASK in mask_text(text)
        assert SHORT not in mask_text(text)


@pytest.mark.parametrize(
    "name",
    [
        *("X-Api-Key", "x-api-key", "Api-Key", "X-Auth-Token", "X-Goog-Api-Key", "DD-API-KEY"),
        *("Ocp-Apim-Subscription-Key", "X-Vault-Token", "PRIVATE-TOKEN", "x-functions-key"),
        *(
            "X-Amz-Security-Token",
            "Modal-Key",
            "Modal-Secret",
            "X-Acme-Secret",
            "CF-Access-Client-Secret",
        ),
        *("X-CSRF-Token", "apikey", "X-Acme-Signing-Key", "Sec-Acme-Password"),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "{}: {}",
        "{}:{}",
        "{{'{}': '{}', 'Accept': '*/*'}}",
        '{{"{}": "{}"}}',
        "curl -H '{}: {}' https://host/x",
        "send: b'GET / HTTP/1.1\\r\\n{}: {}\\r\\nAccept: */*\\r\\n\\r\\n'",
        "[('{}', '{}')]",
    ],
)
def test_headers_whose_names_tell_are_masked(name: str, form: str) -> None:
    assert SHORT not in mask_text(form.format(name, SHORT))


@pytest.mark.parametrize(
    "text",
    [
        "Cookie: sid=zq",
        "Set-Cookie: sid=zq; Path=/; HttpOnly",
        "{'Cookie': 'theme=dark; sid=zq'}",
        "auth = 'Bearer zq'",
        "curl -H Authorization:\\ Bearer\\ zq https://host/x",
        "get(url, auth=('ada', 'zq'))",
        "HTTPBasicAuth('ada', 'zq')",
        'headers.append("bearer zq")',
        "Authorization: AWS4-HMAC-SHA256 Credential=AK/2/s3, SignedHeaders=host, Signature=zqzq",
    ],
)
def test_cookies_and_bearers_are_masked(text: str) -> None:
    assert SHORT not in mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgres://ada:hunter@db/runs",
        "amqps://ada:hunter@mq:5671/v",
        "redis://:hunter@cache:6379/0",
        "mongodb+srv://ada:hunter@c0.x.mongodb.net/?retryWrites=true",
        "mongodb://ada:hunter@h1:27017,h2:27017/runs",
        "snowflake://ada:hunter@account/db",
        "git clone https://oauth2:hunter@gitlab.com/x.git",
        "ftp://hunter@host/",
        "Driver={ODBC Driver 18};Server=db;Uid=ada;Pwd={hunter;x hunter};Encrypt=yes",
        "Server=db;User Id=ada;Password=a hunter b;Encrypt=yes",
        "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=R;SharedAccessKey=hunter=;E=q",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter==;EndpointSuffix=x",
        "SharedAccessSignature sr=x&sig=hunter%3D&se=1&skn=p",
        "jdbc:sqlserver://h:1433;user=ada;password=hunter;encrypt=true",
        "jdbc:mysql://h/db?user=ada&password=hunter",
        "host=h port=5432 user=ada password=hunter dbname=x",
        "host=h password='a hunter' dbname=x",
        "https://x.blob.core.windows.net/c?sv=1&sig=hunter%3D",
        "https://storage.googleapis.com/b/o?X-Goog-Signature=hunter&x=1",
        "https://host/cb?code=1&client_secret=hunter",
        "https://host/deploy/srv-1?key=hunter",
    ],
)
def test_connection_strings_and_addresses_are_masked(text: str) -> None:
    assert "hunter" not in mask_text(text)
    assert "hunter" not in " ".join(mask_arguments(["run", "--store", text]))


@pytest.mark.parametrize(
    "text",
    [
        '{"auths": {"https://index.docker.io/v1/": {"auth": "aHVudGVy"}}}',
        '{"auths":{"ghcr.io":{"identitytoken":"hunter"}}}',
        "machine h login ada password hunter",
        "machine h\n  login ada\n  password hunter1",
        "db:5432:*:ada:hunter",
        "users:\n- name: a\n  user:\n    token: hunter\n    client-key-data: aHVudGVy",
        "users:\n- name: a\n  user:\n    password: hunter",
        "[default]\naws_secret_access_key = hunter/x\naws_session_token=hunter",
        "//registry.npmjs.org/:_authToken=hunter",
        "[pypi]\nusername = __token__\npassword = hunter",
        "Credentials(access_key='AK', secret_key='hunter', token='hunter')",
        "Config(user='ada', password='hunter', retries=3)",
        "Settings(db_password=SecretStr('hunter'))",
        "signing_key: hunter\nMASTER_KEY: hunter\nlicenseKey=hunter",
        "contraseña: hunter, senha=hunter, passwort: hunter",
        "dbpass=hunter fooToken: hunter clientSecret: hunter jwt=hunter creds=hunter",
        "password            : hunter",
        "passphrase for key '/home/ada/x': hunter2",
        "password 'hunter', api_key \"hunter\"",
    ],
)
def test_files_of_credentials_and_their_like_are_masked(text: str) -> None:
    masked = mask_text(text)
    assert "hunter" not in masked
    assert "aHVudGVy" not in masked


@pytest.mark.parametrize(
    "text",
    [
        "cache_key=layer_12_kv, primary_key: id, sort_key=step, idempotency-key: 3f9c",
        "Authorization is needed, no authorization for ada, foreign_key=run",
        "the bearer of this, Basic configuration, token 17 of 4096, tokens per second",
        "unexpected token 'foo' in line 3, secret of the name 'db' not found",
        "x=1;y=2;echo done; for i in a b; do echo $i; done",
        "step 3; loss=2.25; lr=1e-4; grad_norm=0.7; tokens=4096",
    ],
)
def test_what_only_looks_like_such_a_place_stays(text: str) -> None:
    assert mask_text(text) == text
