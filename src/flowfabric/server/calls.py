"""Functions of the engine over HTTP, for flowfabric's own clients: `App(url=…)` and `--url`.

There is one HTTP route for each scope. `db/http_functions.py` says which scope each function needs.
Namespace and actor come from the token, never from the request. No answer contains a lease.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypedDict
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.client.streams import StreamItem
from flowfabric.core.errors import Forbidden, InvalidInput
from flowfabric.core.ids import ExecutionId
from flowfabric.core.stream import format_id
from flowfabric.core.token import Scope
from flowfabric.db import functions
from flowfabric.db.functions import Statement
from flowfabric.db.http_functions import OFFERED
from flowfabric.db.wire import decode, encode
from flowfabric.server.answers import raw, wait_seconds
from flowfabric.server.paths import Name
from flowfabric.server.problems import Problem
from flowfabric.server.routing import BATCH, LARGE, Call, CurrentCall, Routes, check_still_allowed
from flowfabric.server.submissions import Body
from flowfabric.server.workers import gone

routes = Routes("calls")
# Answers have this value in place of every lease id and attempt id.
HIDDEN = UUID(int=0)
_LEASES = {"lease_id", "attempt_id"}
# A server that hides payloads does not show these columns to callers who may only read.
_BODIES = {"payload", "result", "value", "document", "details"}
_BODY_READS = {functions.READ_STREAMS.name, functions.READ_SUMMARY.name}
# A call may wait for at most this many executions.
_MOST_WAITS = 1000


class Arguments(Body):
    """The arguments of a function by name.

    A value that JSON does not have is an object with one field. The field is `uuid` for a UUID,
    `at` for a time, `us` (microseconds) for a duration, and `base64` for bytes.
    """

    arguments: dict[str, Any] = Field(default_factory=dict)


class Rows(TypedDict):
    """The rows that a function returned. Values are written as in `Arguments`."""

    columns: list[str]
    rows: list[list[Any]]


async def _answer(
    call: Call, request: Request, scope: Scope, name: str, body: Arguments
) -> Response:
    statement = _offered(scope, name)
    if statement.name in _BODY_READS:
        call.check_sees_payloads()
    arguments = _bound(call, statement, body.arguments)
    if seconds := wait_seconds(request):
        await _wait_for_news(call, request, statement, arguments, seconds)
        await check_still_allowed(request)
    rows = await call.client.database.call(statement, **arguments)
    shown = [_row(call, statement, row) for row in rows]
    return raw(json.dumps({"columns": statement.columns, "rows": shown}))


def _add(scope: Scope) -> None:
    async def make_call(
        call: CurrentCall, request: Request, name: Name, body: Arguments
    ) -> Response:
        return await _answer(call, request, scope, name, body)

    make_call.__name__ = f"call_{scope}"
    make_call.__doc__ = f"Call a function of the engine that needs the scope {scope}."
    limit = BATCH if scope is Scope.SUBMIT else LARGE
    routes.post(f"/v1/calls/{scope}/{{name}}", scope, limit=limit, answers=Rows, refuses=(410,))(
        make_call
    )


for _scope in (Scope.READ, Scope.SUBMIT, Scope.SIGNAL, Scope.OPERATE, Scope.ADMIN):
    _add(_scope)


def _offered(scope: Scope, name: str) -> Statement:
    found, statement = OFFERED.get(name, (None, None))
    if statement is None or found is not scope:
        raise Problem(404, "unknown_call", f"No function with the scope {scope} has this name.")
    return statement


def _bound(call: Call, statement: Statement, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, including the arguments that only the server may set."""
    for name in given:
        if name not in statement.arguments:
            raise InvalidInput(field=f"arguments.{name[:40]}", problem="is unknown")
    found = {name: decode(f"arguments.{name}", given.get(name)) for name in statement.arguments}
    own, who = call.principal.namespace, call.principal.name[:256]
    for name in ("namespace", "namespaces"):
        named = found.get(name)
        if any(one not in (None, own) for one in (named if isinstance(named, list) else [named])):
            raise Forbidden(f"The token is for the namespace {own}.", namespace=own)
    forced: dict[str, Any] = {"namespace": own, "actor": who, "registered_by": "http"}
    # No lease is accepted here: the holder of a lease presents it on the routes of workers.
    forced |= dict.fromkeys(("lease_id", "epoch", "attempt_id"))
    found |= {name: value for name, value in forced.items() if name in found}
    if "namespaces" in found:
        found["namespaces"] = [own] * len(found["namespaces"] or ())
    try:
        _SET.get(statement.name, _set_nothing)(found, who)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(field="arguments", problem=f"do not fit {statement.name}") from error
    return found


