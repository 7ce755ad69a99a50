"""What a call left in the tables beside what the model says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

import asyncpg

from support.flow_model import Backlog, Flow, Group
from support.flow_model import Edge as FlowEdge
from support.gate_model import GatedModel, Line
from support.model import Event, Execution, Model, PastAttempt, Recorded, Route

from . import reading
from .bench import Call, Disagreement

# Columns of ff.execution that the model leaves out: those that say where and what, not how it is;
# due_at, which is only a lower bound (an invariant watches it); and what the two lists below treat.
_UNSEEN = {
    "route",
    "policy",
    "priority",
    "tags",
    "history",
    "journal",
    "stream",
    "mailbox",
    "suspensions",
    "execution_id",
    "generation",
    "passed_on",
}
_SEEN = tuple(f.name for f in fields(Execution) if f.name not in _UNSEEN)
_DERIVED = ("public_state", "attempt_index", "has_stream")
_PAUSE = ("attempt_paused_at", "attempt_pause_cause")
_EVENT = tuple(f.name for f in fields(Event))
_ATTEMPT = tuple(f.name for f in fields(PastAttempt))
_STEP = tuple(f.name for f in fields(Recorded) if f.name != "signal")
_FLOW = tuple(f.name for f in fields(Flow))
_EDGE = tuple(f.name for f in fields(FlowEdge))
_GROUP = tuple(f.name for f in fields(Group))
_BACKLOG = tuple(f.name for f in fields(Backlog) if f.name != "members")

LOOK = """
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next_xid,
  array(select e from ff.execution e
        where e.partition_key = 0
          and (e.xmin::text::bigint >= $1 or e.execution_id = any ($2::uuid[]))) as executions,
  array(select e.execution_id from ff.execution e where e.partition_key = 0) as ids,
  array(select v from ff.event v
        where v.partition_key = 0 and v.xid >= $1::text::xid8 order by v.event_id) as events,
  array(select a from ff.attempt a
        where a.partition_key = 0 and a.xmin::text::bigint >= $1
        order by a.execution_id, a.attempt_index) as attempts,
  array(select g from ff."grant" g where g.partition_key = 0) as grants,
  array(select g from ff.gate g where g.partition_key = 0) as gates,
  array(select r from ff.gate_release r where r.partition_key = 0) as releases,
  array(select y from ff.line y where y.partition_key = 0) as lines,
  array(select b from ff.budget b) as budgets,
  array(select d from ff.budget_dimension d) as dimensions,
  array(select k from ff.idempotency_key k where k.partition_key = 0) as keys,
  array(select b from ff.execution_body b
        where b.partition_key = 0 and b.xmin::text::bigint >= $1
          and (b.tags is not null or b.generation > 0)) as bodies,
  array(select s.execution_id || ' ' || s.name || ' ' || s.occurrence from ff.step s
        where s.partition_key = 0) as step_names,
  array(select s from ff.step s
        where s.partition_key = 0 and s.xmin::text::bigint >= $1) as steps,
  array(select s from ff.stream s where s.partition_key = 0) as streams,
  array(select c.execution_id from ff.stream_chunk c
        where c.partition_key = 0 and c.mode = 'rewind') as rewinds,
  array(select w from ff.run_wait w where w.partition_key = 0) as waits,
  array(select g from ff.signal g where g.partition_key = 0) as signals,
  array(select s from ff.suspension s
        where s.partition_key = 0 and s.closed_at is null) as suspensions,
  array(select t from ff.event_trim t where t.partition_key = 0) as event_trims,
  array(select f from ff.flow f where f.partition_key = 0) as flows,
  array(select d from ff.edge d where d.partition_key = 0) as edges,
  array(select y from ff.edge_group y where y.partition_key = 0) as groups,
  array(select b from ff.cancel_backlog b where b.partition_key = 0) as backlogs,
  array(select m from ff.cancel_backlog_member m where m.partition_key = 0) as backlog_members
