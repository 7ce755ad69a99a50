"""Metrics of the server, of a worker and of the database; what deploy/ asks for exists."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import generate_latest

from flowfabric.app import instruments
from flowfabric.cli.main import COMMANDS
from flowfabric.core.errors import LimitReached
from flowfabric.core.execution import ExecutionFilter, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.limit import Gate, Limit
from flowfabric.core.stream import Chunk, FrameEncoding, OutgoingFrame
from flowfabric.core.subscription import EventFilter
from flowfabric.reconcilers.loop import run_reconcilers
from flowfabric.reconcilers.table import Reconciler
from flowfabric.server.metrics import NAMES, WorkerMetrics
from server.stage import THEIRS
from worker.apps import working
from worker.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
SUBMIT = {"task": "add", "arguments": {"x": 2}}
ENDINGS = r"(_bucket|_sum|_count)?$"


def families(text):
    return {re.sub(ENDINGS, "", name) for name in re.findall(r"^(flowfabric_\w+)", text, re.M)}


async def test_the_server_counts_requests_calls_and_executions(world, http):
    await http.post("/v1/executions", json={**SUBMIT, "lane": "mail"})
    await http.get("/v1/executions/nothing")
    await http.get("/metrics")
    text = totals(world) + (await http.get("/metrics")).text
    for line in (
        'flowfabric_http_requests_total{method="POST",route="/v1/executions",status="201"} 1.0',
        'flowfabric_http_requests_total{method="GET",route="/v1/executions/{id}",status="422"} 1.0',
        'flowfabric_executions{lane="mail",state="waiting"} 1.0',
        "flowfabric_workers 0.0",
    ):
        assert line in text.splitlines(), text
    assert 'flowfabric_oldest_waiting_seconds{lane="mail"}' in text
    assert 'flowfabric_calls_total{operation="read_traffic",outcome="ok"}' in text
    assert re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", text) is None  # no id is a label
    assert families(text) <= set(NAMES)


async def test_a_token_sees_nothing_of_other_namespaces_in_the_metrics(world, http):
    """The totals of the process have a port of their own, without a token and on this machine."""
    theirs = await world.caller("admin", namespace=THEIRS)
    await theirs.post("/v1/executions", json={**SUBMIT, "lane": "secret"})
    text = (await http.get("/metrics")).text
    assert families(text) == {"flowfabric_workers", "flowfabric_suspended", "flowfabric_held"}
    metrics = world.served.state.backend.metrics
    port = metrics.serve(0)
    try:
        found = (await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/metrics")).read()
    finally:
        metrics.close()
    assert b'route="/v1/executions",status="201"} 1.0' in found


def totals(world) -> str:
    return generate_latest(world.served.state.backend.metrics.registry).decode()


async def test_methods_that_a_stranger_invents_are_one_label(world, http):
    """Each was a label of its own, kept for as long as the server ran."""
    stranger = world.with_token(None)
    for n in range(20):
        assert (await stranger.request(f"EVIL{n}", "/v1/executions")).status_code == 405
    text = totals(world)
    assert "EVIL" not in text
    assert re.search(r'method="other",route="\(no route\)",status="405"} 20.0', text), text


async def test_a_worker_counts_its_runs(world, http):
    metrics = WorkerMetrics(world.app)
    port = metrics.serve(0)

    @world.app.task(name="look")
    async def look() -> float | None:
        return metrics.registry.get_sample_value("flowfabric_running")

    run = await look.submit()
    mail = {**SUBMIT, "lane": "mail"}
    uuids = [(await http.post("/v1/executions", json=mail)).json()["uuid"] for _ in range(2)]
    failing = {"task": "fail", "arguments": {}}
    uuids.append((await http.post("/v1/executions", json=failing)).json()["uuid"])
    async with working(world.app, concurrency=1):
        assert await run.result(timeout=60) == 1.0
        for uuid in uuids:
            await http.get(f"/v1/executions/{uuid}/result", headers={"prefer": "wait=30"})
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:  # noqa: ASYNC210
        text = answer.read().decode()
    metrics.close()
    for line in (
        'flowfabric_started_total{lane="mail",task="add"} 2.0',
        'flowfabric_ended_total{lane="mail",outcome="completed",task="add"} 2.0',
        'flowfabric_ended_total{lane="default",outcome="failed",task="fail"} 1.0',
        'flowfabric_run_seconds_count{lane="mail",task="add"} 2.0',
        'flowfabric_wait_seconds_count{lane="mail",task="add"} 2.0',
        'flowfabric_wait_seconds_count{lane="default",task="fail"} 1.0',
        "flowfabric_running 0.0",
    ):
        assert line in text.splitlines(), text
    assert families(text) - {re.sub("_total$", "_created", name) for name in NAMES} <= set(NAMES)


@pytest.mark.parametrize("file", ["grafana/flowfabric.json", "alerts.yaml"])
def test_dashboard_and_alerts_ask_for_metrics_that_exist(file):
    text = (DEPLOY / file).read_text()
    asked = {re.sub(ENDINGS, "", name) for name in re.findall(r"\bflowfabric_\w+", text)}
    assert len(asked) >= 5
    assert asked <= set(NAMES)
    if file.endswith("json"):
        assert len(json.loads(text)["panels"]) == 17


@pytest.mark.parametrize(
    "file",
    [
        "Dockerfile",
        "compose.yaml",
        "systemd/flowfabric-server.service",
        "systemd/flowfabric-worker.service",
    ],
)
def test_what_is_deployed_calls_commands_that_exist(file):
    text = (DEPLOY / file).read_text().replace('", "', " ")
    called = re.findall(r"\bflowfabric (serve|worker|db) ([^\n\"\]]*)", text)
    assert called
    for command, rest in called:
        assert command in COMMANDS
        assert "app:app" in rest or "migrate" in rest
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"flowfabric\[(\w+)\]", text):
        assert extra in project["optional-dependencies"]


def test_every_metric_is_moved_by_a_test_of_this_file():
    text = Path(__file__).read_text()
    assert [name for name in NAMES if name not in text] == []


def test_the_guide_lists_every_metric():
    page = (DEPLOY.parent / "docs" / "guide" / "metrics-and-alerts.md").read_text()
    assert re.findall(r"^\| `(flowfabric_\w+)` \| (.+) \|$", page, re.M) == list(NAMES.items())


async def test_percentiles_of_hours_are_read_over_http(world, http):
    client = await world.client()
    for _ in range(3):
        await http.post("/v1/executions", json={"task": "add", "arguments": {"x": 1}})
    async with working(world.app):
        await eventually(lambda: has_ended(client, 3))
    await client.within(None).minutes.roll_up()
    for window in ("1h", "6h", "24h"):
        items = (await http.get("/v1/minutes", params={"window": window})).json()["items"]
        found = {one["kind"]: one for one in items}
        assert {kind: one["count"] for kind, one in found.items()} == {
            "submitted": 3,
            "claimed": 3,
            "completed": 3,
        }
        assert 0 < found["completed"]["p50"] <= found["completed"]["p99"]
        assert found["claimed"]["task"] == "add"
        assert "p50" not in found["submitted"]
    text = (await http.get("/metrics")).text
    assert 'flowfabric_events{kind="claimed",lane="default",task="add"} 3.0' in text
    assert 'flowfabric_latency_seconds{kind="completed",lane="default",quantile="0.95"' in text
    answer = await http.get("/v1/minutes", params={"window": "90d"})
    assert (answer.status_code, answer.json()["field"]) == (422, "window")
    for until in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        answer = await http.get("/v1/minutes", params={"until": until})
        assert (answer.status_code, answer.json()["field"]) == (422, "until")
    parts = (await http.get("/v1/minutes", params={"step": "1m", "task": "nobody"})).json()
    assert parts["items"] == []


async def has_ended(client, number: int) -> bool:
    return (await client.executions.count(ExecutionFilter(states=["completed"]))).number == number


async def test_budgets_and_subscriptions_are_measured(world, http):
    client = await world.client()
    await http.post("/v1/budgets", json={"name": "llm", "tokens": 100})
    await http.post("/v1/budgets/llm/usage", json={"amounts": {"tokens": 25}})
    await client.subscriptions.lease(
        "audit",
        uuid4(),
        holder_name="a test",
        ttl=timedelta(minutes=1),
        filter=EventFilter(),
        cursor=await client.events.open(),
    )
    await http.post("/v1/executions", json=SUBMIT)
    text = (await http.get("/metrics")).text
    assert 'flowfabric_budget_used_ratio{budget="llm",dimension="tokens"} 0.25' in text
    assert 'flowfabric_feed_lag_seconds{subscription="audit"}' in text


async def test_connections_frames_refusals_and_reconcilers_are_counted(world, http):
    await http.get("/metrics")  # from now on the server counts
    refusing = {"name": "one", "concurrency": 1, "overflow": "refuse"}
    assert (await http.post("/v1/quotas", json=refusing)).status_code == 201
    client = await world.client()
    limit = Limit("one", concurrency=1, overflow="refuse")
    gates = (Gate(client.namespace, limit),)
    await client.executions.submit(submission(quotas=gates))
    (held,) = await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", tasks=["add"], limit=1
    )
    with pytest.raises(LimitReached):
        await client.executions.submit(submission(quotas=gates))
    frame = OutgoingFrame(b"a", FrameEncoding.TEXT, "data")
    await client.streams.append(held, Chunk([frame] * 3, 0))
    running = asyncio.create_task(run_reconcilers(client.within(None), SOON))
    await eventually(lambda: 'reconciler="soon"' in totals(world))
    running.cancel()
    await asyncio.wait([running])
    text = totals(world)
    for line in (
        'flowfabric_quota_refusals_total{quota="one"} 1.0',
        'flowfabric_frames_total{mode="durable"} 3.0',
    ):
        assert line in text.splitlines(), text
    assert number_of(text, "flowfabric_reconciler_runs_total", outcome="ok", reconciler="soon")
    counts = re.findall(r'^flowfabric_pool_connections{state="(\w+)"} (\d+)', text, re.M)
    assert {state for state, _ in counts} == {"busy", "idle"}
    assert sum(int(number) for _, number in counts) >= 1


async def _nothing(client, batch):
    return 0, None


SOON = [Reconciler("soon", timedelta(seconds=1), 10, _nothing, None)]


def submission(**more):
    return Submission(id=mint(), route=Route("ours", "default", "add"), payload=b"{}", **more)


def number_of(text: str, name: str, **labels: str) -> float | None:
    """Return the value of a metric with these labels, or None."""
    words = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    line = f"{name}{{{words}}}" if labels else name
    found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.M)
    return float(found[1]) if found else None


async def test_every_state_and_event_moves_its_number(world, http, clock):
    """One execution for each state; the events of all of them are counted."""
    lane = {"lane": "x"}
    worker = {"worker_id": "w", "worker_instance_id": "w-1"}
    client = await world.client()
    known = {**worker, "tasks": [{"name": "upper"}], "alive_for": "1h"}
    assert (await http.post("/v1/workers/register", json=known)).status_code == 200
    before = await everything(world, http)
    assert number_of(before, "flowfabric_workers") == 1
    for state in ("waiting", "delayed", "active", "in_line"):
        assert not number_of(before, "flowfabric_executions", lane="x", state=state), state

    async def claimed() -> str:
        body = {"task": "upper", "arguments": {}, **lane}
        assert (await http.post("/v1/executions", json=body)).status_code == 201
        claim = {**worker, "tasks": ["upper"], "lanes": ["x"]}
        (one,) = (await http.post("/v1/workers/claim", json=claim)).json()["items"]
        return one["lease"]

    waits = {"lease": await claimed(), "name": "go", "position": 0}
    assert (await http.post("/v1/leases/wait", json=waits)).json() == {"outcome": "suspended"}
    fails = {"lease": await claimed(), "reason": "no", "retry_after": "1h"}
    assert (await http.post("/v1/leases/fail", json=fails)).json()["will_retry"] is True
    await claimed()  # nobody renews this lease
    await clock.advance(timedelta(minutes=5))
    await client.leases.expire()
    again = {**worker, "tasks": ["upper"], "lanes": ["x"]}
    assert (await http.post("/v1/workers/claim", json=again)).json()["items"]
    gates = (Gate(client.namespace, Limit("line", concurrency=1)),)
    route = Route("ours", "x", "add")
    for _ in range(2):
        await client.executions.submit(
            Submission(id=mint(), route=route, payload=b"{}", quotas=gates)
        )
    asked = {"worker_id": "w", "worker_instance_id": "w-1", "tasks": ["add"], "lanes": ["x"]}
    assert len(await client.executions.claim(**asked, limit=2)) == 1, "the other is in line"
    await client.executions.submit(Submission(id=mint(), route=route, payload=b"{}"))
    (other,) = await client.executions.claim(**asked)
    await client.executions.hold(other, "its code has changed")
    await client.executions.submit(Submission(id=mint(), route=route, payload=b"{}"))
    await clock.advance(timedelta(seconds=5))
    await client.within(None).minutes.roll_up()

    after = await everything(world, http)
    found = {
        state: number_of(after, "flowfabric_executions", lane="x", state=state)
        for state in ("waiting", "delayed", "active", "in_line")
    }
    assert found == {"waiting": 1.0, "delayed": 1.0, "active": 2.0, "in_line": 1.0}, after
    for name in ("flowfabric_suspended", "flowfabric_held"):
        assert (number_of(before, name), number_of(after, name)) == (0.0, 1.0), name
    assert number_of(after, "flowfabric_oldest_waiting_seconds", lane="x") >= 5
    assert number_of(after, "flowfabric_heartbeat_age_seconds") >= 5
    for kind in ("submitted", "claimed", "reclaimed", "retry_scheduled", "lease_expired"):
        labels = {"kind": kind, "lane": "x", "task": "upper"}
        assert number_of(after, "flowfabric_events", **labels), (kind, after)
    labels = {"kind": "claimed", "lane": "x", "quantile": "0.5", "task": "upper"}
    assert number_of(after, "flowfabric_latency_seconds", **labels) is not None
    claims = {"operation": "claim_executions"}
    for name in ("flowfabric_call_seconds_count", "flowfabric_call_rows_count"):
        assert number_of(after, name, **claims) > (number_of(before, name, **claims) or 0)
    route = "/v1/leases/fail"
    assert number_of(after, "flowfabric_http_request_seconds_count", route=route) == 1


async def everything(world, http) -> str:
    """Return the metrics of the database and the totals of the process."""
    return (await http.get("/metrics")).text + totals(world)


async def test_a_wait_is_from_the_submit_to_the_first_claim(world, http, clock):
    """What follows a retry or a release says nothing about how long work waits for a worker."""
    await http.get("/metrics")  # from now on the server counts
    worker = {"worker_id": "w", "worker_instance_id": "w-1", "lanes": ["x"]}
    for number in range(2):
        body = {**SUBMIT, "lane": "x"}
        assert (await http.post("/v1/executions", json=body)).status_code == 201
        await clock.advance(timedelta(hours=1 - number))
    claim = {**worker, "tasks": ["add"], "limit": 2, "lease_seconds": 17}
    fails, gives_back = (await http.post("/v1/workers/claim", json=claim)).json()["items"]
    body = {"lease": fails["lease"], "reason": "no", "retry_after": "1m"}
    assert (await http.post("/v1/leases/fail", json=body)).json()["will_retry"] is True
    body = {"lease": gives_back["lease"]}
    assert (await http.post("/v1/leases/release", json=body)).status_code == 200
    await clock.advance(timedelta(minutes=2))
    client = await world.client()
    await client.executions.promote_delayed()
    assert len((await http.post("/v1/workers/claim", json=claim)).json()["items"]) == 2
    labels = {"lane": "x", "task": "add"}
    assert number_of(totals(world), "flowfabric_wait_seconds_count", **labels) == 2
    seconds = number_of(totals(world), "flowfabric_wait_seconds_sum", **labels)
    assert 3600 <= seconds < 3900, "one waited for an hour, the other for a moment"
    assert number_of(totals(world), "flowfabric_wait_seconds_bucket", le="300.0", **labels) == 1


async def test_a_blocked_loop_is_measured(world):
    """The lag is how late the loop is, whatever else the machine does."""
    metrics = WorkerMetrics(world.app)
    loop = asyncio.get_running_loop()
    metrics._measure_lag(loop, loop.time() - 5)
    metrics._timer.cancel()
    text = generate_latest(metrics.registry).decode()
    lag = float(re.search(r"^flowfabric_loop_lag_seconds (.+)$", text, re.M)[1])
    assert lag >= 5


async def test_opentelemetry_has_the_same_names(world, http, monkeypatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(instruments, "is_configured", lambda: True)
    monkeypatch.setattr(instruments.metrics, "get_meter", provider.get_meter)
    client = await world.client()
    await http.post("/v1/executions", json={**SUBMIT, "lane": "mail"})
    async with working(world.app):
        await eventually(lambda: has_ended(client, 1))
    found = {
        metric.name: [dict(point.attributes) for point in metric.data.data_points]
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    here = {"task": "add", "lane": "mail"}
    assert found["flowfabric_started"] == [here]
    assert found["flowfabric_run_seconds"] == found["flowfabric_wait_seconds"] == [here]
    assert found["flowfabric_pool_connections"] == [{"state": "busy"}, {"state": "idle"}]
    assert found["flowfabric_ended"] == [{**here, "outcome": "completed"}]
    assert {"operation": "claim_executions", "outcome": "ok"} in found["flowfabric_calls"]
    known = {name.removesuffix("_total") for name in NAMES}
    assert set(found) <= known


def test_nothing_is_recorded_without_a_meter_provider():
    assert not instruments.is_configured()
