"""The page of limits: its figures are those of the code, of the engine and of the benchmarks."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from contract.mapping.limits import LIMITS
from docs.pages import ROOT
from flowfabric.cli.actions import MAX_PRIORITY
from flowfabric.client import batching, reads
from flowfabric.config import Settings
from flowfabric.core import code_version, execution, flow, policy, schedule, step
from flowfabric.db import session
from flowfabric.handlers import handler_run, transactions, waits
from flowfabric.tasks import failures, retry_rules
from flowfabric.worker import claims, registration, runner

TEXT = (ROOT / "docs" / "guide" / "limits.md").read_text()
SQL = ROOT / "src" / "flowfabric" / "sql"


def rows(title: str) -> dict[str, str]:
    """The second column of a table by its first."""
    section = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \|", section, re.M)
    return {name: value for name, value in found if name not in ("what", "---")}


def number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def mebibytes(value: int) -> str:
    assert value % 2**20 == 0
    return f"{value // 2**20} MiB"


def engine(field: str, pattern: str) -> str:
    """What the engine says about a field; tests/contract compares it with a refusal."""
    texts = [one.says for one in LIMITS if one.field == field]
    (found,) = {match[1] for text in texts if (match := re.search(pattern, text))}
    return found


def in_sql(name: str, pattern: str) -> str:
    (file,) = SQL.rglob(name)
    found = re.search(pattern, file.read_text())
    assert found is not None, name
    return found[1]


def test_sizes_are_those_of_the_code():
    size: dict[str, Any] = {
        "arguments of a call, as JSON": mebibytes(execution.MAX_PAYLOAD_BYTES),
        "result of a task": engine("result", r"than (1 MiB) "),
        "value of a step": mebibytes(step.MAX_VALUE_BYTES),
        "failure: message, trace": f"{number(failures._MESSAGE_BYTES)} bytes, "
        f"{number(failures._TRACE_BYTES)} bytes",
        "failure that a worker in another language may store": engine("detail", "most (.+)"),
        "payload of a hook: facts, arguments, result and error": mebibytes(
            int(in_sql("03_execution.sql", r"body_limits check \(.* (\d+)\)"))
        ),
        "retry policy, as JSON": engine("policy", "than (64 KiB)"),
        "message of `ctx.progress`": engine("message", "most (.+)"),
        "reason of a cancellation or of another action": engine("reason", "most (.+) without"),
        "idempotency key": engine("key", "1 to (.+)"),
        "tags of an execution": engine("tags", r"more than (\d+)"),
        "value of a tag": engine("tags", "most (.+)"),
        "name of a lane": f"{execution.MAX_LANE_BYTES} bytes",
        "name of a task, a step, a namespace, a worker": f"{execution.MAX_NAME_BYTES} bytes",
        "name of a schedule": f"{schedule.MAX_SCHEDULE_NAME_BYTES} bytes",
        "code version": f"{code_version.MAX_VERSION_BYTES} bytes",
        "trace context": f"{execution.MAX_TRACE_BYTES} bytes",
    }
    assert rows("Sizes") == size


def test_numbers_are_those_of_the_code():
    assert engine("execution_ids", r"1 to (\d+)") == "1000"
    assert rows("Numbers") == {
        "priority": f"0 to {MAX_PRIORITY}",
        "nodes of a flow": number(flow.MAX_NODES),
        "edges of a flow": number(flow.MAX_EDGES),
        "runs that a handler waits for at once": number(waits.MAX_TARGETS),
        "replays of an execution": in_sql("_replay_execution.sql", r"numeric, (\d+)\)"),
        "reclaims of an execution": str(policy.TASK_MAX_RECLAIMS),
        "steps of an execution": number(step.MAX_STEPS),
        "steps at which the worker warns": number(step.MANY_STEPS),
        "generations after which a changed task is held instead of restarted": str(
            handler_run.MAX_RESTARTS
        ),
        "code versions that an app reads": str(code_version.MAX_READS),
        "lanes, tasks that a worker names in one claim": ", ".join(
            number(int(in_sql("_check_coverage.sql", rf"{name}\) > (\d+) then")))
            for name in ("lanes", "tasks")
        ),
        "tasks of a worker times the code versions that it serves": number(
            int(in_sql("_check_coverage.sql", r"at most (\d+): serve"))
        ),
        "tries of a transaction that conflicts with others": str(transactions._MAX_TRIES),
        "connections of a process for transactional steps": str(session.MAX_LENT),
        "hooks of a task, including the hooks of its app": in_sql(
            "declare_hooks.sql", r"most (\d+) hooks"
        ),
        "executions in one call: submit, complete, renew": number(1000),
        "executions that wait in a client to be sent": number(batching.MAX_QUEUE),
        "executions in one claim of a worker": number(claims.MAX_CLAIM),
        "executions in one page of a list": number(reads.MAX_PAGE),
        "exact counts": number(reads.COUNT_LIMIT),
        "times that one call of a schedule submits": number(schedule.MAX_FIRINGS),
    }
    assert f"{batching.MAX_BATCH} a call" in TEXT
    by_sql = in_sql("03_execution.sql", r"max_reclaims .*default (\d+)")
    assert f"{by_sql} if it was submitted by SQL" in TEXT


def test_times_are_those_of_the_code():
    found = re.findall(r"^\| (.+?) \| (.*?) ?\| (.*?) ?\|$", TEXT.partition("## Times")[2], re.M)
    default = {name: value for name, _, value in found}
    lease = Settings().lease_ttl
    alive = lease * registration._LIVENESS_SHARE

    def seconds(duration: timedelta) -> str:
        return f"{duration.total_seconds():g} s"

    assert default["lease (`FLOWFABRIC_LEASE_TTL`)"] == seconds(lease)
    assert f"| {engine('lease_ttl', 'between (.+)').replace(' and ', ' to ')} |" in TEXT
    ticket = in_sql("check_admission.sql", r"interval default interval '(1 min)")
    assert default["ticket: a slot taken outside an execution (`check_admission`)"] == ticket
    assert (
        "'1 second', interval '1 hour'" in (SQL / "functions/webhook/lease_webhook.sql").read_text()
    )
    # A beat falls on every beat of the leases, a third of a lease apart.
    assert alive / registration._BEAT_SHARE < lease / 3
    assert default["heartbeat of a worker"] == seconds(lease / 3)
    share = int(in_sql("list_workers.sql", r"liveness_ttl / (\d+) <= v_now"))
    assert default["a worker is silent"] == seconds(alive / share)
    assert alive / share == 2 * lease / 3
    assert default["a worker no longer counts as alive"] == seconds(alive)
    drain = "drain of a stopping worker (`FLOWFABRIC_DRAIN_TIMEOUT`)"
    assert default[drain] == seconds(Settings().drain_timeout)
    assert default["a handler that was told to stop"] == f"{runner.UNWIND_SECONDS:g} s"
    assert default["idempotency key"] == f"{execution.DEFAULT_KEY_WINDOW.days} day"
    grace = "a code version without a worker (`FLOWFABRIC_VERSION_GRACE`)"
    assert default[grace] == seconds(Settings().version_grace)
    longest = retry_rules.LONGEST_HEADER
    assert longest == timedelta(days=1)
    assert "| a day; a longer one counts as a day |" in TEXT
    kept = in_sql("trim_executions.sql", r"interval '(\d+ days)'")
    assert default["retention of an ended execution"] == kept
    hours = in_sql("trim_executions.sql", r"interval '(\d+) hours'")
    assert default["events after the end of their execution"] == f"at least {hours} h"


def test_measured_figures_stand_in_the_benchmarks():
    benchmarks = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    measured = rows("What has no limit")
    assert len(measured) == 10
    for figure in re.findall(r"\d+\.\d+", " ".join(measured.values())):
        assert figure in benchmarks
