"""What a session may set for itself changes no answer of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest

from support.clock import Clock
from support.database import Database
from support.factories import Engine
from support.graphs import Graphs

from .sources import sql_files

if TYPE_CHECKING:
    from support.database import Connection

# One setting after the other, so that a failure names it; each as far from the default as it goes.
HOSTILE = {
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "America/New_York",
    "extra_float_digits": "-15",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "xmlbinary": "hex",
    "lc_numeric": "C",
    "lc_monetary": "C",
    "backslash_quote": "on",
    "quote_all_identifiers": "on",
    "transaction_isolation": "repeatable read",
    "check_function_bodies": "off",
    "enable_indexscan": "off",
    "plan_cache_mode": "force_custom_plan",
    "search_path": "pg_temp",
}
# A day before the clocks of New York change: there the next day has 23 hours.
BEFORE = datetime(2026, 3, 7, 12, tzinfo=UTC)
DAY = timedelta(days=1)
WORD = re.compile(r'"\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d"')
# Which differ from call to call, or tell when a row was written.
DRIFTING = {"event_id", "xid", "xmin", "cursor", "next_cursor", "database"}


def told(value: Any) -> Any:
    """An answer, with instants in JSON as instants: they may be written in the caller's zone."""
    if isinstance(value, asyncpg.Record):
        return {key: told(one) for key, one in value.items() if key not in DRIFTING}
    if isinstance(value, list | tuple):
        return [told(one) for one in value]
    if isinstance(value, str):
        return WORD.sub(
            lambda found: datetime.fromisoformat(found[0][1:-1]).astimezone(UTC).isoformat(), value
        )
    return value


async def by_execution(events: Awaitable[list[Any]]) -> list[Any]:
    """Order events by execution: those of one claim have no order among each other."""
    return sorted(await events, key=lambda event: (event["execution_id"], event["version"]))


