"""Malformed requests to every route: no 500, no answer of the framework, nothing half done."""

from __future__ import annotations

import json
import string
from collections import Counter
from math import ceil
from random import Random
from typing import Any

import pytest

from server.stage import routes_of
from support.proofs import drawn

# Statuses that a route may answer; 409 and 412 need a state, 429 many failures.
KNOWN = {200, 201, 202, 204, 400, 404, 409, 410, 412, 413, 415, 422}
TEXTS = [
    "",
    "a",
    "\x00",
    "\ud800",
    "é" * 300,
    "x" * 5000,
    "{fp:0}:01a1e3ef-0000-7000-8000-000000000000",
    "{fp:99999}:01a1e3ef-0000-7000-8000-000000000000",
    "00000000-0000-0000-0000-000000000000",
    "'; drop table ff.execution; --",
    "../../etc/passwd",
    "%00",
    "1e400",
    "9999-99-99",
    "10m",
    "lane=a",
]


def value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(9 if depth < 3 else 6)
    match kind:
        case 0:
            return random.choice(TEXTS)
        case 1:
            return random.choice([0, -1, 1, 2**31, 2**63, -(2**63), 10**30])
        case 2:
            return random.choice([0.5, -1e308, 1e308, True, False])
        case 3:
            return None
        case 4:
            return "".join(random.choices(string.printable, k=random.randrange(20)))
        case 5:
            return random.choice([[], {}])
        case 6:
            return [value(random, depth + 1) for _ in range(random.randrange(4))]
        case _:
            names = [random.choice(["task", "name", "x", "lease"]) for _ in range(3)]
            return {name: value(random, depth + 1) for name in names}


def fields_of(document: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    """Return the fields of the body of a route, by the OpenAPI document."""
    operation = document["paths"][path][method.lower()]
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    found = schema.get("schema", {})
    for part in (found, *found.get("anyOf", ())):
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            return dict(document["components"]["schemas"][name].get("properties", {}))
    return {}


def body_of(random: Random, fields: dict[str, Any]) -> bytes:
    if random.random() < 0.1:
        return bytes(random.randrange(256) for _ in range(random.randrange(40)))
    if not fields or random.random() < 0.1:
        made = value(random)
    else:
        made = {name: value(random) for name in fields if random.random() < 0.8}
    return json.dumps(made).encode()


def class_of(document: dict[str, Any], path: str, method: str) -> str | None:
    """Return the class of a route that takes a body: executions, flows, workers and so on."""
    operation = document["paths"][path][method.lower()]
    return str(operation["tags"][0]) if method in ("POST", "PUT") else None


async def attack(http, world, number: int, bodies: int = 0) -> Counter[str | None]:
    """Send malformed requests: so many to each route, and so many bodies to each class of routes.

    Return how many were sent to each class; None is the class of requests without a body.
    """
    random = drawn("malformed requests")
    document = (await http.get("/v1/openapi.json")).json()
    done: Counter[str | None] = Counter()
    routes = [
        (method, path, access)
        for method, path, access in routes_of(world.served)
        # Two of them may wait; their own tests have bad requests. Pages are for people.
        if path not in ("/v1/events", "/v1/workers/claim") and path in document["paths"]
    ]
    sizes = Counter(class_of(document, path, method) for method, path, _ in routes)
    for method, path, access in routes:
        fields = fields_of(document, path, method)
        group = class_of(document, path, method)
        for _ in range(max(number, ceil(bodies / sizes[group])) if group else number):
            place = path
            while "{" in place:
                start, end = place.index("{"), place.index("}")
                word = random.choice(TEXTS).encode("utf-8", "replace").decode()
                filled = "".join(ch for ch in word if ch in string.ascii_letters + string.digits)
                place = place[:start] + (filled[:60] or "x") + place[end + 1 :]
            query = {
                random.choice(["limit", "cursor", "where", "state", "payload"]): random.choice(
                    [text.encode("utf-8", "replace").decode() for text in TEXTS[:4]]
                )
            }
            headers = {
                "content-type": "application/json",
                "if-match": random.choice(["1", '"x"', "*"]),
            }
            answer = await http.request(
                method,
                place,
                params=query if random.random() < 0.3 else None,
                content=body_of(random, fields) if method in ("POST", "PUT") else None,
                headers=headers,
            )
            done[group] += 1
            assert answer.status_code in KNOWN, (method, place, answer.status_code, answer.text)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["status"] == answer.status_code
                assert access is not None
    return done


async def test_a_few_malformed_requests_to_every_route(world, http):
    assert (await attack(http, world, 1)).total() > 80


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_many_malformed_requests_to_every_route(world, http, sized):
    number, bodies = sized(120, short=4), sized(1000, short=10)
    done = await attack(http, world, number, bodies)
    assert done.total() >= 90 * number, "10 000 in full"
    assert len(done) >= 8
    assert min(done[group] for group in done if group) >= bodies, done