def _set_nothing(found: dict[str, Any], who: str) -> None:
    pass


def _set_creator(found: dict[str, Any], who: str) -> None:
    given = found["options"] or [None]
    found["options"] = [json.dumps({**json.loads(one or "{}"), "creator": who}) for one in given]


def _set_flow_creator(found: dict[str, Any], who: str) -> None:
    flow = json.loads(found["flow"])
    nodes = [{**node, "creator": who} for node in flow.get("nodes") or ()]
    found["flow"] = json.dumps({**flow, "nodes": nodes, "creator": who})


def _set_creator_of_flow(found: dict[str, Any], who: str) -> None:
    found["creator"] = who


def _set_sender(found: dict[str, Any], who: str) -> None:
    count = len(found["execution_ids"])
    found |= {"source_types": ["http"] * count, "source_identities": [who] * count}


def _name_gates(found: dict[str, Any], who: str) -> None:
    """Keep only the kind, the name and the key of each gate.

    So a caller over HTTP can name a limit, but cannot change its numbers.
    """
    found["gates"] = json.dumps(
        [
            {name: gate[name] for name in ("kind", "name", "key") if name in gate}
            for gate in json.loads(found["gates"])
        ]
    )


_SET: dict[str, Callable[[dict[str, Any], str], None]] = {
    functions.SUBMIT_EXECUTIONS.name: _set_creator,
    functions.SUBMIT_FLOW.name: _set_flow_creator,
    functions.CREATE_FLOW.name: _set_creator_of_flow,
    functions.DELIVER_SIGNALS.name: _set_sender,
    functions.REGISTER_GATES.name: _name_gates,
}


def _row(call: Call, statement: Statement, row: Iterable[Any]) -> list[Any]:
    hides = call.is_blind
    shown = []
    for name, value in zip(statement.columns, row, strict=True):
        if value is not None and name in _LEASES:
            value = HIDDEN
        elif name in _BODIES and hides:
            value = None
        elif isinstance(value, str) and '"lease_id"' in value:
            value = _without_lease(value)
        shown.append(encode(value))
    return shown


def _without_lease(text: str) -> str:
    try:
        facts = json.loads(text)
    except ValueError:
        return text
    if not isinstance(facts, dict):
        return text
    return json.dumps({name: one for name, one in facts.items() if name not in _LEASES})


async def _wait_for_news(
    call: Call, request: Request, statement: Statement, arguments: dict[str, Any], seconds: float
) -> None:
    """If a read of results or streams finds nothing, wait up to `seconds` for something to read.

    The wait also ends if the caller disconnects. For other functions, return at once.
    """
    if statement not in (functions.READ_RESULTS, functions.READ_STREAMS):
        return
    if await call.client.database.call(statement, **arguments):
        return
    with call.streaming() as may_wait:
        if may_wait:
            await _wait(call, request, statement, arguments, seconds)


async def _wait(
    call: Call, request: Request, statement: Statement, arguments: dict[str, Any], seconds: float
) -> None:
    partition, uuids = arguments["partition_key"], arguments["execution_ids"]
    ids = [ExecutionId.of(partition, uuid) for uuid in uuids[:_MOST_WAITS]]
    news: list[Awaitable[Any]]
    if statement is functions.READ_RESULTS:
        news = [call.client.results.wait(id) for id in ids]
    else:
        afters = zip(arguments["after_ms"], arguments["after_seqs"], strict=True)
        news = [
            _frame(call, id, after, arguments["with_best_effort"])
            for id, after in zip(ids, afters, strict=False)
        ]
    tasks = {asyncio.ensure_future(one) for one in (*news, gone(request))}
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _frame(
    call: Call, id: ExecutionId, after: tuple[int, int], with_best_effort: bool
) -> StreamItem | None:
    items = call.client.streams.follow(
        id, since=format_id(after), with_best_effort=with_best_effort
    )
    try:
        return await anext(items, None)
    finally:
        await items.aclose()
