"""Metrics of the server, of a worker and of the database; what deploy/ asks for exists."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest

from flowfabric.cli.main import COMMANDS
from flowfabric.server.metrics import NAMES, WorkerMetrics
from worker.apps import working

DEPLOY = Path(__file__).parents[2] / "deploy"
SUBMIT = {"task": "add", "arguments": {"x": 2}}
ENDINGS = r"(_bucket|_sum|_count)?$"


def families(text):
    return {re.sub(ENDINGS, "", name) for name in re.findall(r"^(flowfabric_\w+)", text, re.M)}


async def test_the_server_counts_requests_calls_and_executions(http):
    await http.post("/v1/executions", json={**SUBMIT, "lane": "mail"})
    await http.get("/v1/executions/nothing")
    await http.get("/metrics")
    text = (await http.get("/metrics")).text
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


async def test_methods_that_a_stranger_invents_are_one_label(world, http):
    """Each was a label of its own, kept for as long as the server ran."""
    stranger = world.with_token(None)
    for n in range(20):
        assert (await stranger.request(f"EVIL{n}", "/v1/executions")).status_code == 405
    text = (await http.get("/metrics")).text
    assert "EVIL" not in text
    assert re.search(r'method="other",route="\(no route\)",status="405"} 20.0', text), text


async def test_a_worker_counts_its_runs(world, http):
    metrics = WorkerMetrics(world.app)
    port = metrics.serve(0)
    uuids = [(await http.post("/v1/executions", json=SUBMIT)).json()["uuid"] for _ in range(2)]
    failing = {"task": "fail", "arguments": {}}
    uuids.append((await http.post("/v1/executions", json=failing)).json()["uuid"])
    async with working(world.app):
        for uuid in uuids:
            await http.get(f"/v1/executions/{uuid}/result", headers={"prefer": "wait=30"})
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:  # noqa: ASYNC210
        text = answer.read().decode()
    metrics.close()
    for line in (
        'flowfabric_ended_total{outcome="completed",task="add"} 2.0',
        'flowfabric_ended_total{outcome="failed",task="fail"} 1.0',
        'flowfabric_run_seconds_count{task="add"} 2.0',
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
        assert len(json.loads(text)["panels"]) == 8


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


def test_the_guide_lists_every_metric():
    page = (DEPLOY.parent / "docs" / "guide" / "metrics-and-alerts.md").read_text()
    assert re.findall(r"^\| `(flowfabric_\w+)` \| (.+) \|$", page, re.M) == list(NAMES.items())