"""


def compare(model: GatedModel, routes: dict[int, Route], call: Call, seen: asyncpg.Record) -> None:
    """Raise a Disagreement if rows, events, history, grants, keys or flows differ."""
    problems: list[str] = []

    def differ(what: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            problems.append(f"{what}: model {ours}, engine {theirs}")

    differ("executions", set(model.executions), set(seen["ids"]))
    _compare_gates(model, routes, call, seen, differ)
    for row in seen["executions"]:
        e = model.executions.get(row["execution_id"])
        if e is None:
            continue
        is_paused = e.attempt_state == "attempt_interrupted"
        for name in (*_SEEN, *_DERIVED):
            if is_paused or name not in _PAUSE:
                differ(f"{e.execution_id} {name}", getattr(e, name), row[name])
        differ(f"{e.execution_id} rank", 9000 - e.priority, row["rank"])
    for row in seen["bodies"]:
        e = model.executions[row["execution_id"]]
        differ(f"{e.execution_id} tags", e.tags, json.loads(row["tags"] or "{}"))
        differ(f"{e.execution_id} generation", e.generation, row["generation"])
    ours = sorted((asdict(v) for v in model.events), key=reading.order)
    theirs = sorted(({name: v[name] for name in _EVENT} for v in seen["events"]), key=reading.order)
    differ("events", ours, theirs)
    differ(
        "history",
        {(id_, past.attempt_index): asdict(past) for id_, past in model.buried},
        {
            (row["execution_id"], row["attempt_index"]): {name: row[name] for name in _ATTEMPT}
            for row in seen["attempts"]
        },
    )
    differ(
        "grants",
        {
            id_: (g.kind, g.worker_id, g.worker_instance_id, g.issued_at, g.expires_at)
            for id_, g in model.grants.items()
        },
        {
            g["execution_id"]: (
                g["kind"],
                g["worker_id"],
                g["worker_instance_id"],
                g["issued_at"],
                g["expires_at"],
            )
            for g in seen["grants"]
        },
    )
    differ(
        "keys",
        {
            name: (k.execution_id, k.scope, k.fingerprint, k.expires_at)
            for name, k in model.keys.items()
        },
        {
            (k["namespace"], k["key"]): (
                k["execution_id"],
                k["scope"],
                k["fingerprint"],
                k["expires_at"],
            )
            for k in seen["keys"]
        },
    )
    differ(
        "steps",
        {
            f"{id_} {name} {occurrence}"
            for id_, e in model.executions.items()
            for name, occurrence in e.journal
        },
        set(seen["step_names"]),
    )
    for row in seen["steps"]:
        e = model.executions.get(row["execution_id"])
        step = e.journal.get((row["name"], row["occurrence"])) if e is not None else None
        if step is not None:
            differ(
                "step",
                {name: getattr(step, name) for name in _STEP},
                {name: row[name] for name in _STEP},
            )
    rewinds = Counter(seen["rewinds"])
    differ(
        "streams",
        {
            id_: (
                s.lease_id if e.is_leased and s.lease_id == e.lease_id else None,
                s.last_no,
                s.frame_count,
                s.rewind_count,
            )
            for id_, e in model.executions.items()
            if (s := e.stream) is not None
        },
        {
            s["execution_id"]: (
                s["lease_id"],
                s["last_no"],
                s["durable_count"],
                rewinds[s["execution_id"]],
            )
            for s in seen["streams"]
        },
    )
    for s in seen["streams"]:
        # A stream is closed unless a lease has it.
        differ(f"{s['execution_id']} closed", s["lease_id"] is None, s["closed_at"] is not None)
    differ(
        "signals",
        {
            (id_, s.signal_id): (s.name, s.noticed_at, s.taken_at, *(s.wait or (None, None)))
            for id_, e in model.executions.items()
            for s in e.mailbox
        },
        {
            (g["execution_id"], g["signal_id"]): (
                g["name"],
                g["noticed_at"],
                g["taken_at"],
                g["wait_name"],
                g["wait_occurrence"],
            )
            for g in seen["signals"]
        },
    )
    differ(
        "open suspensions",
        {
            id_: (s.suspension_id, s.waits, s.timeout_at)
            for id_, e in model.executions.items()
            for s in e.suspensions
            if s.is_open
        },
        {
            s["execution_id"]: (
                s["suspension_id"],
                list(zip(s["wait_names"], s["wait_occurrences"], strict=True)),
                s["timeout_at"],
            )
            for s in seen["suspensions"]
        },
    )
    differ(
        "waits",
        {ids: (wait.wait_no, wait.ended_at) for ids, wait in model.waits.items()},
        {(w["waiter_id"], w["target_id"]): (w["wait_no"], w["ended_at"]) for w in seen["waits"]},
    )
    differ(
        "event trims",
        model.event_trims,
        {t["execution_id"]: t["due_at"] for t in seen["event_trims"]},
    )
    _compare_flows(model, seen, differ)
    if problems:
        raise Disagreement("\n  ".join([f"{call.function}({call.arguments})", *problems]))


def _compare_gates(
    model: GatedModel,
    routes: dict[int, Route],
    call: Call,
    seen: asyncpg.Record,
    differ: Callable[[str, Any, Any], None],
) -> None:
    """Compare counters and budgets, and take over lines, which the engine may write later."""
    released: dict[int, int] = {}
    for r in seen["releases"]:
        released[r["gate_id"]] = released.get(r["gate_id"], 0) + r["slots"]
    for row in seen["executions"]:
        e = model.executions.get(row["execution_id"])
        if e is not None and row["line_id"] not in (None, e.line_id):
            problem = model.stand(e, row["line_id"], call.function)
            differ(f"{e.execution_id} line {row['line_id']}", None, problem)
    model.lines = {
        (routes[y["route_id"]], y["gate_id"]): Line(is_open=y["is_open"], served_at=y["served_at"])
        for y in seen["lines"]
    }
    differ("gates", set(model.gates), {g["gate_id"] for g in seen["gates"]})
    unsure = set(model.unsure)
    model.forget_claim()
    for g in seen["gates"]:
        gate = model.gates[g["gate_id"]]
        id_ = g["gate_id"]
        gate.opens_at, gate.is_released = g["opens_at"], id_ in released
        if g["slices"] is not None:
            gate.newest = g["slice_base"]
        differ(f"{gate.quota} concurrency", gate.most, g["max_running"])
        differ(f"{gate.quota} running", model.used(id_), g["running"] - released.get(id_, 0))
        # Void reservations are dropped by the claims that meet them.
        ours = [model.kept(id_, of_starts=of_starts) for of_starts in (False, True)]
        gate.reserved_for, gate.start_for = g["reserved_for"], g["start_for"]
        theirs = [model.kept(id_, of_starts=of_starts) for of_starts in (False, True)]
        known = [b if a or b not in unsure else None for a, b in zip(ours, theirs, strict=True)]
        differ(f"{gate.quota} reservations", ours, known)
    for b in seen["budgets"]:
        budget = model.budgets[b["budget_id"]]
        for name in ("is_shut", "breach_count", "soft_breach_count"):
            differ(f"{budget.budget} {name}", getattr(budget, name), b[name])
        for (_, id_), line in model.lines.items():
            if id_ == b["budget_id"]:
                differ(f"line of {budget.budget} is open", not budget.is_shut, line.is_open)
    for d in seen["dimensions"]:
        budget = model.budgets[d["budget_id"]]
        for name in ("usage", "refused"):
            differ(f"{budget.budget} {name}", getattr(budget, name), d[name])


def _compare_flows(
    model: Model, seen: asyncpg.Record, differ: Callable[[str, Any, Any], None]
) -> None:
    def compare(what: str, names: Sequence[str], ours: dict[Any, Any], theirs: Any) -> None:
        """Row by row; ours and theirs have the same keys."""
        differ(f"{what}s", set(ours), set(theirs))
        for key in ours.keys() & theirs.keys():
            for name in names:
                differ(f"{what} {key} {name}", getattr(ours[key], name), theirs[key][name])

    compare("flow", _FLOW, model.flows, {f["flow_id"]: f for f in seen["flows"]})
    compare("edge", _EDGE, model.edges, {d["edge_id"]: d for d in seen["edges"]})
    compare(
        "group",
        _GROUP,
        model.groups,
        {(y["downstream_id"], y["group_no"]): y for y in seen["groups"]},
    )
    compare("backlog", _BACKLOG, model.backlogs, {b["flow_id"]: b for b in seen["backlogs"]})
    differ(
        "backlog members",
        {(flow_id, id_) for flow_id, b in model.backlogs.items() for id_ in b.members},
        {(m["flow_id"], m["execution_id"]) for m in seen["backlog_members"]},
    )
