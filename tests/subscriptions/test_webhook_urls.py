"""What a worker never calls: hostile URLs, answers of hostile resolvers, redirects."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import httpx2
import pytest

from flowfabric.app.webhooks import Poster, Refusal
from flowfabric.client.webhooks import Signed
from flowfabric.config import Settings
from flowfabric.core.errors import InvalidInput
from flowfabric.core.webhook import Allowed, parse_address, parse_webhook_url
from support.cases import for_each

SIGNED = Signed(datetime(2026, 11, 17, tzinfo=UTC), "v1,x")
PUBLIC = "93.184.216.34"
# Trusts nobody: nothing is ever called here, and reading the certificates takes time.
TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# A public address, so that only the form of the URL can be the reason.
FORMS = [
    "http://hooks.example.com/",
    "HTTP://hooks.example.com/",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "gopher://hooks.example.com/",
    "javascript:alert(1)",
    "data:text/plain,x",
    "//hooks.example.com/",
    "hooks.example.com",
    "https:hooks.example.com",
    "https:/hooks.example.com",
    "https://",
    "https:///path",
    "https://user@hooks.example.com/",
    "https://user:password@hooks.example.com/",
    "https://hooks.example.com@127.0.0.1/",
    "https://hooks.example.com%40127.0.0.1/",
    "https://hooks.example.com#@127.0.0.1/",
    "https://hooks.example.com\\@127.0.0.1/",
    "https://hooks.example.com\\.evil.example/",
    "https://hooks.example.com /",
    "https://hooks.example.com\t/",
    "https://hooks.example.com/\r\nHost: evil",
    "https://hooks.example.com\0.evil.example/",
    "https://hooks_example.com/",
    "https://-hooks.example.com/",
    "https://hooks..example.com/",
    "https://hooks.example.com./",
    "https://hooks.example.com:0/",
    "https://hooks.example.com:/",
    "https://hooks.example.com:65536/",
    "https://hooks.example.com:port/",
    "https://ｌｏｃａｌｈｏｓｔ/",
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",
    "https://exämple.com/",
    f"https://{'a' * 64}.example.com/",
    f"https://{'a.' * 130}com/",
    f"https://hooks.example.com/{'x' * 2048}",
    # addresses in other notations: resolvers accept them
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://0x7F.0.0.1/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://0/",
    "https://127.0.0.01/",
    "https://[::1%25lo]/",
    "https://[fe80::1%25eth0]/",
    "https://[v1.x]/",
    "https://[127.0.0.1]/",
    "https://[::1/",
]
# Addresses that the URL names, or that the resolver answers for hooks.example.com.
ADDRESSES = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "169.254.170.2",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::ffff:169.254.169.254",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "fe80::1%1",
    "192.0.0.9",
    "192.88.99.1",
    "3fff::1",
    "5f00::1",
]


class Outside:
    """The world outside: a resolver that answers by a script, and all calls that arrive."""

    def __init__(self, *answers: list[str], status: int = 200, **headers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.called: list[httpx2.Request] = []
        self.status, self.headers = status, headers

    async def resolve(self, host: str, port: int):
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [parse_address(text) for text in answer]

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.called.append(request)
        return httpx2.Response(self.status, headers=self.headers)

    async def post(self, url: str, allowed: Allowed) -> int:
        poster = Poster(url, allowed, resolve=self.resolve, trust=TRUST)
        await poster._client.aclose()
        poster._client = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))
        async with poster:
            return await poster.post("id", b"{}", SIGNED)


def everything(url: str) -> Allowed:
    """A list that has the host of the URL, so that the list cannot be the reason."""
    return Allowed((parse_webhook_url(url).host_and_port,))


def test_there_are_more_than_sixty_hostile_urls():
    assert len(FORMS) + 2 * len(ADDRESSES) > 60


@for_each("url", FORMS, name=ascii)
async def test_a_url_of_another_form_is_refused_and_nothing_is_asked_or_called(url):
    outside = Outside([PUBLIC])
    with pytest.raises(InvalidInput) as told:
        await outside.post(url, Allowed(("hooks.example.com:443",)))
    assert told.value.field == "url"
    assert (outside.asked, outside.called) == ([], [])


@for_each("address", ADDRESSES, name=str)
async def test_an_address_that_is_not_public_is_not_called_in_a_url(address):
    url = f"https://[{address}]/" if ":" in address else f"https://{address}/"
    outside = Outside([PUBLIC])
    with pytest.raises((Refusal, InvalidInput)):
        await outside.post(url, everything(url))
    assert (outside.asked, outside.called) == ([], [])


@for_each("address", ADDRESSES, name=str)
async def test_a_host_with_an_address_that_is_not_public_is_not_called(address):
    """Even if it has public addresses, too."""
    url = "https://hooks.example.com/x"
    for answers in ([address], [PUBLIC, address], [address, PUBLIC]):
        outside = Outside(answers)
        with pytest.raises(Refusal, match="may not be called"):
            await outside.post(url, everything(url))
        assert outside.called == []


async def test_a_host_is_resolved_once_and_the_call_goes_to_the_address_that_was_checked():
    outside = Outside([PUBLIC], ["127.0.0.1"])
    url = "https://hooks.example.com/x?y=1"
    assert await outside.post(url, everything(url)) == 200
    assert outside.asked == ["hooks.example.com"]
    (request,) = outside.called
    assert str(request.url) == f"https://{PUBLIC}/x?y=1"
    assert request.headers["host"] == "hooks.example.com"
    assert request.extensions["sni_hostname"] == "hooks.example.com"
    # The second answer of a resolver that changes its mind is checked, too.
    with pytest.raises(Refusal, match=r"127\.0\.0\.1"):
        await outside.post(url, everything(url))
    assert len(outside.called) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(status):
    outside = Outside([PUBLIC], status=status, location="https://127.0.0.1/")
    url = "https://hooks.example.com/"
    with pytest.raises(Refusal, match="redirects are not followed"):
        await outside.post(url, everything(url))
    assert len(outside.called) == 1


async def test_by_default_no_host_may_be_called_nor_asked_for():
    outside = Outside([PUBLIC])
    with pytest.raises(Refusal, match="FLOWFABRIC_WEBHOOK_HOSTS"):
        await outside.post("https://hooks.example.com/", Allowed())
    assert (outside.asked, outside.called) == ([], [])
    assert (Settings().webhook_hosts, Settings().webhook_networks) == ("", "")


def test_a_list_names_hosts_and_ports():
    allowed = Allowed.parse("hooks.example.com, *.Example.org, example.net:8443", "")
    for place, is_allowed in (
        ("hooks.example.com:443", True),
        ("hooks.example.com:8443", False),
        ("evil-hooks.example.com:443", False),
        ("example.com:443", False),
        ("a.example.org:443", True),
        ("a.b.example.org:443", True),
        ("example.org:443", False),
        ("evilexample.org:443", False),
        ("example.net:8443", True),
        ("example.net:443", False),
    ):
        assert allowed.allows_host(place) is is_allowed, place


@pytest.mark.parametrize("entry", ["*", "*.com", "a b", "https://x.example", "x.example:y", "*x.y"])
def test_a_list_that_cannot_be_read_is_refused_by_name(entry):
    with pytest.raises(InvalidInput) as told:
        Settings(webhook_hosts=entry)
    assert told.value.field == "webhook_hosts"


def test_a_private_network_must_be_listed_and_metadata_never_are():
    allowed = Allowed.parse("x.example", "10.1.0.0/16, fc00::/7, 169.254.0.0/16, 100.64.0.0/10")
    target = parse_webhook_url("https://x.example/")
    assert str(allowed.check(target, [parse_address("10.1.2.3")])) == "10.1.2.3"
    assert str(allowed.check(target, [parse_address("fc00::1")])) == "fc00::1"
    for address in ("10.2.0.1", "169.254.169.254", "fd00:ec2::254", "100.100.100.200"):
        with pytest.raises(Exception, match="may not be called"):
            allowed.check(target, [parse_address(address)])
    with pytest.raises(InvalidInput) as told:
        Settings(webhook_networks="10.1.0.1/16")
    assert told.value.field == "webhook_networks"
