"""Attacks that need a socket or a forger. docs/internals/attacks.md lists all attacks."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from flowfabric.cli.dashboard import open_dashboard
from flowfabric.core.errors import StaleLease
from flowfabric.core.execution import Claimed
from flowfabric.core.token import Scope
from flowfabric.server import protocol
from flowfabric.server.answers import stored_json
from flowfabric.server.leases import sign, verify
from flowfabric.server.principals import Principal
from support.proofs import drawn

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def principal(name: str, namespace: str) -> Principal:
    return Principal(name, frozenset({Scope.WORK}), namespace, token_id=name)


def held() -> Claimed:
    """Return a lease with ids of its own."""
    fields = dict.fromkeys(Claimed.__dataclass_fields__)
    ids = {name: uuid4() for name in ("execution_id", "lease_id", "attempt_id")}
    return Claimed(**{**fields, **ids, "partition_key": 3, "epoch": 7})


def mutated(random, token: str, other: str) -> str:
    """Return the token with one or two changes: characters, length, halves of another token."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/. \x00é"
    match random.randrange(6):
        case 0 | 1:
            place = random.randrange(len(token))
            return token[:place] + random.choice(letters) + token[place + 1 :]
        case 2:
            return token[: random.randrange(len(token))]
        case 3:
            return token + random.choice(letters) * random.randrange(1, 9)
        case 4:
            place = random.randrange(5, len(token))
            return token[:place] + other[place:]
        case _:
            return random.choice([token.swapcase(), token[4:], "ffw_" + token[4:], f" {token}"])


def attack_leases(number: int) -> None:
    random = drawn("mutated leases")
    ours = principal("a", "ours")
    token, other = sign(KEY, ours, held()), sign(KEY, ours, held())
    texts = set()
    for _ in range(number):
        forged = mutated(random, token, other)
        if forged in (token, other):
            continue
        with pytest.raises(StaleLease) as refused:
            verify(KEY, ours, forged)
        texts.add(str(refused.value))
    assert texts == {"This lease was not given to this caller; claim again."}
    for key, who in (
        (OTHER_KEY, ours),
        (KEY, principal("b", "ours")),
        (KEY, principal("a", "theirs")),
        (KEY, principal("ao", "urs")),
    ):
        with pytest.raises(StaleLease):
            verify(key, who, token)
    assert verify(KEY, ours, token).epoch == 7


def test_no_mutated_lease_is_accepted():
    attack_leases(3000)


@pytest.mark.slow
def test_no_mutated_lease_of_a_million_is_accepted(sized):
    attack_leases(sized(1_000_000, short=10_000))


def test_any_stored_bytes_are_shown_as_json():
    random = drawn("stored bytes")
    hostile = [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"", b"NaN", b"1e400", b'"\\ud800"']
    hostile += [random.randbytes(random.randrange(40)) for _ in range(500)]
    for body in hostile:
        found = stored_json(body)
        assert found is not None
        assert json.loads(json.dumps(found.value, allow_nan=False)) == found.value


def test_nothing_that_is_stored_can_run():
    """No module reads a format that runs code, or evaluates text."""
    runs = re.compile(
        r"^\s*(?:import|from) (?:pickle|marshal|shelve|dill)\b|\b(?:eval|exec)\(", re.M
    )
    files = list((Path(__file__).parents[2] / "src").rglob("*.py"))
    found = {file.name: runs.findall(file.read_text()) for file in files}
    assert len(files) > 300
    # db/records.py evaluates texts that it makes from the fields of our own records.
    assert {name: hits for name, hits in found.items() if hits} == {"records.py": ["eval("] * 2}


