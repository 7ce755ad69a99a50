"""The OpenAPI document is true: requests that schemathesis makes from it get documented answers.

The answers must fit the documented schemas, and may have no field that the schemas do not name.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from flowfabric.core.limit import Budget, Limit
from flowfabric.db.http_functions import OFFERED
from server.documented import problem_of
from support.proofs import drawn
from worker.apps import working

NOT_SENT = 0


def cases_of(operation: Any, number: int, mode: GenerationMode, known: dict[str, Any]) -> list[Any]:
    """Return requests to an operation. Known parts of the path are not made up."""
    made: list[Any] = []

    @seed(drawn("documented requests", operation.label, mode).getrandbits(64))
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode, path_parameters=known or None))
    def make(case: Any) -> None:
        made.append(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make()
        except Unsatisfiable:
            if mode.is_positive:
                raise  # an operation that takes any text cannot be asked in a wrong way
    return made[:number]


async def send(http: Any, case: Any) -> int:
    """Send a request. The caller compares the answer with the document (server/documented.py)."""
    asked = case.as_transport_kwargs(base_url="http://127.0.0.1:9090")
    body = asked.get("json")
    if isinstance(body, dict) and "wait_seconds" in body:
        body["wait_seconds"] = 0  # a long poll has its own tests
    headers = {
        name: value
        for name, value in (asked.get("headers") or {}).items()
        if name.lower() not in ("user-agent", "accept-encoding", "authorization")
    }
    try:
        answer = await http.request(
            asked["method"],
            asked["url"],
            params=asked.get("params"),
            headers=headers,
            **({"json": body} if "json" in asked else {"content": asked.get("data")}),
        )
    except httpx.InvalidURL:
        return NOT_SENT  # httpx itself refuses a URL of more than 64 kB
    return answer.status_code


async def furnish(world: Any, http: Any) -> dict[str, dict[str, Any]]:
    """Store something of every kind. Return the known parts of paths, by the start of the path."""
    client = await world.client()
    await client.quotas.create(Limit("calls", concurrency=3, key="key"))
    await client.budgets.create(Budget("money", tokens=100))
    stored = {}
    for name, body in {
        "done": {"task": "add", "arguments": {"x": 1}, "tags": {"a.b": "c"}},
        "failed": {"task": "fail"},
        "later": {"task": "add", "arguments": {"x": 1}, "delay": "1d", "key": "k"},
    }.items():
        answer = await http.post("/v1/executions", json=body)
        stored[name] = answer.json()["uuid"]
    async with working(world.app):
        for name in ("done", "failed"):
            path = f"/v1/executions/{stored[name]}/result"
            await http.get(path, headers={"prefer": "wait=30"})
    node = {"name": "a", "task": "add", "arguments": {"x": 1}}
    after = {"name": "b", "task": "add", "arguments": {"x": 1}, "after": ["a"]}
    flow = await http.post("/v1/flows", json={"kind": "k", "nodes": [node, after]})
    assert flow.status_code == 201, flow.text
    return {
        "/v1/executions/": {"id": stored["done"]},
        "/v1/flows/": {"id": flow.json()["uuid"]},
        "/v1/quotas/": {"name": "calls"},
        "/v1/budgets/": {"name": "money"},
        "/v1/lanes/": {"name": "default"},
        "/v1/tasks/": {"name": "add"},
    }


def known_parts(path: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    for start, parts in known.items():
        if path.startswith(start) and "{" in path:
            return parts
    if path.startswith("/v1/calls/"):
        scope = path.split("/")[3]
        names = sorted(name for name, (found, _) in OFFERED.items() if found == scope)
        return {"name": drawn("call", path).choice(names)}
    return {}


async def attack(
    world: Any, http: Any, *, operations: int, number: int
) -> tuple[Counter[int], int]:
    """Send requests to operations: half of them by the document, half of them not.

    Return the statuses, and how many operations were asked.
    """
    known = await furnish(world, http)
    document = (await http.get("/v1/openapi.json")).json()
    schema = schemathesis.openapi.from_dict(document)
    found = [one.ok() for one in schema.get_all_operations()]
    statuses: Counter[int] = Counter()
    chosen = drawn("operations").sample(found, min(operations, len(found)))
    for operation in chosen:
        raw = document["paths"][operation.path][operation.method]
        modes = [GenerationMode.POSITIVE]
        if "parameters" in raw or "requestBody" in raw:
            modes.append(GenerationMode.NEGATIVE)
        for mode in modes:
            parts = known_parts(operation.path, known) if mode.is_positive else {}
            for case in cases_of(operation, number, mode, parts):
                statuses[await send(http, case)] += 1
    return statuses, len(chosen)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_requests_by_the_document_get_the_documented_answers(world, http, sized):
    """In full 10 000 requests. The caller compares every answer with the document."""
    statuses, asked = await attack(
        world, http, operations=sized(1000, short=12), number=sized(60, short=3)
    )
    assert sum(statuses.values()) >= sized(10_000, short=2 * asked), statuses
    assert statuses[NOT_SENT] <= asked, statuses
    assert max(statuses) < 500, statuses
    good = sum(count for status, count in statuses.items() if 200 <= status < 300)
    assert good >= sum(statuses.values()) // 10, statuses


def answered(status: int, body: Any, *, media_type: str = "application/json") -> httpx.Response:
    request = httpx.Request("GET", "http://127.0.0.1/v1/executions/count")
    headers = {"content-type": media_type}
    return httpx.Response(status, content=json.dumps(body), headers=headers, request=request)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (answered(200, {"count": 1, "is_more": False}), None),
        (answered(200, {"count": 1, "is_more": False, "more": 1}), "'more' was unexpected"),
        (answered(200, {"count": 1}), '"is_more" is a required property'),
        (answered(200, {"count": "1", "is_more": False}), "is not of type"),
        (answered(200, {}, media_type="text/plain"), "text/plain is not documented"),
        (answered(418, {}), "the status is not documented"),
    ],
)
def test_an_answer_that_the_document_does_not_name_is_an_error(world, answer, problem):
    found = problem_of(world.served, answer)
    assert found is problem if problem is None else problem in found
