"""The pages of executions: the list, one execution, and acts on one execution or on many."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flowfabric.client.detail_reads import located, read_details
from flowfabric.client.filters import KEYS, parse
from flowfabric.core.errors import BudgetNotFound, InvalidInput, QuotaNotFound, TaskNotFound
from flowfabric.core.execution import (
    ExecutionCount,
    ExecutionFilter,
    ExecutionInfo,
    OperationAnswer,
)
from flowfabric.core.ids import ExecutionId
from flowfabric.core.json_text import read_json
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.limit import amount_text
from flowfabric.core.quota import BudgetInfo, GateInfo
from flowfabric.core.signal import Signal
from flowfabric.core.states import Eligibility, PublicState
from flowfabric.core.stream import parse_id
from flowfabric.core.token import Scope
from flowfabric.dashboard.advice import advice_of
from flowfabric.dashboard.details import copies_of, differences, links_of
from flowfabric.drawing.executions import ExecutionDetails
from flowfabric.server.answers import stored_json
from flowfabric.server.bulk import STATES, act_on, bulk_where, matching
from flowfabric.server.dashboard.overview import WINDOW, lanes_of, totals_of
from flowfabric.server.dashboard.page import (
    PAGE,
    PREFIX,
    Id,
    back_to,
    form_of,
    listed,
    once_in,
    reason_in,
    root,
    show,
    text_in,
    visitor,
    whole_in,
)
from flowfabric.server.events import MEDIA_TYPE
from flowfabric.server.paths import existing, find
from flowfabric.server.problems import Problem
from flowfabric.server.routing import Call, CurrentCall, Routes
from flowfabric.server.streams import frame_events
from flowfabric.server.submissions import edited_payload

routes = Routes("dashboard")
PREVIEWED = 10
FRAMES_SHOWN = 200
LIMITS_SHOWN = 20
# A longer input is not edited in a form.
EDITABLE = 16_000
AT_MOST = 1000
# The most executions that a preview counts, and the most reads that it makes. Without the second
# limit, a filter that matches few executions would read the whole table.
COUNTED = 500
READS = 4
LISTED_STATES = [state for state in PublicState if state is not PublicState.RESUMABLE]
SUGGESTIONS = [
    *(f"state={state}" for state in LISTED_STATES),
    *(f"{key}=" for key in KEYS if key not in ("state", "tag.", "age", "created", "ended")),
    *("held=yes", "crash_looping=yes", "age>1h", "ended<1d"),
]
# The filter suggests this many lanes and tasks.
SUGGESTED = 100
# The acts on all executions that match, with their labels.
VERBS = {"retry": "Retry", "replay": "Replay", "cancel": "Cancel", "revoke-lease": "Revoke lease"}


@routes.get(PREFIX + "/executions", Scope.READ, include_in_schema=False)
async def executions(
    call: CurrentCall, request: Request, where: str = "", cursor: str | None = None
) -> Response:
    """List the executions that match a filter, newest first.

    `where` takes the filter language of `flowfabric ls --where`.
    """
    now = await call.client.executions.server_time()
    shared, lanes = await _around_list(call, where)
    try:
        filter, partition = await located(call.client, parse(where).resolved(now), None)
        found = await call.client.executions.list(
            filter, cursor=cursor, limit=PAGE, partition=partition
        )
    except InvalidInput as error:
        shared |= {"problem": error.problem, "executions": [], "missing": (), "next": ""}
        return show(request, call, "executions", now, 422, **shared)
    query = urlencode({"where": where, "cursor": found.cursor or ""})
    shared |= {"problem": "", "executions": listed(found.executions, now, lanes)}
    next = f"{root(request)}/executions?{query}" if found.cursor else ""
    return show(request, call, "executions", now, missing=found.missing, next=next, **shared)


async def _around_list(call: Call, where: str) -> tuple[dict[str, Any], Sequence[LaneTraffic]]:
    """Return what the page shows above the list of executions. Also return the lanes."""
    known, lanes, tasks = await _now(call)
    return {
        "where": where,
        "verbs": _verbs_for(where),
        "suggestions": [*SUGGESTIONS, *_values(lanes, tasks)],
        "counts": _views(where, known),
        "has_counts": _is_only_state(where),
    }, lanes


Now: TypeAlias = tuple[Mapping[PublicState, ExecutionCount], Sequence[LaneTraffic], Sequence[str]]


async def _now(call: Call) -> Now:
    """Return the counts of executions by state, the lanes, and the names of some tasks."""

    async def read() -> Now:
        lanes = await call.client.lanes.traffic(window=WINDOW)
        tasks = await call.client.tasks.list(limit=SUGGESTED)
        return dict(await totals_of(call, lanes)), lanes, [one.task for one in tasks]

    return await call.backend.shared.read("totals", call.client, read)


def _values(lanes: Sequence[LaneTraffic], tasks: Sequence[str]) -> list[str]:
    """Return the conditions on lanes and tasks that the page suggests for the filter."""
    names = [one.lane for one in lanes][:SUGGESTED]
    return [
        *(f"lane={shlex.quote(name)}" for name in names),
        *(f"task={shlex.quote(name)}" for name in tasks),
    ]


def _views(
    where: str, known: Mapping[PublicState, ExecutionCount]
) -> list[tuple[PublicState, str, ExecutionCount | None]]:
    """Return each state, a filter for this state, and its count (None if not in `known`).

    The filter is `where`, with this one state instead of the states that `where` names.
    """
    others = " ".join(quoted for quoted, is_state in _words(where) if not is_state)
    return [(one, f"state={one} {others}".strip(), known.get(one)) for one in LISTED_STATES]


def _verbs_for(where: str) -> dict[str, str]:
    """Return the acts for which a filter can find executions, each with its label."""
    try:
        states = parse(where).states
    except InvalidInput:
        return {}
    return {
        verb: label
        for verb, label in VERBS.items()
        if states is None or not STATES[verb].isdisjoint(states)
    }


def _is_only_state(where: str) -> bool:
    """Return whether a filter has only conditions on the state.

    If so, the page shows how many executions are in each state.
    """
    return all(is_state for _, is_state in _words(where))


def _words(where: str) -> list[tuple[str, bool]]:
    """Return each condition of a filter as text, and whether it is a condition on the state."""
    try:
        words = shlex.split(where)
    except ValueError:
        return [(where, False)]
    return [(shlex.quote(word), word.startswith("state")) for word in words]


@routes.get(PREFIX + "/bulk", Scope.OPERATE, include_in_schema=False)
async def preview(call: CurrentCall, request: Request, verb: str, where: str = "") -> Response:
    """Show what an act on all matching executions would change, and ask for a reason."""
    now = await call.client.executions.server_time()
    filter, partition = await _matching(call, verb, where, now)
    total = await call.client.executions.count(
        filter, partition=partition, most=COUNTED, reads=READS
    )
    found = await call.client.executions.list(filter, limit=PREVIEWED, partition=partition)
    shown = listed(found.executions, now, await lanes_of(call))
    facts = {"total": total, "executions": shown, "done": None, "missing": total.missing}
    return _show_bulk(request, call, now, verb, where, **facts)


@routes.post(PREFIX + "/bulk", Scope.OPERATE, is_form=True, include_in_schema=False)
async def bulk(call: CurrentCall, request: Request) -> Response:
    """Act on at most AT_MOST matching executions that were submitted before the preview."""
    form = await form_of(request)
    verb, where, reason = form.get("verb", ""), form.get("where", ""), reason_in(form)
    now = await call.client.executions.server_time()
    filter, partition = await _matching(call, verb, where, _moment(form, "asked_at"))
    found, has_more = await matching(call, filter, partition, AT_MOST)
    done = await act_on(call, verb, reason, found)
    done = {**done, "has_more": has_more}
    return _show_bulk(
        request, call, now, verb, where, total=None, executions=[], done=done, missing=found.missing
    )


def _show_bulk(
    request: Request, call: Call, now: datetime, verb: str, where: str, **facts: Any
) -> Response:
    given: dict[str, Any] = {"verb": verb, "label": VERBS[verb], "where": where, "most": AT_MOST}
    return show(request, call, "bulk", now, **given, **facts)


@routes.get(PREFIX + "/executions/{id}", Scope.READ, include_in_schema=False)
async def execution(call: CurrentCall, request: Request, id: Id) -> Response:
    """Show everything about one execution."""
    found = await find(call, id)
    details = await read_details(call.client, found, with_payload=True)
    frames = (await call.client.streams.read(found, limit=FRAMES_SHOWN)).items
    now = await call.client.executions.server_time()
    facts = await _facts_of(call, details)
    facts["copies"] = copies_of(details.info, str(request.base_url).rstrip("/"))
    lanes = await lanes_of(call) if details.children else ()
    facts["children"] = listed(details.children, now, lanes)
    may_edit = visitor(request, call.principal).may_see_payloads
    facts["is_editable"] = may_edit and _is_editable(details.info)
    return show(request, call, "execution", now, details=details, frames=frames, **facts)


async def _facts_of(call: Call, details: ExecutionDetails) -> dict[str, Any]:
    """Return the facts that the page of an execution shows in addition to its details."""
    info = details.info
    is_open = not info.public_state.is_terminal
    is_held = info.eligibility is Eligibility.BLOCKED_BY_OPERATOR
    approvals = await call.client.approvals.of(info.id) if is_open else ()
    return {
        "acts": acts_on(info.public_state, is_held=is_held),
        "approvals": [one for one in approvals if one.is_open],
        "limits": await _limits(call, info),
        "amount": amount_text,
        "differences": differences(details.attempts),
        "is_held": is_held,
        "links": (links := links_of(details.why)),
        "others": [
            (one.sentence, [link for link in links_of(one) if link not in links])
            for one in details.why.others
        ],
        "advice": advice_of(details.why),
        "signals": await _signals(call, info) if is_open else (),
    }


def _is_editable(info: ExecutionInfo) -> bool:
    """Return whether a form can edit the payload for a replay."""
    return (
        info.public_state.is_terminal
        and info.flow_id is None
        and not info.payload_encoding
        and info.payload is not None
        and len(info.payload) < EDITABLE
    )


async def _signals(call: Call, info: ExecutionInfo) -> Sequence[str]:
    """Return the names of the signals that the task of an execution takes."""
    try:
        return sorted((await call.client.tasks.describe(info.task)).signals or ())
    except TaskNotFound:
        return ()


async def _limits(
    call: Call, info: ExecutionInfo
) -> list[tuple[str, GateInfo | None, BudgetInfo | None]]:
    """Return the quotas and budgets of an execution, each with its current use."""
    found: list[tuple[str, GateInfo | None, BudgetInfo | None]] = []
    for one in info.limits[:LIMITS_SHOWN]:
        try:
            if one.kind == "quota":
                gates = await call.client.quotas.gates(one.name, key=one.key)
                found += [(one.name, gate, None) for gate in gates]
            else:
                budget = await call.client.budgets.get(one.name, key=one.key)
                found.append((one.name, None, budget))
        except (QuotaNotFound, BudgetNotFound):
            continue  # It was deleted since the execution was read.
    return found


@routes.get(PREFIX + "/executions/{id}/stream", Scope.READ, include_in_schema=False)
async def stream(call: CurrentCall, request: Request, id: Id, since: str | None = None) -> Response:
    """Stream the frames of an execution to its page."""
    found = await existing(call, id)
    if not visitor(request, call.principal).may_see_payloads:
        raise Problem(403, "hidden", "Payloads are hidden from visitors who may only read.")
    call.check_may_stream()
    after = request.headers.get("last-event-id") or since
    # Refuse a wrong position now: the answer cannot change once the stream has begun.
    parse_id(after)
    follow = call.client.streams.follow(found, since=after)
    frames = call.counted(frame_events(request, follow))
    return StreamingResponse(frames, media_type=MEDIA_TYPE)


@routes.post(
    PREFIX + "/executions/{id}/{act}", Scope.OPERATE, is_form=True, include_in_schema=False
)
async def act(call: CurrentCall, request: Request, id: Id, act: Id) -> Response:
    """Act on an execution.

    If the execution has changed since the page was loaded, every act except a signal is refused.
    """
    form = await form_of(request)
    found = await call.client.executions.find(id)
    if act == "signal":
        await _signal(call, found, form)
    elif act in _ACTS:
        who: Who = {"reason": reason_in(form), "actor": call.principal.name}
        who["if_version"] = whole_in(form, "version")
        if (await _ACTS[act](call, found, form, who)).outcome == "already_applied":
            moved = "The execution has changed. Look again, then decide."
            raise Problem(412, "version_moved", moved)
    else:
        raise Problem(404, "unknown_path", "There is no such act.")
    return back_to(request, f"/executions/{found.uuid}")


Who: TypeAlias = dict[str, Any]
Act: TypeAlias = Callable[[Call, ExecutionId, Mapping[str, str], Who], Awaitable[OperationAnswer]]


async def _cancel(
    call: Call, id: ExecutionId, form: Mapping[str, str], who: Who
) -> OperationAnswer:
    return await call.client.executions.cancel(id, **who)


async def _retry(call: Call, id: ExecutionId, form: Mapping[str, str], who: Who) -> OperationAnswer:
    return await call.client.executions.retry(id, **who)


async def _replay(
    call: Call, id: ExecutionId, form: Mapping[str, str], who: Who
) -> OperationAnswer:
    """Replay an execution as the form says.

    The form chooses where the replay starts: at a recorded step, at the beginning, or where the
    execution ended. The form may also change the arguments.
    """
    chosen = form.get("from", "")
    if (text := text_in(form, "input")) is not None:
        payload = await edited_payload(call, id, text)
        context = await call.client.executions.context(id)
        # The form always sends the input. It is an edit only if it differs from the stored input.
        stored = None if context is None else stored_json(context.payload or b"null")
        if stored != stored_json(payload):
            who = {**who, "payload": payload}
    if chosen == "fresh":
        return await call.client.executions.replay(id, fresh=True, **who)
    if not chosen:
        return await call.client.executions.replay(id, **who)
    occurrence, _, name = chosen.partition(" ")
    return await call.client.executions.replay(
        id, from_step=name, from_occurrence=whole_in({"from": occurrence}, "from"), **who
    )


async def _revoke(
    call: Call, id: ExecutionId, form: Mapping[str, str], who: Who
) -> OperationAnswer:
    return await call.client.leases.revoke(id, **who)


async def _resume(
    call: Call, id: ExecutionId, form: Mapping[str, str], who: Who
) -> OperationAnswer:
    return await call.client.signals.resume(id, **who)


async def _priority(
    call: Call, id: ExecutionId, form: Mapping[str, str], who: Who
) -> OperationAnswer:
    return await call.client.executions.change_priority(id, whole_in(form, "priority"), **who)


_ACTS: dict[str, Act] = {
    "cancel": _cancel,
    "retry": _retry,
    "replay": _replay,
    "revoke-lease": _revoke,
    "resume": _resume,
    "priority": _priority,
}


async def _signal(call: Call, id: ExecutionId, form: Mapping[str, str]) -> None:
    name, once = form.get("name", "").strip(), once_in(form)
    try:
        value = read_json(form.get("value", "").strip() or "null")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field="value", problem=f"is not JSON: {error}") from error
    context = await call.client.executions.context(id)
    signal = Signal(
        name=name,
        payload=call.backend.app.encode_signal(context.task if context else "", name, value),
        key=None if once is None else f"form {once}",
        source_type="operator",
        source_identity=call.principal.name[:256],
    )
    await call.client.signals.deliver(id, signal)


def acts_on(state: PublicState, *, is_held: bool) -> Sequence[tuple[str, str]]:
    """Return the acts that the state of an execution allows, each with its label."""
    if state.is_terminal:
        return (("replay", "Replay"),)
    if state is PublicState.ACTIVE:
        return (("cancel", "Cancel"), ("revoke-lease", "Revoke lease"))
    if state is PublicState.SUSPENDED:
        return (("resume", "Resume without an answer"), ("cancel", "Cancel"))
    if is_held:
        return (("retry", "Retry now"), ("replay", "Replay"), ("cancel", "Cancel"))
    if state is PublicState.DELAYED:
        return (("retry", "Retry now"), ("priority", "Set priority"), ("cancel", "Cancel"))
    return (("priority", "Set priority"), ("cancel", "Cancel"))


async def _matching(
    call: Call, verb: str, where: str, now: datetime
) -> tuple[ExecutionFilter, int | None]:
    """Return the filter for an act, and the partition to search (None: all partitions).

    The filter finds no execution newer than `now`. If `where` does not name states, the filter
    finds only executions whose state allows the act.
    """
    if verb not in VERBS:
        raise InvalidInput(field="verb", problem=f"must be one of {', '.join(VERBS)}")
    filter, partition = await located(call.client, bulk_where(verb, where).resolved(now), None)
    return replace(filter, created_before=min(filter.created_before or now, now)), partition


def _moment(form: Mapping[str, str], name: str) -> datetime:
    try:
        found = datetime.fromisoformat(form.get(name, ""))
    except ValueError as error:
        raise InvalidInput(field=name, problem="must be an ISO time") from error
    if found.tzinfo is None:
        raise InvalidInput(field=name, problem="must have a time zone")
    return found