async def raw(address: str, *parts: bytes) -> bytes:
    """Send bytes to the server and read its whole answer."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        for part in parts:
            writer.write(part)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


HEAD = b"Host: 127.0.0.1\r\nConnection: close\r\n"


async def test_no_text_of_a_caller_becomes_a_header(world, http, serving):
    token = (await world.token("admin")).encode()
    known = HEAD + b"Authorization: Bearer " + token + b"\r\n"
    for line in (
        b"GET /v1/lanes?limit=1&x=%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\n" + known,
        b"GET /v1/executions?limit=1&lane=%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\n" + known,
        b"GET /v1/tasks/%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\n" + known,
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"X-Request-Id: a\x0bSet-Cookie: a=b\r\n",
        b"GET /livez HTTP/1.1\r\n" + HEAD + b"Origin: http://a\x0bSet-Cookie: a=b\r\n",
    ):
        answer = await raw(serving, line + b"\r\n")
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 "), answer
        assert b"set-cookie" not in head.replace(b"%20", b" "), answer
    await http.post("/v1/executions", json={"task": "add", "arguments": {"x": 1}, "lane": "a"})
    await http.post("/v1/executions", json={"task": "add", "arguments": {"x": 1}, "lane": "b"})
    page = await http.get("/v1/lanes", params={"limit": 1, "x": "\r\nSet-Cookie: a=b"})
    assert "%0D%0ASet-Cookie" in page.headers["link"]


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 2\r\nContent-Length: 40\r\n",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 2, 40\r\n",
    ],
)
async def test_a_body_of_two_lengths_is_never_two_requests(serving, lines):
    """A proxy and the server could disagree where the next request begins."""
    hidden = b"GET /v1/openapi.json HTTP/1.1\r\n" + HEAD + b"\r\n"
    head = b"POST /w/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    answer = await raw(serving, head + lines + b"\r\n{}" + hidden)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"openapi" not in answer
    assert b"content-type: application/problem+json" in answer


async def test_what_is_not_http_is_refused_as_everything_else(serving):
    """uvicorn answered with a plain text of its own."""
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nIf-Match: \x00\r\n\r\n",
        b"POST /w/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        b"POST /w/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    ):
        head, _, body = (await raw(serving, sent)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), (sent, head)
        assert b"content-type: application/problem+json" in head, sent
        assert json.loads(body)["type"] == "urn:flowfabric:invalid_http"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"namespace": [[]]}, 403),
        ({"namespace": {"decimal": "sNaN"}}, 422),
        ({"namespace": ["theirs"]}, 403),
        ({"before": {"decimal": "NaN"}}, 422),
        # As an integer it has a thousand million digits.
        ({"before": {"decimal": "1e999999999"}}, 422),
        ({"before": {"decimal": "1" * 5000}}, 422),
    ],
)
async def test_no_argument_of_a_call_breaks_or_stops_the_server(http, arguments, status):
    answer = await http.post("/v1/calls/admin/list_audit", json={"arguments": arguments})
    assert answer.status_code == status


async def test_a_compressed_body_is_not_unpacked(http):
    """A few bytes could become gigabytes."""
    bomb = gzip.compress(b'{"task": "add", "arguments": {"x": 1' + b" " * 10_000_000 + b"}}")
    assert len(bomb) < 20_000
    for coding in ("gzip", "deflate", "br", "gzip, gzip"):
        headers = {"content-type": "application/json", "content-encoding": coding}
        answer = await http.post("/v1/executions", content=bomb, headers=headers)
        assert answer.status_code == 415
        assert "Content-Encoding" in answer.json()["detail"]


async def test_the_amount_of_a_budget_cannot_be_given_twice(http):
    """The server failed with 500."""
    for amounts in ({"tokens": 5}, {"usd": 5}):
        answer = await http.post("/v1/budgets", json={"name": "b", "amounts": amounts})
        assert (answer.status_code, answer.json()["field"]) == (
            422,
            f"budget.amounts.{next(iter(amounts))}",
        )


async def test_no_name_of_a_dimension_is_taken_for_an_argument(http):
    """The server failed with 500 for `self`."""
    assert (await http.post("/v1/budgets", json={"name": "b", "tokens": 5})).status_code == 201
    for name in ("self", "key", "reason", "actor", "budget", "dedup_key", "_what", "a b", ""):
        for method, path in (("PUT", "/v1/budgets/b"), ("POST", "/v1/budgets/b/usage")):
            answer = await http.request(method, path, json={"amounts": {name: 1}})
            assert answer.status_code in (200, 422), (name, answer.text)


async def test_headers_that_never_end_are_cut(serving, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    whole = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    assert await raw(serving) == b"", "it sends nothing"
    assert await raw(serving, whole) == b""


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /livez HTTP/1.1\r\n"),
        # The body that no route reads has no end.
        (b"PUT /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n", b"12"),
    ],
)
async def test_a_second_request_that_never_ends_is_cut(serving, monkeypatch, first, rest):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 3600.0)
    place = urlsplit(serving)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(first)
        assert b"HTTP/1.1 " in await asyncio.wait_for(reader.readuntil(b"}"), 60)
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
        writer.write(rest)
        assert await asyncio.wait_for(reader.read(), 60) == b""
    finally:
        writer.close()


async def test_a_request_that_is_being_answered_is_not_cut(http, serving, monkeypatch):
    made = []
    begin = protocol.BoundedProtocol.connection_made

    def record(self, transport):
        made.append(self)
        begin(self, transport)

    monkeypatch.setattr(protocol.BoundedProtocol, "connection_made", record)
    known = {"authorization": http.headers["authorization"], "accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(base_url=serving, headers=known) as client,
        client.stream("GET", "/v1/events") as answer,
    ):
        assert answer.status_code == 200
        (one,) = made
        assert one._closing is None


@pytest.mark.parametrize("line", [b"X-Long: ", b"X-Many: 1\r\n"])
async def test_headers_without_end_take_no_memory(serving, line):
    await send_headers_without_end(serving, line)


async def test_the_server_of_dev_has_the_same_bounds(make_app, monkeypatch):
    """It had none: any page or program on the machine could fill its memory."""
    dashboard = await open_dashboard(make_app(), port=0)
    assert dashboard is not None
    try:
        await send_headers_without_end(dashboard.address, b"X-Long: ")
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
        assert await raw(dashboard.address, b"GET /livez HTTP/1.1\r\n") == b""
    finally:
        await dashboard.close()


async def send_headers_without_end(address: str, line: bytes) -> None:
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(b"GET /livez HTTP/1.1\r\n" + line)
        with suppress(ConnectionError):
            for _ in range(1000):
                writer.write(line * 10_000)
                await writer.drain()
            pytest.fail("the server took megabytes of headers")
        with suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(b"HTTP/1.1 431 ") or not answer
            assert b"head_too_large" in answer or not answer
    finally:
        writer.close()


async def test_connections_that_never_finish_their_request_harm_nobody(serving, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 3600.0)
    await hold_open(serving, 200)


@pytest.mark.slow
async def test_ten_thousand_connections_that_never_finish_their_request_harm_nobody(
    serving, sized, monkeypatch
):
    """The other ends are in a process of their own, so that each process needs 10 000 files."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 3600.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        # A machine with a lower limit shows as many as it can.
        await hold_open(serving, min(sized(10_000, short=2_000), hard - 1_000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Opens connections that send a part of a request, says so, and waits for a line. Then it says how
# many are still open.
SLOW = """
import socket, sys
host, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
slow = []
for _ in range(number):
    one = socket.create_connection((host, port))
    one.sendall(b"GET /livez HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nX-Slow: ")
    one.setblocking(False)
    slow.append(one)
print("open", flush=True)
sys.stdin.readline()
still = 0
for one in slow:
    try:
        one.recv(1)
    except BlockingIOError:
        still += 1
print(still, flush=True)
"""


async def hold_open(serving: str, number: int) -> None:
    """Open connections that never finish their request. Meanwhile others are answered."""
    place = urlsplit(serving)
    command = [sys.executable, "-c", SLOW, str(place.hostname), str(place.port), str(number)]
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert await other.stdout.readline() == b"open\n"
        for _ in range(20):
            async with asyncio.timeout(30):
                answer = await raw(serving, b"GET /livez HTTP/1.1\r\n" + HEAD + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
        other.stdin.write(b"\n")
        assert int(await other.stdout.readline()) == number, "all of them are still open"
    finally:
        other.kill()
        await other.wait()
