"""Lanes, schedules, limits, workers, tasks, keys, waitpoints and bulk operations over HTTP."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.client.executions import Executions
from server.stage import OURS

SUBMIT = {"task": "add", "arguments": {"x": 2}}

# Method, path, body, and facts of the answer. Each row builds on the rows before it.
JOURNEY = [
    ("POST", "/v1/executions", {**SUBMIT, "lane": "mail"}, 201, {}),
    ("GET", "/v1/lanes", None, 200, {"items.0.lane": "mail"}),
    ("POST", "/v1/lanes/mail/pause", {"reason": "deploy"}, 200, {"state": "paused"}),
    ("GET", "/v1/lanes/mail", None, 200, {"state": "paused", "reason": "deploy"}),
    ("POST", "/v1/lanes/mail/resume", None, 200, {"state": "active"}),
    ("POST", "/v1/lanes/mail/drain", None, 200, {"state": "draining"}),
    ("POST", "/v1/lanes/mail/disable", None, 200, {"state": "disabled"}),
    ("GET", "/v1/lanes/nobody", None, 404, {"type": "urn:flowfabric:lane_not_found"}),
    ("GET", "/v1/schedules", None, 200, {"items": []}),
    ("GET", "/v1/schedules/x", None, 404, {"type": "urn:flowfabric:schedule_not_found"}),
    ("POST", "/v1/schedules/x/run", None, 404, {"type": "urn:flowfabric:schedule_not_found"}),
    ("POST", "/v1/quotas", {"name": "api", "concurrency": 3}, 201, {"quota": "api"}),
    ("POST", "/v1/quotas", {"name": "api", "concurrency": 9}, 200, {"concurrency": 3}),
    ("PUT", "/v1/quotas/api", {"concurrency": 5, "reason": "more"}, 200, {"concurrency": 5}),
    ("GET", "/v1/quotas/api", None, 200, {"quota.quota": "api"}),
    ("POST", "/v1/quotas/api/lift", None, 200, {"concurrency": 3}),
    ("DELETE", "/v1/quotas/api", None, 200, {"outcome": "deleted"}),
    ("GET", "/v1/quotas/api", None, 404, {"type": "urn:flowfabric:quota_not_found"}),
    ("POST", "/v1/quotas", {"name": "x", "rate": "often"}, 422, {"field": "limit.rate"}),
    ("POST", "/v1/budgets", {"name": "month", "usd": "5.00"}, 201, {"budget": "month"}),
    ("POST", "/v1/budgets/month/usage", {"amounts": {"usd": "1.00"}}, 200, {}),
    ("PUT", "/v1/budgets/month", {"amounts": {"usd": "9.00"}}, 200, {"budget": "month"}),
    ("POST", "/v1/budgets/month/reset", {"reason": "new"}, 200, {"budget": "month"}),
    ("GET", "/v1/budgets", None, 200, {"items.0.budget": "month"}),
    ("POST", "/v1/budgets/month/usage", {"amounts": {"key": 1}}, 422, {"field": "amounts.key"}),
    ("GET", "/v1/workers", None, 200, {"items": []}),
    ("POST", "/v1/workers/w-1/mark-dead", None, 200, {"outcome": "unchanged"}),
    ("GET", "/v1/tasks", None, 200, {"items.0.task": "add"}),
    ("GET", "/v1/tasks/nobody", None, 404, {"type": "urn:flowfabric:task_not_found"}),
    ("GET", "/v1/versions", None, 200, {"items": []}),
    ("POST", "/v1/keys/rotate", {"name": "2026-11", "grace": "1h"}, 200, {"kid": "2026-11"}),
    ("GET", "/v1/keys", None, 200, {"items.0.kid": "2026-11"}),
    ("GET", "/v1/capabilities", None, 200, {"namespace": OURS}),
]


def at(facts, path):
    for part in path.split("."):
        facts = facts[int(part)] if part.isdigit() else facts[part]
    return facts


async def test_an_operator_looks_and_operates(http):
    for method, path, body, status, expected in JOURNEY:
        answer = await http.request(method, path, json=body)
        assert answer.status_code == status, (method, path, answer.text)
        for place, value in expected.items():
            assert at(answer.json(), place) == value, (method, path, answer.text)


async def test_every_act_of_an_operator_is_in_the_audit(http):
    for method, path, body, status, _ in JOURNEY:
        assert (await http.request(method, path, json=body)).status_code == status
    uuid = (await http.post("/v1/executions", json={**SUBMIT, "delay": "1h"})).json()["uuid"]
    for verb, body in (("retry", {"reason": "now"}), ("cancel", {"reason": "no"}), ("replay", {})):
        assert (await http.post(f"/v1/executions/{uuid}/{verb}", json=body)).status_code == 200
    await http.put(f"/v1/executions/{uuid}/priority", json={"priority": 3})
    items = (await http.get("/v1/audit")).json()["items"]
    acts = [one["act"] for one in reversed(items)]
    assert acts == [
        "create_api_token",
        *["set_lane"] * 4,
        "create_quota",
        "set_quota",
        "lift_quota",
        "delete_quota",
        "create_budget",
        "raise_budget",
        "reset_budget",
        "retry_execution",
        "cancel_execution",
        "replay_execution",
        "change_priority",
    ]
    cancelled = next(one for one in items if one["act"] == "cancel_execution")
    assert cancelled["subject"].endswith(uuid)
    assert cancelled["reason"] == "no"
    assert cancelled["actor"].startswith("token tests")
    assert cancelled["before"]["state"] == "waiting"
    assert cancelled["after"] == {"state": "cancelled"}


async def test_acts_without_http_are_in_the_audit_too(world, http):
    uuid = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    await (await world.client()).executions.cancel(uuid, actor="ann@laptop", reason="typo")
    (entry,) = (await http.get("/v1/audit?limit=1")).json()["items"]
    assert (entry["actor"], entry["reason"]) == ("ann@laptop", "typo")


async def test_a_waitpoint_is_answered_by_its_token_and_a_get_never_acts(world, http):
    uuid = (await http.post("/v1/executions", json=SUBMIT)).json()["uuid"]
    client = await world.client()
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    token = await client.signals.create_waitpoint(held, uuid4(), "approval")
    place = f"/v1/executions/{uuid}/waitpoints"
    (listed,) = (await http.get(place)).json()["items"]
    assert token not in str(listed)
    read = await http.get(f"{place}/{listed['waitpoint_id']}/token")
    assert (read.json()["token"], read.headers["cache-control"]) == (token, "no-store")
    anybody = world.with_token(None)
    for form in ("/w", "/v1/waitpoints"):
        assert (await anybody.get(f"{form}/{token}")).status_code == 200
        assert (await anybody.head(f"{form}/{token}")).status_code == 200
    assert (await http.get(place)).json()["items"][0]["signal_count"] == 0
    wrong = await anybody.post(f"/w/{token[:-2]}aa", json={"value": True})
    nothing = await anybody.post("/w/x", json={"value": True})
    assert (wrong.status_code, nothing.status_code) == (404, 404)
    assert wrong.json()["type"] == nothing.json()["type"] == "urn:flowfabric:invalid_token"
    body = {"value": {"ok": True}, "key": "once"}
    answered = [await anybody.post(f"/w/{token}", json=body) for _ in range(2)]
    assert [one.json()["is_duplicate"] for one in answered] == [False, True]
    assert (await http.get(place)).json()["items"][0]["signal_count"] == 1


async def test_a_wrong_token_of_a_waitpoint_reads_no_execution(world, monkeypatch):
    """It did: each answer of a stranger listed executions of all namespaces first."""
    anybody, asked = world.with_token(None), []
    await anybody.post("/w/x", json={"value": True})
    listed = Executions.list

    async def counted(self, *given, **more):
        asked.append(given)
        return await listed(self, *given, **more)

    monkeypatch.setattr(Executions, "list", counted)
    assert (await anybody.post("/w/x", json={"value": True})).status_code == 404
    assert asked == []


async def test_bulk_counts_first_and_then_changes_what_matches(http):
    for lane in ("a", "a", "b"):
        await http.post("/v1/executions", json={**SUBMIT, "lane": lane})
    dry = await http.post("/v1/bulk/cancel", json={"where": "lane=a"})
    assert dry.json() == {"dry_run": True, "matches": 2, "is_more": False}
    done = await http.post(
        "/v1/bulk/cancel", json={"where": "lane=a", "dry_run": False, "reason": "wrong"}
    )
    assert done.json() == {
        "dry_run": False,
        "handled": 2,
        "outcomes": {"cancelled": 2},
        "refused": [],
        "next": False,
    }
    counts = [
        (await http.get("/v1/executions/count", params={"where": f"state={state}"})).json()["count"]
        for state in ("cancelled", "waiting")
    ]
    assert counts == [2, 1]


@pytest.mark.parametrize("where", ["", "colour=red"])
async def test_bulk_without_a_condition_is_refused(http, where):
    answer = await http.post("/v1/bulk/cancel", json={"where": where})
    assert (answer.status_code, answer.json()["field"]) == (422, "where")


async def test_the_audit_has_what_was_before_and_what_is_after(http):
    await http.post("/v1/executions", json={"task": "add", "arguments": {"x": 1}, "lane": "mail"})
    await http.post("/v1/lanes/mail/pause", json={"reason": "deploy"})
    await http.post("/v1/quotas", json={"name": "llm", "concurrency": 1})
    await http.put("/v1/quotas/llm", json={"concurrency": 5})
    await http.post("/v1/budgets", json={"name": "money", "tokens": 100})
    await http.put("/v1/budgets/money", json={"amounts": {"tokens": 200}})
    found = {one["act"]: one for one in (await http.get("/v1/audit")).json()["items"]}
    lane, quota, budget = found["set_lane"], found["set_quota"], found["raise_budget"]
    assert (lane["before"]["state"], lane["after"]["state"]) == ("active", "paused")
    assert lane["reason"] == "deploy"
    assert (quota["before"]["concurrency"], quota["after"]["concurrency"]) == (1, 5)
    assert (budget["before"], budget["after"]) == ({"tokens": 100}, {"tokens": 200})
    assert all(one["actor"].startswith("token tests") for one in (lane, quota, budget))