class Script:
    """Calls with ids that are the same every time, and what they answered."""

    def __init__(self, connection: Connection) -> None:
        self.engine = Engine(connection)
        self.graphs = Graphs(self.engine)
        self.answers: list[tuple[str, Any]] = []
        self.number = 0

    def id(self) -> UUID:
        self.number += 1
        return UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + self.number)

    async def note(self, what: str, call: Awaitable[Any]) -> Any:
        try:
            answer = await call
        except asyncpg.PostgresError as error:
            self.answers.append((what, told([error.sqlstate, error.message, error.detail])))
            raise
        self.answers.append((what, told(answer)))
        return answer

    async def refused(self, what: str, call: Callable[[], Awaitable[Any]]) -> None:
        transaction = self.engine.connection.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.PostgresError):
            await self.note(what, call())
        await transaction.rollback()

    async def run(self) -> list[tuple[str, Any]]:
        engine, graphs, note = self.engine, self.graphs, self.note
        first, second, third = (self.id() for _ in range(3))
        route = await note("register", engine.register(capabilities="gpu"))
        await note(
            "submit",
            engine.submit(
                id=first,
                payload=b"\x00\\\xff",
                deadline=DAY,
                policy={"retry_policy": {"max_retries": 2}, "retention_ms": 3.6e6},
                tags={"team.name": "a\\b"},
            ),
        )
        await note("submit late", engine.submit(id=second, delay=DAY))
        await note("submit badly", engine.submit(id=third, tags={"team": "a"}))
        item = {
            "execution_id": str(third),
            "route_id": await engine.register(),
            "payload": {"float": 0.1, "text": "a\\nb"},
            "key": "k",
            "delayed_until": "2026-03-08T12:00:00.123456Z",
            "delay_ms": None,
            "deadline_ms": 86400000.5,
            "tags": {"team.name": "x"},
        }
        for items in ([item], [item | {"delayed_until": "3.4.2026"}], [item | {"route_id": route}]):
            await note(
                "submit_json",
                graphs.call("submit_json", items=json.dumps(items)),
            )
        document = {
            "flow_id": str(self.id()),
            "flow_kind": "kind",
            "nodes": [
                {"execution_id": str(self.id()), "route_id": item["route_id"], "name": name}
                for name in "abc"
            ],
            "edges": [{"from": 0, "to": 2, "group": 1}, {"from": 1, "to": 2, "group": 1}],
            "groups": [
                {"node": 2, "group": 1, "policy": "quorum", "k": 1, "on_satisfied": "let_run"}
            ],
        }
        await note("submit_flow", graphs.call("submit_flow", flow=json.dumps(document)))
        await note("submit_flow again", graphs.call("submit_flow", flow=json.dumps(document)))
        wrong = document | {"flow_id": str(self.id()), "edges": [{"from": "x", "to": 2}]}
        await note("submit_flow badly", graphs.call("submit_flow", flow=json.dumps(wrong)))
        leases = await note("claim", engine.claim(claim_id=self.id(), ttl=DAY))
        lease = next(one for one in leases if one.execution_id == first)
        await note("renew", engine.renew(lease, DAY))
        await note("record", engine.record(lease, name="a step"))
        await note("record badly", engine.record(lease, name="a\x01step"))
        await note("progress", engine.progress(lease, percent=5, message="so far"))
        await note("fail", engine.fail(lease, "transient", reason="it\\broke", category="net"))
        for other in leases:
            if other.execution_id != first:
                await note("complete", engine.complete(other, b"\x01\\"))
        await note("promote", engine.promote())
        await note("cancel", engine.cancel(second, reason="enough", actor="ann"))
        await self.refused("cancel badly", lambda: engine.cancel(first, actor="a\x01"))
        await note("replay", engine.replay(second))
        await self.refused("replay badly", lambda: engine.replay(first))
        await note("priority", engine.change_priority(second, 7, actor="ann"))
        flow = UUID(document["flow_id"])
        node = UUID(document["nodes"][2]["execution_id"])
        await note("inputs", graphs.call("read_inputs", execution_ids=[node]))
        await note("why", graphs.call("explain_execution", execution_id=first))
        await note("results", graphs.call("read_results", execution_ids=[node, first]))
        await note("list", graphs.call("list_executions"))
        for name in ("describe_flow", "summarise_flow", "list_flow_members", "list_edges"):
            await note(name, graphs.call(name, flow_id=flow))
        await note("list_flows", graphs.call("list_flows"))
        await note("header", graphs.call("cancel_flow_header", flow_id=flow, grace=DAY))
        await note("members", graphs.call("cancel_members", flow_id=flow))
        await self.refused(
            "add", lambda: graphs.call("add_execution_to_flow", flow_id=flow, execution_id=first)
        )
        await note("rows", engine.rows())
        await note("attempts", engine.attempts(first))
        await note("events", by_execution(engine.events()))
        backlog = "select partition_key, flow_id, due_at from ff.cancel_backlog"
        await note("backlog", engine.connection.fetch(backlog))
        return self.answers


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param([HOSTILE], id="all at once"),
        pytest.param(
            [{name: value} for name, value in HOSTILE.items()], id="each", marks=pytest.mark.slow
        ),
    ],
)
async def test_no_setting_of_a_session_changes_an_answer(
    db: Database, clock: Clock, sessions: list[dict[str, str]]
) -> None:
    await clock.freeze(BEFORE)
    # A reconciler refuses a snapshot that is older than a second (tests/attacks/test_foreign_ids.py
    # shows it). On a busy machine the script takes longer.
    await db.execute(
        "create or replace function ff._check_pass(p_limit integer) returns void"
        " language plpgsql stable as $$begin perform ff._check_limit(p_limit); end$$"
    )

    async def answers(settings: dict[str, str]) -> list[tuple[str, Any]]:
        # a session of its own: it has parsed no function before it was set
        connection = await db.connect()
        for name, value in settings.items():
            if name != "transaction_isolation":
                await connection.execute("select set_config($1, $2, false)", name, value)
        transaction = connection.transaction(
            isolation=settings.get("transaction_isolation", "read_committed").replace(" ", "_")
        )
        await transaction.start()
        try:
            return await Script(connection).run()
        finally:
            await transaction.rollback()
            await connection.close()

    usual = await answers({})
    assert len(usual) >= 40
    for settings in sessions:
        found = await answers(settings)
        differing = [
            f"{settings}: {there} instead of {here}"
            for here, there in zip(usual, found, strict=True)
            if here != there
        ]
        assert not differing, "\n".join(differing)


@pytest.mark.parametrize("folder", ["shared", "functions", "views", "doctor"])
def test_a_backslash_stands_only_in_literals_that_say_so(folder: str) -> None:
    """In a plain one it means what standard_conforming_strings says."""
    for file in sql_files(folder):
        for line in file.text.splitlines():
            code = line.split("--", 1)[0]
            for literal in re.finditer(r"(E?)'((?:[^']|'')*)'", code):
                assert literal[1] or "\\" not in literal[2], f"{file}: {line.strip()}"
