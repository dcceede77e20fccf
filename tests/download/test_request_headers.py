"""Request headers: credentials go to their sites only, secrets go on the wire only."""

from __future__ import annotations

import pytest

from gossamer.download.headers import RequestHeaders
from gossamer.errors import ConfigError, Forbidden
from gossamer.model import Request, secret
from gossamer.settings import build

FORM = {"content-type": "application/x-www-form-urlencoded"}


def outgoing(monkeypatch: pytest.MonkeyPatch, **values: object) -> RequestHeaders:
    monkeypatch.setenv("WORD", 'a&b "ü')
    monkeypatch.setenv("TOKEN", "t0ken")
    return RequestHeaders(build(values))


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://in.test/", True),
        ("http://in.test/", False),
        ("https://in.test:8443/", False),
        ("https://other.test/", False),
        ("http://in.test:8000/", True),
    ],
)
def test_password_is_sent_to_its_site_over_tls_only(url: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """H13: a redirect to another host, port, or scheme carries no credentials."""
    sites = {"in.test": {"auth": "me:${TOKEN}"}, "in.test:8000": {"auth": "me:${TOKEN}"}}
    sent = outgoing(monkeypatch, sites=sites).for_request(Request(url=url))
    assert (sent is not None and sent.get("authorization") == "Basic bWU6dDBrZW4=") == is_sent


def test_secrets_are_escaped_for_the_content_type(monkeypatch: pytest.MonkeyPatch) -> None:
    made = outgoing(monkeypatch, secrets=["WORD", "TOKEN"])

    def body(kind: str) -> bytes:
        text = f"x={secret('WORD')}".encode()
        return made.body(Request(url="http://a.test/", body=text, headers={"Content-Type": kind}))

    assert body("application/x-www-form-urlencoded") == b"x=a%26b+%22%C3%BC"
    assert body("application/json") == b'x=a&b \\"\\u00fc'
    assert body("multipart/form-data; boundary=x") == 'x=a&b "ü'.encode()
    sent = made.for_request(Request(url="http://a.test/", headers={"Authorization": f"Bearer {secret('TOKEN')}"}))
    assert sent is not None
    assert sent["authorization"] == "Bearer t0ken"


def test_a_secret_that_is_not_listed_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = outgoing(monkeypatch, secrets=["TOKEN"])
    with pytest.raises(Forbidden, match="WORD") as caught:
        made.body(Request(url="http://a.test/", body=f"x={secret('WORD')}".encode(), headers=FORM))
    assert "a&b" not in str(caught.value)
    with pytest.raises(Forbidden, match="WORD"):
        made.for_request(Request(url="http://a.test/", headers={"x": secret("WORD")}))


def test_missing_environment_variable_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for values in ({"secrets": ["NOT_SET"]}, {"sites": {"a.test": {"auth": "me:${NOT_SET}"}}}):
        with pytest.raises(ConfigError, match="NOT_SET"):
            outgoing(monkeypatch, **values)


def test_stored_request_headers_omit_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "headers": {"X-Key": "${TOKEN}"},
        "secrets": ["TOKEN"],
        "sites": {"in.test": {"headers": {"X-Own": "${WORD}"}}},
    }
    made = outgoing(monkeypatch, **values)
    own = made.for_request(Request(url="https://in.test/", headers={"x-more": f"k={secret('TOKEN')}", "x-plain": "y"}))
    assert own is not None
    assert own["x-more"] == "k=t0ken"
    output = dict(made.storable(own))
    assert [output[name] for name in ("x-key", "x-own", "x-more", "x-plain")] == ["withheld"] * 3 + ["y"]
    assert "t0ken" not in str(made.storable(None))


def test_stored_request_headers_omit_passwords_and_header_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """H66: values from the environment in a site's `auth` and a session's headers are in no archive."""
    sites = {"a.test": {"auth": "me:${TOKEN}"}}
    made = outgoing(monkeypatch, sites=sites, header_sets=[{"X-Set": "${TOKEN}"}])
    sent = made.for_request(Request(url="https://a.test/", headers={"x-set": "t0ken", "x-plain": "p"}))
    assert sent is not None
    kept = dict(made.storable(sent))
    assert kept["x-plain"] == "p"
    assert not [value for value in kept.values() if "t0ken" in value or "bWU6" in value]
